"""Shares: the part of a server's limits that one token may use, so that others have room."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from dwell.errors import ServerBusy
from dwell.server.inflight import InFlight

#: How many requests of one token may look through much at a time.
_MOST_LOOKS = 2


class Share(InFlight):
    """The requests of one token that are under way. They count for the server, too."""

    def __init__(self, whose: str, server: InFlight, most_waiting: int, percent: int) -> None:
        super().__init__(_part(server.most_requests, percent), _part(server.most_bytes, percent))
        self.whose = whose
        self.most_waiting = _part(most_waiting, percent)
        self.waiting = self.watching = 0
        self._percent = percent
        self._server = server
        self.looks = asyncio.Semaphore(_MOST_LOOKS)
        if server.memory is not None:
            # The tokens share this memory.
            self.answers = server.answers

    def join(self) -> None:
        """Count in a request that the server has counted already; raises ServerBusy."""
        super().enter()

    def enter(self, size_bytes: int = 0, requests: int = 1) -> None:
        """Count requests in, here and at the server; raises ServerBusy or StoreFull."""
        super().enter(size_bytes, requests)
        try:
            self._server.enter(size_bytes, requests)
        except BaseException:
            super().leave(size_bytes, requests)
            raise

    def keep_topics(self, topics: int) -> int:
        """Count the memory of a wait on topics, here and at the server; raises ServerBusy."""
        size_bytes = super().keep_topics(topics)
        try:
            return self._server.keep_topics(topics)
        except BaseException:
            super().leave(size_bytes, 0)
            raise

    def hold(self, size_bytes: int) -> None:
        """Count memory that is kept after a request, here and at the server."""
        super().hold(size_bytes)
        self._server.hold(size_bytes)

    def check_room(self) -> None:
        """Refuse a request that would keep memory without room, here or at the server."""
        super().check_room()
        self._server.check_room()

    def check_memory(self, size_bytes: int) -> None:
        """Refuse an answer that there is no memory for; raises StoreFull."""
        self._server.check_memory(size_bytes)

    def keep(self, size_bytes: int) -> None:
        """Count an unread answer, here and at the server."""
        super().keep(size_bytes)
        self._server.keep(size_bytes)

    def leave(self, size_bytes: int = 0, requests: int = 1) -> None:
        """Count requests out again, here and at the server."""
        super().leave(size_bytes, requests)
        self._server.leave(size_bytes, requests)

    async def enter_look(self) -> None:
        """Return when it is the turn of a request of this token to look through much."""
        await super().enter_look()
        try:
            await self._server.enter_look()
        except BaseException:
            super().leave_look()
            raise

    def leave_look(self) -> None:
        """End a look, so that the next request may look, of this token and of all."""
        super().leave_look()
        self._server.leave_look()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Count one request out for the length of a block, as it only waits there."""
        with self._server.left(), super().left(), self.wait():
            yield

    def check_waiting(self) -> None:
        """Refuse one waiting taker more than this token may have; raises ServerBusy."""
        if self.waiting >= self.most_waiting:
            raise ServerBusy(
                f"{self.whose}{self.waiting} takers wait, at most {self.most_waiting} may"
            )

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Count one taker in that waits, for the length of a block."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    @contextmanager
    def watch(self, most: int) -> Iterator[None]:
        """Count one stream in that watches, for the length of a block; raises ServerBusy.

        Of all streams there are ``most``, and this token may have its part.
        """
        part = _part(most, self._percent)
        if self.watching >= part:
            raise ServerBusy(f"{self.whose}{self.watching} streams are watched, at most {part} may")
        self.watching += 1
        try:
            yield
        finally:
            self.watching -= 1


def _part(most: int, percent: int) -> int:
    return max(most * percent // 100, 1)
