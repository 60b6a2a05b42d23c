"""In flight: limits the requests of a server and their memory, so that no queue in it can grow."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from dwell.errors import ServerBusy
from dwell.server.memory import Memory
from dwell.server.window import Window

#: The memory that a wait holds for each of its topics.
WAITING_TOPIC_BYTES = 512
#: Each of them lets others have their turn after some milliseconds, but all of them have theirs in
#: one turn of the event loop.
MOST_LOOKS = 4
#: How many large takes run at a time; each of them may be 16 MiB, or of 10,000 topics.
_MOST_TAKES = 8


class InFlight:
    """Counts requests in flight and their bytes; refuses requests beyond the limits.

    A request that is larger than the limit is admitted when it is alone. ``memory`` refuses as
    well, if the memory of the process is limited.
    """

    def __init__(self, most_requests: int, most_bytes: int, memory: Memory | None = None) -> None:
        self.memory = memory
        self.most_requests = most_requests
        self.most_bytes = most_bytes
        self.requests = 0
        self.size_bytes = 0
        self.refused = 0
        #: How many requests may look through much at a time; the others wait for their turn.
        self.looks = asyncio.Semaphore(MOST_LOOKS)
        self.takes = asyncio.Semaphore(_MOST_TAKES)
        #: The memory for large answers.
        self.answers = Window()
        #: The beginning of its refusals: the token; empty for the server.
        self.whose = ""

    def enter(self, size_bytes: int = 0, requests: int = 1) -> None:
        """Count requests in; raises ServerBusy or StoreFull when there is no room for them."""
        is_over = (
            self.requests + requests > self.most_requests
            or self.size_bytes + size_bytes > self.most_bytes
        )
        # Bytes without a request belong to a request that was counted before.
        others = self.requests - (requests == 0)
        if is_over and others > 0:
            self.refused += requests
            raise self._refusal()
        if self.memory is not None:
            self.memory.check(self.size_bytes + size_bytes)
        self.requests += requests
        self.size_bytes += size_bytes

    def keep_topics(self, topics: int) -> int:
        """Count the memory that a wait on topics holds, and return it; raises ServerBusy."""
        size_bytes = topics * WAITING_TOPIC_BYTES
        if topics and self.size_bytes + size_bytes > self.most_bytes:
            self.refused += 1
            raise self._refusal()
        self.size_bytes += size_bytes
        return size_bytes

    def hold(self, size_bytes: int) -> None:
        """Count memory that is kept after a request, even beyond the limit; may be negative.

        :meth:`check_room` refuses requests that would let it grow.
        """
        self.size_bytes += size_bytes

    def check_room(self) -> None:
        """Refuse a request that would keep memory while there is no room; raises ServerBusy."""
        if self.size_bytes > self.most_bytes:
            self.refused += 1
            raise self._refusal()

    def _refusal(self) -> ServerBusy:
        return ServerBusy(
            f"{self.whose}{self.requests} requests of {self.size_bytes} bytes are under way, "
            f"at most {self.most_requests} of {self.most_bytes} may be: come again later"
        )

    def check_memory(self, size_bytes: int) -> None:
        """Refuse an answer that there is no memory for; raises StoreFull."""
        if self.memory is not None:
            self.memory.check_answer(size_bytes)

    def keep(self, size_bytes: int) -> None:
        """Count an unread answer as a further request, even beyond the limit.

        The answer exists and can no longer be refused; later requests can.
        """
        self.requests += 1
        self.size_bytes += size_bytes

    def leave(self, size_bytes: int = 0, requests: int = 1) -> None:
        """Count requests out again."""
        self.requests -= requests
        self.size_bytes -= size_bytes

    async def enter_look(self) -> None:
        """Return when it is a request's turn to look through much."""
        await self.looks.acquire()

    def leave_look(self) -> None:
        """End a look, so that the next request may look."""
        self.looks.release()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Count one request out for the length of a block, as it only waits there."""
        self.requests -= 1
        try:
            yield
        finally:
            self.requests += 1
