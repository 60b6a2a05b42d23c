"""Histories: the events of single jobs through this port that their messages do not record.

A message knows how often it was taken since it was put or kicked. How those takes ended, and the
delay of the job, is kept here, in memory. A job has an entry only if something must be kept: a job
that was put without a delay, reserved and deleted has none.
"""

from collections.abc import Iterable, Sequence

from dwell.message import Message, State

#: How many jobs are remembered at least; of at most twice as many there is something here.
MOST_JOBS = 50_000


class History:
    """The history of one job.

    ``told`` is how many takes since the last kick are known to have ended by a release or a bury;
    ``reserves`` and ``timeouts`` count the takes before that kick.
    """

    __slots__ = ("buries", "delay_s", "kicks", "releases", "reserves", "timeouts", "told")

    def __init__(self) -> None:
        self.delay_s: int | None = None
        self.releases = self.buries = self.kicks = 0
        self.reserves = self.timeouts = self.told = 0


class Histories:
    """The histories of jobs, by their numbers; the least used jobs are forgotten."""

    def __init__(self, most_jobs: int = MOST_JOBS) -> None:
        self._most_jobs = most_jobs
        # Two generations: entries move to the newer one on use, which becomes the older one when it
        # is full. That nearly forgets the least recently used, and costs one look-up.
        self._newer: dict[int, History] = {}
        self._older: dict[int, History] = {}
        self._first = 0

    def put(self, numbers: Sequence[int], delays_s: Sequence[int]) -> None:
        """Note jobs that were just put, and how long each waits; the number 0 is no job."""
        if not self._first:
            self._first = min(filter(None, numbers), default=0)
        if not any(delays_s):
            return
        for number, delay_s in zip(numbers, delays_s, strict=True):
            if delay_s and number:
                self._of(number).delay_s = delay_s

    def released(self, number: int, delay_s: int, *, is_buried: bool) -> None:
        """Note that a job was released; the release buries a job without attempts left."""
        history = self._of(number)
        history.delay_s = delay_s
        history.releases += 1
        history.buries += is_buried
        history.told += 1

    def buried(self, number: int) -> None:
        """Note that a job was buried."""
        history = self._of(number)
        history.buries += 1
        history.told += 1

    def kicked(self, number: int) -> None:
        """Note that a job was kicked that was delayed."""
        self._of(number).kicks += 1

    def begun_anew(self, number: int, attempt: int, *, is_kick: bool) -> None:
        """Note that a job which had been taken ``attempt`` times is no longer buried.

        Its message counts the takes from 0 again.
        """
        history = self._of(number)
        self._settle(number, history, attempt)
        history.kicks += is_kick
        history.reserves += attempt
        history.told = 0

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget jobs that are gone."""
        if self._newer or self._older:
            for number in numbers:
                self._newer.pop(number, None)
                self._older.pop(number, None)

    def counts(self, message: Message) -> dict[str, int]:
        """Return the counts of a job, by their names in its document."""
        number = message.number
        ended = message.attempt - (message.state is State.LEASED)
        history = self._find(number)
        if history is None:
            history = History()
        timeouts, releases = self._ends(number, history, ended)
        return {
            "reserves": history.reserves + message.attempt,
            "timeouts": timeouts,
            "releases": releases,
            "buries": history.buries,
            "kicks": history.kicks,
        }

    def delay_s(self, number: int) -> int | None:
        """Return how long a job was to wait when it was put or released last; None if unknown."""
        history = self._find(number)
        return None if history is None else history.delay_s

    def _settle(self, number: int, history: History, ended: int) -> None:
        history.timeouts, history.releases = self._ends(number, history, ended)

    def _ends(self, number: int, history: History, ended: int) -> tuple[int, int]:
        """Return how many takes ended by a lapse, and how many by a release.

        Takes without a known end lapsed. But if the job is older than the first put here, nobody
        knows: then they count as releases, so that a limit on releases holds after a restart, too.
        """
        untold = max(ended - history.told, 0)
        if self._first and number >= self._first:
            return history.timeouts + untold, history.releases
        return history.timeouts, history.releases + untold

    def _find(self, number: int) -> History | None:
        history = self._newer.get(number)
        if history is None and (history := self._older.pop(number, None)) is not None:
            self._keep(number, history)
        return history

    def _of(self, number: int) -> History:
        history = self._find(number)
        if history is None:
            history = History()
            self._keep(number, history)
        return history

    def _keep(self, number: int, history: History) -> None:
        if len(self._newer) >= self._most_jobs:
            self._older, self._newer = self._newer, {}
        self._newer[number] = history
