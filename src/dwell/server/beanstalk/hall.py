"""The hall: the shared state of all connections of one port."""

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

from dwell.errors import ServerBusy
from dwell.queue.gather import Rounds
from dwell.queue.schedules.schedule import TOPIC as SCHEDULES
from dwell.server.beanstalk.chosentubes import ChosenTubes
from dwell.server.beanstalk.commands import Run, Verb
from dwell.server.beanstalk.decoder import Heads
from dwell.server.beanstalk.histories import Histories
from dwell.server.beanstalk.refusals import word_of
from dwell.server.beanstalk.rights import RIGHTS
from dwell.server.beanstalk.session import Session
from dwell.server.beanstalk.steps import Steps
from dwell.server.beanstalk.tubes import DEFAULT_TUBE, Pauses, TubeOrder
from dwell.server.inflight import WAITING_TOPIC_BYTES, InFlight
from dwell.server.service import Service

#: The part of one session in a round. A plain tuple, since one is made for every run.
Part: TypeAlias = tuple[Session, Run]

#: Does the parts of a round, which have a key in common, and answers the sessions.
Work: TypeAlias = Callable[[Any, Sequence[Part]], Awaitable[None]]

#: How many topics are counted; of those beyond, nothing is kept.
_MOST_TOPICS = 100_000
#: How many tubes of sessions that are gone are dropped in a turn of the event loop.
_DROPPED_AT_ONCE = 2_000


class Total:
    """The counts of one topic through this port since it began."""

    __slots__ = ("deletes", "pauses", "puts")

    def __init__(self) -> None:
        self.puts = 0
        self.deletes = 0
        self.pauses = 0


class _Totals(dict[str, Total]):
    """The totals of each topic."""

    def __missing__(self, topic: str) -> Total:
        total = Total()
        if len(self) < _MOST_TOPICS:
            self[topic] = total
        return total


class Hall:
    """The sessions, the rounds that they are served in, and the counts."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._is_open = service.tokens.is_open
        self.heads = Heads(service.most_body_bytes)
        self.pauses = Pauses()
        self.sessions: set[Session] = set()
        self.waiting: set[Session] = set()
        self.connections = 0
        self.commands: Counter[Verb] = Counter()
        self.totals = _Totals()
        self.histories = Histories()
        self.chosen = ChosenTubes()
        self.order = TubeOrder(self.chosen)
        self.id = secrets.token_hex(8)
        self._steps = Steps()
        self._rounds: list[Rounds[Any, Part]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        # Tubes that sessions watched which are gone; whether some were dropped in this turn.
        self._is_dropping = False
        self._leaving: deque[str] = deque()

    @property
    def now_ms(self) -> int:
        """The time."""
        return self.service.queue.clock.now_ms()

    def rounds(self, work: Work, steps: Steps | None = None) -> Rounds[Any, Part]:
        """Return rounds that ``work`` executes, in turn with all others that name no ``steps``."""
        rounds: Rounds[Any, Part] = Rounds(partial(_do, work), _lose, steps or self._steps)
        self._rounds.append(rounds)
        return rounds

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that :meth:`settled` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settled(self) -> None:
        """Return when no work is running."""
        while self._tasks or any(rounds.is_busy for rounds in self._rounds):
            for rounds in self._rounds:
                await rounds.settled()
            if self._tasks:
                await asyncio.wait(self._tasks)

    def allow(self, verb: Verb, topics: Iterable[str] | None) -> None:
        """Refuse a command that a caller without a token may not give; raises Unauthorized."""
        if not self._is_open:
            self.service.tokens.check(None, RIGHTS[verb], topics)

    def note_schedules(self, verb: str, jobs: Sequence[object]) -> None:
        """Note changes of jobs that are schedules for the audit log."""
        if jobs and self.service.audit is not None:
            line = {"port": "beanstalk", "peer": "", "token": "", "endpoint": verb}
            self.service.audit.write({**line, "topic": SCHEDULES, "jobs": list(jobs)})

    @property
    def in_flight(self) -> InFlight:
        """Where puts are counted: all callers are without a token here."""
        return self.service.in_flight if self._is_open else self.service.share_of("")

    def may(self, verb: Verb, topic: str) -> bool:
        """Tell whether a caller without a token may give a command that concerns a topic."""
        return self._is_open or self.service.tokens.allows(None, RIGHTS[verb], topic)

    def has_watched(self, tube: str) -> bool:
        """Note that a connection watches one tube more; tell whether there is room for that."""
        if tube != DEFAULT_TUBE:
            try:
                self.in_flight.keep_topics(1)
            except ServerBusy:
                return False
            self.chosen.add(tube)
        return True

    def has_ignored(self, tube: str) -> None:
        """Note that a connection has stopped watching a tube."""
        if tube != DEFAULT_TUBE:
            self.in_flight.leave(WAITING_TOPIC_BYTES, 0)
            self.chosen.drop(tube)

    def forget(self, session: Session) -> None:
        """Drop the choices and jobs of a session that is gone."""
        self.sessions.discard(session)
        self.chosen.drop(session.tube)
        self._leaving.extend(session.watched)
        if not self._is_dropping:
            self._drop_some()

    def _drop_some(self) -> None:
        """Drop some tubes of sessions that are gone; thousands may go in one turn of the loop."""
        for _ in range(min(len(self._leaving), _DROPPED_AT_ONCE)):
            self.has_ignored(self._leaving.popleft())
        self._is_dropping = True
        asyncio.get_running_loop().call_soon(self._drop_more)

    def _drop_more(self) -> None:
        self._is_dropping = False
        if self._leaving:
            self._drop_some()


async def _do(work: Work, key: Any, parts: Sequence[Part]) -> None:
    """Do a round; when it fails, the same word is the answer to every command in it."""
    try:
        await work(key, parts)
    except Exception as error:
        word = word_of(error)
        for session, run in parts:
            session.answer(word * run.count)


def _lose(parts: Sequence[Part]) -> None:
    """Ignore the parts of a cancelled round: their connections end with the event loop."""
