"""Window: limits the memory of large answers that are being made or sent at a time."""

import asyncio
from collections import deque
from typing import TypeAlias

from dwell.errors import ServerBusy
from dwell.message import MAX_BATCH_BYTES

#: Room for two answers of the largest size: while one is made from its messages, one is sent.
MOST_BYTES = 3 * MAX_BATCH_BYTES
#: How long an answer waits for others to be sent.
PATIENCE_S = 10.0

_Waiter: TypeAlias = tuple[int, "asyncio.Future[None]"]


class Window:
    """Reserves bytes, in the order of the requests.

    An answer that is larger than the window is admitted when no other has bytes reserved.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.size_bytes = self._held_bytes = 0
        self._waiting: deque[_Waiter] = deque()

    async def enter(self, size_bytes: int, *, is_held: bool = False) -> None:
        """Reserve bytes, waiting for others to release theirs; raises ServerBusy after a timeout.

        ``is_held``: the bytes are in memory already, so only one answer's worth may wait.
        """
        if self.has_room(size_bytes):
            self.size_bytes += size_bytes
            return
        if is_held and self._held_bytes + size_bytes > 2 * MAX_BATCH_BYTES:
            raise self._refusal()
        self._held_bytes += is_held * size_bytes
        try:
            await self._wait(size_bytes)
        finally:
            self._held_bytes -= is_held * size_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Tell whether the bytes can be reserved at once."""
        return not self._waiting and self._fits(size_bytes)

    async def _wait(self, size_bytes: int) -> None:
        future = asyncio.get_running_loop().create_future()
        waiter = size_bytes, future
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await future
        except BaseException as error:
            if future.done() and not future.cancelled():
                self.leave(size_bytes)
            elif waiter in self._waiting:
                self._waiting.remove(waiter)
                self._let_in()
            if isinstance(error, TimeoutError):
                raise self._refusal() from None
            raise

    def _refusal(self) -> ServerBusy:
        return ServerBusy(
            f"answers of {self.size_bytes} bytes are not sent yet, at most "
            f"{self.most_bytes} may be: read them, or come again later"
        )

    def change(self, before_bytes: int, size_bytes: int) -> None:
        """Reserve another number of bytes, whether there are as many or not."""
        self.size_bytes += size_bytes - before_bytes
        self._let_in()

    def leave(self, size_bytes: int) -> None:
        """Release reserved bytes."""
        self.size_bytes -= size_bytes
        self._let_in()

    def _fits(self, size_bytes: int) -> bool:
        return not self.size_bytes or self.size_bytes + size_bytes <= self.most_bytes

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size_bytes, future = self._waiting.popleft()
            if not future.done():
                self.size_bytes += size_bytes
                future.set_result(None)
