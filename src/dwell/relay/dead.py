"""Dead letters: records without a due, target or broker, with the reason."""

import logging
from collections.abc import Sequence

from dwell.given.scopedid import short_id
from dwell.message import REASON_HEADER
from dwell.relay.contract import BrokerUnreachable, Sink
from dwell.relay.envelope import FROM
from dwell.relay.record import Record, Refusal
from dwell.relay.tally import Tally

_log = logging.getLogger(__name__)

_WHO = "dead letters"
#: How many characters of a reason are kept.
_MOST_REASON = 1_000

#: A record and the letter that is sent in its place.
_Pair = tuple[Record, Record]


class DeadLetters:
    """The topic of a sink for dead letters; ``last`` takes the letters that it refuses.

    With ``are_whole`` a letter has all of its record, or is not sent.
    """

    def __init__(
        self, sink: Sink, topic: str, last: Sink, tally: Tally, *, are_whole: bool = False
    ) -> None:
        self._sink = sink
        self._forms = (_whole,) if are_whole else (_whole, _bare, _without_body)
        self._are_whole = are_whole
        self._tally = tally
        self._last = last
        self._told = set[str]()
        self.topic = topic

    def letter(self, record: Record, reason: str) -> Record:
        """Return the letter for a record."""
        return letter_of(record, self.topic, reason)

    async def send(
        self, dead: Sequence[tuple[Record, str]]
    ) -> tuple[list[Record], list[tuple[Record, str]]]:
        """Send letters of records; return the records whose letters cannot be kept now, or ever.

        If a letter is refused for good, the last sink keeps at least its reason, unless letters
        have to be whole: then the record is returned with the reason. A letter that its topic is
        set to drop is lost, and counted.
        """
        letters = [(record, self.letter(record, reason)) for record, reason in dead]
        refused, left = await self._try(self._sink, letters)
        for form in self._forms:
            refused, more = await self._try(
                self._last, [(record, form(letter)) for record, letter in refused]
            )
            left += more
        unkept = [(record, _reason_of(letter)) for record, letter in refused]
        if not left:
            self._tally.trouble.pop(_WHO, None)
        if self._are_whole:
            return left, unkept
        self._tally.dropped += len(unkept)
        for record, reason in unkept:
            _log.error(
                "%s: dropped, as no dead letter of it can be kept: %s", record.origin, reason
            )
        return left, []

    async def _try(self, sink: Sink, pairs: list[_Pair]) -> tuple[list[_Pair], list[Record]]:
        """Send letters; return those refused for good, and the records of those refused for now."""
        if not pairs:
            return [], []
        try:
            refused = await sink.send([letter for _, letter in pairs])
        except BrokerUnreachable as error:
            self._note(len(pairs), str(error))
            return [], [record for record, _ in pairs]
        told = [(pair, why) for pair, why in zip(pairs, refused, strict=True) if why is not None]
        left = [record for (record, _), why in told if not why.is_final]
        if left:
            self._note(len(left), next(why.reason for _, why in told if not why.is_final))
        self._note_dropped([(pair, why) for pair, why in told if why.is_dropped])
        return [pair for pair, why in told if why.is_final and not why.is_dropped], left

    def _note_dropped(self, dropped: Sequence[tuple[_Pair, Refusal]]) -> None:
        """Count letters that their topic is set to drop; log each reason once."""
        self._tally.dropped += len(dropped)
        for (record, letter), why in dropped:
            if why.reason not in self._told:
                self._told.add(why.reason)
                _log.warning(
                    "dead letters are dropped, the first of %s (%s): %s",
                    record.origin,
                    _reason_of(letter),
                    why.reason,
                )

    def _note(self, count: int, reason: str) -> None:
        if self._tally.is_news(_WHO, reason):
            _log.warning("%d dead letters wait: %s", count, reason)


def letter_of(record: Record, topic: str, reason: str) -> Record:
    """Return the letter for a record: the record, the reason, and its origin."""
    said = [
        (REASON_HEADER, reason[:_MOST_REASON].encode("utf-8", "backslashreplace")),
        (FROM, record.origin.encode("utf-8", "backslashreplace")),
    ]
    return Record(
        topic,
        short_id(record.id),
        record.body,
        record.key,
        [*record.headers, *said],
        properties=record.properties,
    )


def _reason_of(letter: Record) -> str:
    return (dict(letter.headers)[REASON_HEADER] or b"").decode()


def _whole(letter: Record) -> Record:
    return letter


def _bare(letter: Record) -> Record:
    """Return a letter without key and headers, because the body is worth more."""
    return Record(letter.topic, letter.id, letter.body, None, letter.headers[-2:])


def _without_body(letter: Record) -> Record:
    return Record(letter.topic, letter.id, None, None, letter.headers)
