"""A queue of RabbitMQ that is emptied: a relay without a sink, which ends when it is empty.

RabbitMQ does not count arrivals and departures; they are derived from the difference between the
counts at the start and at the end.
"""

import asyncio
from collections.abc import Callable

from dwell.errors import InvalidInput, InvalidUrl
from dwell.given import values
from dwell.queue import Queue
from dwell.relay.house import QueueSink
from dwell.relay.rabbitmq.source import RabbitMQSource
from dwell.relay.relay import Plan, Relay
from dwell.relay.rules import Rules
from dwell.relay.tally import Tally
from dwell.takeover.contract import Counts
from dwell.takeover.takeover import Report

_LOOK_S = 0.3


class Drain:
    """Moves the waiting messages of a RabbitMQ queue to its topic, or ``into`` another.

    A message without a delay is due at once; an invalid message becomes a dead letter, in the topic
    ``dead`` of the queue.
    """

    def __init__(
        self, url: str, queue: Queue, tell: Callable[[Report], None], into: str | None = None
    ) -> None:
        self._source = RabbitMQSource(url)
        rules = Rules(to=into or _topic_of(self._source.queue), default_delay_ms=0, is_named=False)
        letters = QueueSink(queue)
        plan = Plan(dead="takeover-dead")
        self._relay = Relay(queue, plan, rules, source=self._source, sink=None, letters=letters)
        self._tell = tell
        self._stopping = asyncio.Event()
        self.report = Report()

    def stop(self) -> None:
        """Stop moving; work in progress is finished."""
        self._stopping.set()

    async def run(self, *, dry_run: bool = False) -> Report:
        """Move until nothing waits; raises DwellError. With ``dry_run`` only count."""
        self.report.found = Counts(ready=await self._source.count())
        if dry_run:
            await self._source.close()
            return self.report
        running = asyncio.ensure_future(self._relay.run(self._stopping))
        try:
            await self._until_empty(running)
        finally:
            self._stopping.set()
            await running
        await self._close_books()
        return self.report

    async def _until_empty(self, running: "asyncio.Future[None]") -> None:
        """Return when nothing came between two looks, and everything before is held."""
        before = -1
        while not running.done() and not self._stopping.is_set():
            tally = self._relay.tally
            self._note(tally)
            if tally.read == before and not tally.trouble and not await self._source.count():
                # Not the moved messages: a message that cancels another is itself not put.
                self.report.is_whole = tally.read == tally.settled
                if self.report.is_whole:
                    return
            before = tally.read
            await asyncio.wait([running], timeout=_LOOK_S)

    def _note(self, tally: Tally) -> None:
        self.report.put.clear()
        self.report.put.update(tally.held)
        self.report.put["dead"] = tally.dead.total()
        self.report.again = self._source.again
        self._tell(self.report)

    async def _close_books(self) -> None:
        self._note(self._relay.tally)
        assert self.report.found is not None
        left = await self._source.count()
        await self._source.close()
        drift = left + self.report.moved - self.report.found.ready
        self.report.left = Counts(
            ready=left, came=max(drift, 0), gone=self.report.moved + max(-drift, 0)
        )


def _topic_of(queue: str) -> str:
    try:
        return values.topic(queue)
    except InvalidInput as error:
        raise InvalidUrl(f"queue {queue!r:.80}: needs --into, as {error}") from None
