"""Steps: when rounds of commands begin, so that connections which do the same do it together.

The queue's own turns let all begin that have gathered, which is best for callers of many topics, as
they share one sync. Here nearly all commands are of three kinds, and each connection waits for its
reply: ``bench beanstalk --mode unpipelined`` does a quarter more where the largest round goes
first, and waits for its company.
"""

import asyncio

from dwell.queue.turns import ENOUGH, Turn, Turns

#: How many passes of the event loop may bring nothing while company is expected.
_IDLE_PASSES = 2
#: How often a round lets larger rounds go first.
_MOST_PASSED = 3


class Steps(Turns):
    """Runs small rounds one after another, the largest first.

    As many commands as were answered or wait are expected back: a smaller round waits while each
    pass of the event loop brings more, and for two passes that bring nothing. The only connection
    never waits for others.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_busy = False
        self._is_watching = False
        self._expected = 1
        self._seen = self._idle = 0

    async def come(self, turn: Turn) -> None:
        """Return when a round may begin; :meth:`end` says that it has ended."""
        if turn.count >= ENOUGH:
            return
        if self._is_busy or self._waiting or turn.count < self._expected:
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
            turn.is_counted = self._is_busy = True

    def end(self, turn: Turn) -> None:
        """Record that a round has ended; the next waiting round begins."""
        if turn.is_counted:
            self._is_busy = False
            self._expected = turn.count + self._gathered
            self._watch()

    def _leave(self, turn: Turn) -> None:
        """Remove a round from the waiting, as it has become large or was cancelled."""
        if turn in self._waiting:
            self._waiting.remove(turn)

    @property
    def _gathered(self) -> int:
        return sum(turn.count for turn in self._waiting)

    def _watch(self) -> None:
        """Check the gathered rounds after the event loop has handed over the new commands."""
        if self._waiting and not (self._is_busy or self._is_watching):
            self._is_watching = True
            self._seen, self._idle = -1, 0
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._is_watching = False
        if self._is_busy or not self._waiting:
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
        first = max(self._waiting, key=_weight)
        self._waiting.remove(first)
        for other in self._waiting:
            other.passed += 1
        # Until its task runs nothing else may begin.
        self._is_busy = first.is_counted = True
        first.begin()


def _weight(turn: Turn) -> tuple[int, int]:
    # By size alone, those that come again and again would keep a small one waiting for ever.
    return turn.passed if turn.passed >= _MOST_PASSED else 0, turn.count
