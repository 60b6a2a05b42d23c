"""Dead letters: records that no time, no target or no broker was found for, with the reason."""

import asyncio
import logging
from collections.abc import Sequence

from dwell.relay.contract import BrokerUnreachable, Sink
from dwell.relay.envelope import FROM
from dwell.relay.record import Record
from dwell.relay.tally import Tally

_log = logging.getLogger(__name__)

REASON = "dwell-reason"
_WHO = "dead letters"
_AGAIN_S = 0.5
#: What of a reason is kept, characters.
_MOST_REASON = 1_000


class DeadLetters:
    """The topic of a sink that takes what can go nowhere else; ``last`` takes what it refuses."""

    def __init__(self, sink: Sink, topic: str, last: Sink, tally: Tally) -> None:
        self._sink = sink
        self._tally = tally
        self._last = last
        self._is_stopping = False
        self.topic = topic

    def stop(self) -> None:
        """Wait no more for a broker that is away."""
        self._is_stopping = True

    def letter(self, record: Record, reason: str) -> Record:
        """Return what is sent in place of a record: the record, why, and where it came from."""
        said = [
            (REASON, reason[:_MOST_REASON].encode("utf-8", "backslashreplace")),
            (FROM, record.origin.encode("utf-8", "backslashreplace")),
        ]
        headers = [*record.headers, *said]
        return Record(
            self.topic,
            record.id,
            record.body,
            record.key,
            headers,
            properties=record.properties,
        )

    async def send_surely(self, dead: Sequence[tuple[Record, str]]) -> None:
        """Send letters until the broker has them; of what nobody takes, keep the reason.

        Raises BrokerUnreachable when it is to stop meanwhile.
        """
        letters = [self.letter(record, reason) for record, reason in dead]
        refused = await self._surely(self._sink, letters)
        refused = await self._surely(self._last, refused)
        # The body is worth more than headers that have no room.
        bare = [Record(self.topic, one.id, one.body, None, one.headers[-2:]) for one in refused]
        refused = await self._surely(self._last, bare)
        short = [Record(self.topic, one.id, None, None, one.headers) for one in refused]
        for one in await self._surely(self._last, short):
            _log.error("%s is no dead letter either", (one.headers[-1][1] or b"").decode())

    async def _surely(self, sink: Sink, letters: list[Record]) -> list[Record]:
        """Send letters until the sink has them; return those that it refuses for good."""
        lost: list[Record] = []
        while letters:
            try:
                refused = await sink.send(letters)
            except BrokerUnreachable as error:
                if self._is_stopping:
                    raise
                await self._wait(letters, str(error))
                continue
            told = [(one, why) for one, why in zip(letters, refused, strict=True) if why]
            lost += [one for one, why in told if why.is_final]
            letters = [one for one, why in told if not why.is_final]
            if letters:
                if self._is_stopping:
                    raise BrokerUnreachable(told[0][1].reason)
                await self._wait(letters, told[0][1].reason)
        self._tally.trouble.pop(_WHO, None)
        return lost

    async def _wait(self, letters: Sequence[Record], reason: str) -> None:
        if self._tally.is_news(_WHO, reason):
            _log.warning("%d dead letters wait: %s", len(letters), reason)
        await asyncio.sleep(_AGAIN_S)
