"""Turns: when small calls of the store begin, so that they combine into few larger calls.

A call of a store that syncs costs as much as a hundred messages in it. Calls that come while one is
under way are gathered, and begin together when it has ended. Calls of one turn of the event loop
always begin together, and the only caller of a queue never waits. Large calls begin at once, so
that the disk has work while the next call is prepared.
"""

import asyncio

#: A call of this many messages begins without waiting for others.
ENOUGH = 128


class Turn:
    """One call: its number of messages, how often others went first, and its future."""

    __slots__ = ("_begun", "count", "is_counted", "passed")

    def __init__(self) -> None:
        self.count = 0
        self.passed = 0
        self.is_counted = False
        self._begun: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Start the call, if it waits."""
        if self._begun is not None and not self._begun.done():
            self._begun.set_result(None)

    async def wait(self) -> None:
        """Return when it may begin."""
        self._begun = asyncio.get_running_loop().create_future()
        await self._begun


class Turns:
    """Counts the running small calls; at most ``most`` turns of them run at a time."""

    def __init__(self) -> None:
        self.most = 1
        self._is_turn = False
        self._under_way = 0
        self._waiting: list[Turn] = []

    def note(self, turn: Turn) -> None:
        """Say that a call which may wait has become larger."""
        if turn.count >= ENOUGH:
            turn.begin()

    async def come(self, turn: Turn) -> None:
        """Return when a call may begin; :meth:`end` says that it has ended."""
        if turn.count < ENOUGH and not (self._is_turn or self._under_way < self.most):
            self._waiting.append(turn)
            await turn.wait()
        turn.is_counted = turn.count < ENOUGH
        self._under_way += turn.is_counted
        if turn.is_counted and not self._is_turn:
            self._is_turn = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def end(self, turn: Turn) -> None:
        """Record that a call has ended, and start the calls that waited for it."""
        self._under_way -= turn.is_counted
        if self._waiting and self._under_way < self.most:
            waiting, self._waiting = self._waiting, []
            for other in waiting:
                other.begin()

    def _end_turn(self) -> None:
        self._is_turn = False
