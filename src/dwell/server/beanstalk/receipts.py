"""Release, bury and touch: verbs of many connections on held jobs, in one batch."""

import asyncio
import logging
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dwell.batch.results import Results
from dwell.errors import DwellError
from dwell.message import MAX_BATCH_MESSAGES, U64, Result
from dwell.queue.schedules.schedule import TOPIC as SCHEDULES
from dwell.server.beanstalk.commands import MAX_DELAY_S, Run, Verb
from dwell.server.beanstalk.hall import Hall, Part
from dwell.server.beanstalk.leaseends import Held
from dwell.server.beanstalk.refusals import word_of
from dwell.server.beanstalk.replies import BURIED, NOT_FOUND, RELEASED, TOUCHED
from dwell.server.beanstalk.session import Session

_log = logging.getLogger(__name__)
_WORDS = {
    int(Result.RELEASED): RELEASED,
    int(Result.BURIED): BURIED,
    int(Result.TOUCHED): TOUCHED,
}


class _Claim(NamedTuple):
    """A job that a session holds and names, and the place of the reply."""

    session: Session
    number: int
    held: Held
    replies: list[bytes]
    place: int


class Receipts:
    """Runs the verbs that need a receipt, and releases the jobs of closed connections."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self._queue = hall.service.queue
        self._rounds = hall.rounds(self._tell)

    def start(self, session: Session, run: Run) -> bytes | None:
        """Apply the verb of a run to the session's jobs."""
        if not any(_number_of(item) in session.held for item in run.items):
            return NOT_FOUND * run.count
        self._rounds.add(run.verb, (session, run), run.count)
        return None

    def give_back(self, jobs: Iterable[Held]) -> None:
        """Release jobs whose connection is gone; the attempt does not count."""
        # A connection may hold more than one request may have. Of the parts none waits for another.
        receipts = [job[0] for job in jobs]
        for at in range(0, len(receipts), MAX_BATCH_MESSAGES):
            part = array_of(receipts[at : at + MAX_BATCH_MESSAGES])
            self._hall.spawn(self._give_back(part))

    async def _give_back(self, receipts: U64) -> None:
        try:
            await self._queue.release(receipts, counted=False)
        except DwellError as error:
            _log.warning("%d jobs wait for the end of their leases: %s", len(receipts), error)

    async def _tell(self, verb: Verb, parts: Sequence[Part]) -> None:
        """Apply a verb to held jobs, in one call of the queue for each set of arguments."""
        said = [[NOT_FOUND] * run.count for _, run in parts]
        groups: dict[Hashable, list[_Claim]] = {}
        for claim, how in _claims(parts, said):
            groups.setdefault(how, []).append(claim)
        await asyncio.gather(*(self._tell_group(verb, *group) for group in groups.items()))
        for (session, _), replies in zip(parts, said, strict=True):
            session.count_held()
            session.answer(b"".join(replies))

    async def _tell_group(self, verb: Verb, how: Any, claims: Sequence[_Claim]) -> None:
        try:
            results = await self._call(verb, how, array_of([claim.held[0] for claim in claims]))
        except DwellError as error:
            word = word_of(error)
            for claim in claims:
                claim.replies[claim.place] = word
            return
        schedules = [claim.number for claim in claims if claim.held[1] == SCHEDULES]
        self._hall.note_schedules(verb.name.lower(), schedules)
        for claim, code in zip(claims, results.codes.tolist(), strict=True):
            claim.replies[claim.place] = _WORDS.get(code, NOT_FOUND)
            self._note(claim, code)
            self._tell_history(verb, how, claim.number, code)

    async def _call(self, verb: Verb, how: Any, receipts: U64) -> Results:
        if verb is Verb.TOUCH:
            return await self._queue.touch(receipts)
        if verb is Verb.BURY:
            return await self._queue.bury(receipts, priority=how[0])
        priority, delay_s = how
        return await self._queue.release(receipts, min(delay_s, MAX_DELAY_S), priority=priority)

    def _tell_history(self, verb: Verb, how: Any, number: int, code: int) -> None:
        """Record the verb in the job's history."""
        if verb is Verb.BURY and code == Result.BURIED:
            self._hall.histories.buried(number)
        elif verb is Verb.RELEASE and code in (Result.RELEASED, Result.BURIED):
            delay_s, is_buried = min(how[1], MAX_DELAY_S), code == Result.BURIED
            self._hall.histories.released(number, delay_s, is_buried=is_buried)

    def _note(self, claim: _Claim, code: int) -> None:
        """Update the jobs that the session holds."""
        if code == Result.TOUCHED:
            receipt, topic, lease_ms, _ = claim.held
            until_ms = self._hall.now_ms + lease_ms
            claim.session.hold_on(claim.number, (receipt, topic, lease_ms, until_ms))
        else:
            claim.session.held.pop(claim.number, None)


def _claims(
    parts: Sequence[Part], said: Sequence[list[bytes]]
) -> Iterator[tuple[_Claim, Hashable]]:
    """Yield the jobs that are held, each with the arguments of its command."""
    for (session, run), replies in zip(parts, said, strict=True):
        for index, item in enumerate(run.items):
            number = _number_of(item)
            held = session.held.get(number)
            if held is not None:
                how = () if isinstance(item, int) else item[1:]
                yield _Claim(session, number, held, replies, index), how


def _number_of(item: Any) -> int:
    number: int = item if isinstance(item, int) else item[0]
    return number


def array_of(receipts: Sequence[bytes]) -> U64:
    """Return receipts of 16 bytes each, as they are in memory, as an array."""
    return np.frombuffer(b"".join(receipts), dtype=np.uint64).reshape(-1, 2)
