"""Waiting: connections that wait for jobs of the same topics share one waiting take.

Who waits costs an entry in a dict, and a timer if there is a time at which it should be told. What
comes is handed out to those who have waited longest.
"""

import asyncio
from typing import Protocol

from dwell.batch.batch import Batch
from dwell.given.values import Millis
from dwell.message import MAX_BATCH_MESSAGES
from dwell.server.beanstalk.hall import Hall
from dwell.server.beanstalk.session import Session

#: The longest wait that is asked of the queue or of a timer at a time.
LONGEST_MS = 24 * 3_600_000


class Host(Protocol):
    """What decides about those who wait."""

    def serve(self, room: "Room", batch: Batch) -> None:
        """Hand out what came."""

    def wake(self, session: Session) -> None:
        """Look after a session whose time has come; it does not wait any more."""

    def fail(self, session: Session, error: Exception) -> None:
        """Tell a session what went wrong; it does not wait any more."""


class Room:
    """Those who wait for jobs of the same topics, the longest first."""

    __slots__ = ("is_stale", "task", "timers", "topics")

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self.timers: dict[Session, asyncio.TimerHandle | None] = {}
        self.task: asyncio.Task[None] | None = None
        self.is_stale = False

    @property
    def wanted(self) -> int:
        """How many jobs they would take together."""
        wishes = (session.wish for session in self.timers)
        return min(sum(wish.left for wish in wishes if wish is not None), MAX_BATCH_MESSAGES)


class Waiting:
    """All rooms of one port."""

    def __init__(self, hall: Hall, host: Host) -> None:
        self._hall = hall
        self._host = host
        self._queue = hall.service.queue
        self._rooms: dict[tuple[str, ...], Room] = {}
        self._room_of: dict[Session, Room] = {}

    def is_used(self, topics: tuple[str, ...]) -> bool:
        """Tell whether somebody waits for these topics, so that it is no use to ask at once."""
        room = self._rooms.get(topics)
        return room is not None and bool(room.timers)

    def enter(self, session: Session, topics: tuple[str, ...], wait_ms: int | None) -> None:
        """Let a session wait; after ``wait_ms`` it is looked after."""
        room = self._rooms.get(topics)
        if room is None:
            room = self._rooms[topics] = Room(topics)
        room.timers[session] = None if wait_ms is None else self._timer(session, wait_ms)
        self._room_of[session] = room
        session.is_waiting = True
        self._hall.waiting.add(session)
        if room.task is None and topics:
            room.task = self._hall.rounds.spawn(self._feed(room))

    def serve(self, session: Session) -> None:
        """Let a session wait no more, as it is told something."""
        room = self._room_of.pop(session)
        session.is_waiting = False
        timer = room.timers.pop(session)
        if timer is not None:
            timer.cancel()
        self._hall.waiting.discard(session)
        if not room.timers and room.task is None:
            del self._rooms[room.topics]

    def leave(self, session: Session) -> None:
        """Let a session wait no more; a take that is under way must not take for it."""
        room = self._room_of.get(session)
        if room is not None:
            self.serve(session)
            if room.task is not None and not room.is_stale:
                room.is_stale = True
                asyncio.get_running_loop().call_soon(self._renew, room)

    # --- inside ---------------------------------------------------------------------------------

    def _timer(self, session: Session, wait_ms: int) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        return loop.call_later(min(wait_ms, LONGEST_MS) / 1000, self._on_time, session)

    def _on_time(self, session: Session) -> None:
        self.leave(session)
        self._host.wake(session)

    def _renew(self, room: Room) -> None:
        """End the take that is under way, and begin one for those who are left."""
        room.is_stale = False
        if room.task is None:
            return
        room.task.cancel()
        if room.timers:
            room.task = self._hall.rounds.spawn(self._feed(room))
        else:
            self._close(room)

    async def _feed(self, room: Room) -> None:
        """Take jobs for those in the room, until nobody is left."""
        while room.timers:
            try:
                batch = await self._queue.take(room.topics, room.wanted, wait=Millis(LONGEST_MS))
            except Exception as error:
                self._fail(room, error)
            else:
                self._host.serve(room, batch)
        self._close(room)

    def _close(self, room: Room) -> None:
        room.task = None
        del self._rooms[room.topics]

    def _fail(self, room: Room, error: Exception) -> None:
        for session in list(room.timers):
            self.serve(session)
            self._host.fail(session, error)
