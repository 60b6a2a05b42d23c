"""Turns: when small calls of the store begin, so that they become few and larger ones.

A call of a store that syncs costs as much as a hundred messages in it. While one is under way what
comes gathers; when it has ended the largest of what has gathered begins, and the others are passed
over a few times at most. As many messages as were answered or wait are expected back: a call that
is smaller waits while each pass of the event loop brings more, and for two passes that bring
nothing. By that callers who do the same end up in step; one who is alone waits for nobody. Large
calls begin at once, so that the disk has work while the next one is made.
"""

import asyncio

#: A call of so many messages needs no company.
ENOUGH = 128
#: How many passes of the event loop may bring nothing while company is expected.
_IDLE_PASSES = 2
#: How often a call lets larger ones go first.
_MOST_PASSED = 3


class Turn:
    """One call: of how many messages, how often others went first, and where it waits."""

    __slots__ = ("_begun", "count", "is_counted", "passed")

    def __init__(self) -> None:
        self.count = 0
        self.passed = 0
        self.is_counted = False
        self._begun: asyncio.Future[None] | None = None

    @property
    def weight(self) -> tuple[bool, int]:
        """How much it is its turn."""
        return self.passed >= _MOST_PASSED, self.count

    def begin(self) -> None:
        """Let it begin, if it waits."""
        if self._begun is not None and not self._begun.done():
            self._begun.set_result(None)

    async def wait(self) -> None:
        """Return when it may begin."""
        self._begun = asyncio.get_running_loop().create_future()
        await self._begun


class Turns:
    """Lets small calls begin one after another, where the store is better off (``is_one``)."""

    def __init__(self) -> None:
        self.is_one = True
        self._is_under_way = False
        self._is_watching = False
        self._expected = 1
        self._seen = self._idle = 0
        self._waiting: list[Turn] = []

    def note(self, turn: Turn) -> None:
        """Say that a call which may wait has become larger."""
        if turn.count >= ENOUGH:
            turn.begin()

    async def come(self, turn: Turn) -> None:
        """Return when a call may begin; :meth:`end` says that it has ended."""
        if not self.is_one or turn.count >= ENOUGH:
            return
        if self._is_under_way or self._waiting or turn.count < self._expected:
            self._waiting.append(turn)
            self._watch()
            try:
                await turn.wait()
            except BaseException:
                self._leave(turn)
                self.end(turn)
                raise
            self._leave(turn)
        if turn.count < ENOUGH:
            turn.is_counted = self._is_under_way = True

    def end(self, turn: Turn) -> None:
        """Say that a call has ended; the next one of those that wait begins."""
        if turn.is_counted:
            self._is_under_way = False
            self._expected = turn.count + self._gathered
            self._watch()

    def _leave(self, turn: Turn) -> None:
        """Let a call wait no more that became large meanwhile, or was cut off."""
        if turn in self._waiting:
            self._waiting.remove(turn)

    @property
    def _gathered(self) -> int:
        return sum(turn.count for turn in self._waiting)

    def _watch(self) -> None:
        """Look at what has gathered, once the event loop has handed over what came meanwhile."""
        if self._waiting and not (self._is_under_way or self._is_watching):
            self._is_watching = True
            self._seen, self._idle = -1, 0
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._is_watching = False
        if self._is_under_way or not self._waiting:
            return
        gathered = self._gathered
        self._idle = self._idle + 1 if gathered == self._seen else 0
        self._seen = gathered
        if gathered >= self._expected or self._idle >= _IDLE_PASSES:
            self._begin_largest()
        else:
            self._is_watching = True
            asyncio.get_running_loop().call_soon(self._look)

    def _begin_largest(self) -> None:
        first = max(self._waiting, key=lambda turn: turn.weight)
        self._waiting.remove(first)
        for other in self._waiting:
            other.passed += 1
        # Until its task runs nothing else may begin.
        self._is_under_way = first.is_counted = True
        first.begin()
