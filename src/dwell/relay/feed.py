"""The queue's own events into a topic of a broker, as they happen: change data capture.

Each event is a record: its key is the id of the message, so that the events of one message keep
their order, and its body an object of JSON with the fields of :class:`dwell.batch.events.Event`.
The position of the feed is in the queue itself, as a message that never falls due, and is written
after the broker has everything before it. So each event arrives at least once, and ``position``
identifies repeated events.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from dwell.batch.events import Event, EventPage
from dwell.errors import DwellError, InvalidInput, InvalidSettings, StoreClosed
from dwell.given.values import Millis
from dwell.message import MAX_DELAY_MS
from dwell.queue import Queue
from dwell.relay.contract import BrokerUnreachable, Sink
from dwell.relay.patience import patiently
from dwell.relay.record import Record, Refusal
from dwell.relay.tally import Tally

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: How often the queue is polled for new events.
_LOOK_S = 0.05
_NAME = "position"
_YEAR_MS = 366 * 24 * 3_600_000


class _Place(msgspec.Struct, frozen=True):
    """The position of a feed: the position of the next event, and the history up to there."""

    position: int = 0
    history: str = ""


_encoder = msgspec.json.Encoder()
_places = msgspec.json.Decoder(_Place)


class Feed:
    """Sends every event of an open queue to one topic; ``hold`` is the topic of its position.

    One process at a time: a second one would send everything again.
    """

    def __init__(self, queue: Queue, sink: Sink, *, to: str, hold: str, batch: int) -> None:
        self._queue = queue
        self._sink = sink
        self._to = to
        self._hold = hold
        self._batch = batch
        self._stopping = asyncio.Event()
        self._is_running = False
        self.tally = Tally()

    async def run(self, stopping: asyncio.Event) -> None:
        """Send until told to stop; raises errors that no retry mends."""
        self._stopping = stopping
        self._is_running = True
        try:
            place = await self._begin()
            while not stopping.is_set():
                place = await self._go_on(place)
        except (InvalidInput, StoreClosed):
            raise
        except DwellError:
            if not stopping.is_set():
                raise
        finally:
            self._is_running = False
            await self._sink.close()

    def why_not_ready(self) -> str | None:
        """Return the present trouble, or None without any."""
        if not self._is_running:
            return "not running"
        return next(iter(self.tally.trouble.values()), None)

    async def _begin(self) -> _Place:
        """Return where to continue, once the broker and the queue are available."""
        await self._patiently("start", self._sink.open)
        found = await self._patiently("start", lambda: self._queue.get(self._hold, _NAME))
        return _Place() if found is None else _places.decode(found.body)

    async def _go_on(self, place: _Place) -> _Place:
        """Send the next events; return the position after them."""
        page = await self._patiently(
            "queue", lambda: self._queue.events(place.position, self._batch)
        )
        self._check(place, page)
        if not len(page.events):
            await self._pause(_LOOK_S)
            return place
        self.tally.read += len(page.events)
        await self._send(page.events)
        after = _Place(page.next_position, page.history)
        # The write of the position is an event as well, which is sent, but not a reason for another
        # write.
        if set(page.events.topics) != {self._hold}:
            await self._save(after)
        return after

    def _check(self, place: _Place, page: EventPage) -> None:
        """Warn about lost events; raises InvalidSettings if other events are in their place."""
        is_another = bool(place.history and page.since and place.history != page.since)
        if place.position > page.end_position:
            # The store has lost the end of its log, and will reuse these positions for other
            # events.
            is_another = True
        if is_another:
            raise InvalidSettings(
                f"--hold: the events before position {place.position} are not those that were "
                "sent, as after a backup was restored or a log lost its end; cancel "
                f"{_NAME!r} in the topic {self._hold} to send all that are there, or name another "
                "topic"
            )
        if place.position < page.first_position:
            lost = page.first_position - place.position
            self.tally.lost += lost
            _log.warning("%d events from position %d on are gone", lost, place.position)

    async def _send(self, events: Sequence[Event]) -> None:
        records = [self._record(event) for event in events]

        async def send() -> None:
            refused = [why for why in await self._sink.send(records) if why is not None]
            if refused:
                raise _unsent(refused)

        await self._patiently("broker", send)
        self.tally.sent += len(records)

    def _record(self, event: Event) -> Record:
        fields = {**msgspec.structs.asdict(event), "kind": str(event.kind)}
        return Record(self._to, "", _encoder.encode(fields), event.id.encode())

    async def _save(self, place: _Place) -> None:
        await self._patiently(
            "queue",
            lambda: self._queue.put(
                self._hold,
                msgspec.json.encode(place),
                id=_NAME,
                delay=Millis(MAX_DELAY_MS - _YEAR_MS),
                on_conflict="replace",
            ),
        )

    async def _patiently(self, who: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work until it succeeds; raises its last error when told to stop."""
        return await patiently(
            work, self.tally, who, is_over=self._stopping.is_set, pause=self._pause
        )

    async def _pause(self, seconds: float) -> None:
        """Wait for a time, or until told to stop."""
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return


def _unsent(refused: Sequence[Refusal]) -> DwellError:
    """Return the error to raise: InvalidSettings if no later attempt can succeed."""
    final = next((refusal for refusal in refused if refusal.is_final), None)
    if final is not None:
        return InvalidSettings(f"--to: {final.reason}")
    return BrokerUnreachable(refused[0].reason)
