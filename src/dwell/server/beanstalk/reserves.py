"""Reserves: jobs for many connections in one take, and those connections that wait for some."""

from collections.abc import Sequence

from dwell.batch.batch import Batch
from dwell.clock.clock import monotonic_ms
from dwell.errors import DwellError, ServerBusy
from dwell.server.beanstalk.commands import Run, Verb
from dwell.server.beanstalk.hall import Hall, Part
from dwell.server.beanstalk.receipts import Receipts
from dwell.server.beanstalk.refusals import word_of
from dwell.server.beanstalk.replies import DEADLINE_SOON, TIMED_OUT, reserved, reserved_one
from dwell.server.beanstalk.session import Demand, Session
from dwell.server.beanstalk.steps import Steps
from dwell.server.beanstalk.taken import Portions, Taken, take_best
from dwell.server.beanstalk.waiting import Wait, Waiting

#: A connection that holds a job whose lease ends this soon is told, and does not wait.
MARGIN_MS = 1000
#: A round of more topics than this has much to look at.
_FEW_TOPICS = 8


class Reserves:
    """Does runs of reserves.

    A session's demand is in a round, or it waits, or it is held up until its replies are read.
    """

    def __init__(self, hall: Hall, receipts: Receipts) -> None:
        self._hall = hall
        self._receipts = receipts
        self._queue = hall.service.queue
        self._portions = Portions()
        self._rounds = hall.rounds(self._take)
        # Reserves from many topics hold up no other command.
        self._looks = hall.rounds(self._take, Steps())
        self._waiting = Waiting(hall, self._served, self._give_back)
        hall.service.tokens.on_change.append(self.check_all)

    def start(self, session: Session, run: Run) -> bytes | None:
        """Take jobs from the tubes that the session watches."""
        session.is_worker = True
        try:
            self._hall.allow(Verb.RESERVE, session.watched.values())
            self._hall.in_flight.check_room()
        except DwellError as error:
            return word_of(error) * run.count
        session.demand = demand = Demand(run)
        if self._would_wait(session, demand):
            self._begin_waiting(session, demand)
        else:
            self._ask(session)
        return None

    def go_on(self, session: Session) -> None:
        """Continue a demand that was held up."""
        if _demand_of(session).is_held_up:
            _demand_of(session).is_held_up = False
            self._ask(session)

    def end_wait(self, session: Session) -> None:
        """Answer a session that waits."""
        self._waiting.leave(session)
        self._answer_all(session, TIMED_OUT)

    def forget(self, session: Session) -> None:
        """Remove a session: ends its wait and releases the jobs that it holds."""
        self._waiting.leave(session)
        self._receipts.give_back(session.held.values())

    def pause(self, topic: str) -> None:
        """Make sessions that wait on a topic which was just paused wait for their other topics."""
        for session in list(self._hall.waiting):
            if topic in session.watched.values():
                self._waiting.leave(session)
                self._ask(session)

    def check_all(self) -> None:
        """Refuse waiting sessions that have lost the right to take."""
        for session in list(self._hall.waiting):
            try:
                self._hall.allow(Verb.RESERVE, session.watched.values())
            except DwellError as error:
                self._waiting.leave(session)
                self._answer_all(session, word_of(error))

    def _would_wait(self, session: Session, demand: Demand) -> bool:
        """Tell whether there is nothing to take, so that it is no use to ask."""
        if session.held or session.is_ending or demand.timeout_s == 0:
            return False
        topics, _ = self._hall.pauses.active(session.watched.values())
        return not topics or self._queue.would_wait(topics)

    # --- rounds ---------------------------------------------------------------------------------

    def _ask(self, session: Session) -> None:
        """Take part in the next round."""
        topics, _ = self._hall.pauses.active(session.watched.values())
        run = _demand_of(session).run
        rounds = self._rounds if len(topics) <= _FEW_TOPICS else self._looks
        rounds.add(topics, (session, run), run.count)

    async def _take(self, topics: tuple[str, ...], parts: Sequence[Part]) -> None:
        most = self._portions[topics].most
        limits = [min(_demand_of(session).left, most) for session, _ in parts]
        try:
            batches = await take_best(self._queue, topics, sum(limits))
        except DwellError as error:
            for session, _ in parts:
                self._answer_all(session, word_of(error))
            return
        taken = self._noted(batches, topics)
        # With several topics not all ready jobs may have been examined.
        is_all = len(topics) < 2 or not len(taken)
        at = 0
        for (session, run), limit in zip(parts, limits, strict=True):
            if run.count == 1 and at < len(taken):
                self._hand_one(session, taken, at)
                at += 1
                continue
            part = taken.part(at, at + limit)
            at += len(part)
            self._hand_over(session, part, is_all=is_all and len(part) < limit)

    def _noted(self, batches: Sequence[Batch], topics: tuple[str, ...]) -> Taken:
        """Return taken jobs, and update the statistics."""
        for batch in batches:
            if len(batch):
                self._hall.service.note_taken(batch)
        taken = Taken.of(batches, topics, self._hall.now_ms)
        self._portions[topics].note(taken.bodies)
        return taken

    def _hand_one(self, session: Session, taken: Taken, at: int) -> None:
        """Give a session the single job that it asked for: the most frequent case."""
        job = taken.held[at]
        if session.is_over:
            return self._receipts.give_back((job,))
        session.hold(taken.numbers[at : at + 1], (job,), taken.now_ms)
        session.demand = None
        return session.answer(reserved_one(taken.numbers[at], taken.bodies[at]))

    def _hand_over(self, session: Session, part: Taken, *, is_all: bool) -> None:
        """Give a session its jobs; ``is_all`` tells that no further job is ready."""
        if session.is_over:
            return self._receipts.give_back(part.held)
        demand = _demand_of(session)
        if len(part):
            session.hold(part.numbers, part.held, part.now_ms)
            self._answer(session, reserved(part.numbers, part.bodies), len(part))
        if not demand.left:
            return None
        if is_all:
            self._unserved(session)
        elif session.is_blocked:
            demand.is_held_up = True
        else:
            self._ask(session)
        return None

    def _unserved(self, session: Session) -> None:
        """Handle a demand that no job is ready for."""
        if session.is_over:
            return None
        demand, now_ms = _demand_of(session), self._hall.now_ms
        soonest_ms = session.soonest_ms(now_ms)
        if soonest_ms is not None and soonest_ms <= now_ms + MARGIN_MS:
            return self._answer_all(session, DEADLINE_SOON)
        if session.is_ending:
            return self._answer_all(session, TIMED_OUT)
        late = demand.impatient
        if demand.ends_ms is not None and demand.ends_ms <= monotonic_ms():
            late = max(late, 1)
        if late:
            self._answer(session, TIMED_OUT * late, late)
        if demand.left:
            self._begin_waiting(session, demand)
        return None

    # --- waiting --------------------------------------------------------------------------------

    def _begin_waiting(self, session: Session, demand: Demand) -> None:
        topics, paused_ms = self._hall.pauses.active(session.watched.values())
        limit = min(demand.left, self._portions[topics].most)
        try:
            self._hall.service.check_waiting(len(self._hall.waiting))
            self._waiting.enter(session, topics, limit, self._wait_ms(session, demand, paused_ms))
        except ServerBusy as error:
            self._answer_all(session, word_of(error))

    def _wait_ms(self, session: Session, demand: Demand, paused_ms: int | None) -> int | None:
        """Return how long to wait: until the demand or a pause is over, or a lease ends soon."""
        waits = [] if paused_ms is None else [paused_ms]
        # A span is not of the wall clock, as leases are: a step of that makes no wait longer.
        if demand.ends_ms is None and demand.timeout_s is not None:
            # An unknown part of the current millisecond has passed.
            demand.ends_ms = monotonic_ms() + demand.timeout_s * 1000 + 1
        if demand.ends_ms is not None:
            waits.append(demand.ends_ms - monotonic_ms())
        now_ms = self._hall.now_ms
        soonest_ms = session.soonest_ms(now_ms)
        if soonest_ms is not None:
            waits.append(soonest_ms - MARGIN_MS - now_ms)
        return max(min(waits), 0) if waits else None

    def _served(self, session: Session, topics: tuple[str, ...], wait: Wait) -> None:
        """Deliver the jobs that a session has waited for, or handle its timeout."""
        try:
            batch = wait.result()
        except Exception as error:
            self._answer_all(session, word_of(error))
        else:
            if len(batch):
                self._hand_over(session, self._noted([batch], topics), is_all=False)
            else:
                # A job that falls due just then belongs to this session.
                self._ask(session)

    def _give_back(self, batch: Batch) -> None:
        self._receipts.give_back(Taken.of([batch], (), self._hall.now_ms).held)

    # --- answers --------------------------------------------------------------------------------

    def _answer(self, session: Session, reply: bytes, count: int) -> None:
        """Answer the first reserves of a demand; with the last one the session goes on."""
        demand = _demand_of(session)
        demand.answered(count)
        if demand.left:
            session.send(reply)
        else:
            session.demand = None
            session.answer(reply)

    def _answer_all(self, session: Session, word: bytes) -> None:
        """Answer all that is left of a demand with the same word."""
        left = _demand_of(session).left
        self._answer(session, word * left, left)


def _demand_of(session: Session) -> Demand:
    assert session.demand is not None, "a session that reserves has a demand"
    return session.demand
