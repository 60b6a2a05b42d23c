"""Waiting: connections that wait for jobs of the same topics share one waiting take.

Who waits costs an entry in a dict. What comes is handed out to those who have waited longest. The
take ends by itself when the first of them has to be told something, and not by being cut off: what
falls due at that moment is then theirs.
"""

import asyncio
import math
from typing import Protocol

from dwell.batch.batch import Batch
from dwell.given.values import Millis
from dwell.message import MAX_BATCH_MESSAGES
from dwell.server.beanstalk.hall import Hall
from dwell.server.beanstalk.session import Session

#: The longest wait that is asked of the queue at a time.
LONGEST_S = 24 * 3600


class Host(Protocol):
    """What decides about those who wait."""

    def serve(self, room: "Room", batch: Batch) -> None:
        """Hand out what came."""

    def wake(self, session: Session) -> None:
        """Look after a session whose time has come; it does not wait any more."""

    def fail(self, session: Session, error: Exception) -> None:
        """Tell a session what went wrong; it does not wait any more."""


class Room:
    """Those who wait for jobs of the same topics, the longest first.

    ``ends`` says when each has to be told something, in the time of the event loop; ``until`` is
    when the take that is under way ends.
    """

    __slots__ = ("ends", "is_stale", "task", "topics", "until")

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self.ends: dict[Session, float] = {}
        self.until = 0.0
        self.task: asyncio.Task[None] | None = None
        self.is_stale = False

    @property
    def wanted(self) -> int:
        """How many jobs they would take together."""
        wishes = (session.wish for session in self.ends)
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
        return room is not None and bool(room.ends)

    def enter(self, session: Session, topics: tuple[str, ...], wait_ms: int | None) -> None:
        """Let a session wait; after ``wait_ms`` it is looked after."""
        room = self._rooms.get(topics)
        if room is None:
            room = self._rooms[topics] = Room(topics)
        loop = asyncio.get_running_loop()
        end = math.inf if wait_ms is None else loop.time() + wait_ms / 1000
        room.ends[session] = end
        self._room_of[session] = room
        session.is_waiting = True
        self._hall.waiting.add(session)
        if room.task is None:
            room.task = self._hall.rounds.spawn(self._feed(room))
        elif end < room.until:
            self._make_stale(room)

    def serve(self, session: Session) -> None:
        """Let a session wait no more, as it is told something."""
        room = self._room_of.pop(session)
        session.is_waiting = False
        del room.ends[session]
        self._hall.waiting.discard(session)

    def leave(self, session: Session) -> None:
        """Let a session wait no more; a take that is under way must not take for it."""
        room = self._room_of.get(session)
        if room is not None:
            self.serve(session)
            self._make_stale(room)

    # --- inside ---------------------------------------------------------------------------------

    def _make_stale(self, room: Room) -> None:
        if room.task is not None and not room.is_stale:
            room.is_stale = True
            asyncio.get_running_loop().call_soon(self._renew, room)

    def _renew(self, room: Room) -> None:
        """End the take that is under way, and begin one for those who are left."""
        room.is_stale = False
        if room.task is None:
            return
        room.task.cancel()
        if room.ends:
            room.task = self._hall.rounds.spawn(self._feed(room))
        else:
            self._close(room)

    async def _feed(self, room: Room) -> None:
        """Take jobs for those in the room, until nobody is left."""
        loop = asyncio.get_running_loop()
        while room.ends:
            room.until = min(min(room.ends.values()), loop.time() + LONGEST_S)
            wait_ms = max(math.ceil((room.until - loop.time()) * 1000), 0)
            try:
                await self._take(room, wait_ms)
            except Exception as error:
                self._fail(room, error)
            for session in [one for one, end in room.ends.items() if end <= loop.time()]:
                self.serve(session)
                self._host.wake(session)
        self._close(room)

    async def _take(self, room: Room, wait_ms: int) -> None:
        if room.topics:
            batch = await self._queue.take(room.topics, room.wanted, wait=Millis(wait_ms))
            self._host.serve(room, batch)
        else:
            # All that they watch is paused.
            await asyncio.sleep(wait_ms / 1000)

    def _close(self, room: Room) -> None:
        room.task = None
        del self._rooms[room.topics]

    def _fail(self, room: Room, error: Exception) -> None:
        for session in list(room.ends):
            self.serve(session)
            self._host.fail(session, error)
