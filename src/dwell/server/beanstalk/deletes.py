"""Deletes: jobs that the connection holds are done, and others are cancelled."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain, compress
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from dwell.errors import DwellError
from dwell.message import Result
from dwell.queue.schedules.schedule import TOPIC as SCHEDULES
from dwell.server.beanstalk.commands import Run, Verb
from dwell.server.beanstalk.hall import Hall, Part
from dwell.server.beanstalk.leaseends import Held
from dwell.server.beanstalk.receipts import array_of
from dwell.server.beanstalk.refusals import word_of
from dwell.server.beanstalk.replies import DELETED, NOT_FOUND
from dwell.server.beanstalk.session import Session

_MAX_NUMBER = 2**63 - 1
#: How many times a delete is tried of a job that changes in between.
_MOST_CHANGES = 10
_topic_of = itemgetter(1)


class _Other(NamedTuple):
    """A job that the session does not hold, and the place of its reply."""

    number: int
    replies: list[bytes]
    place: int


class Deletes:
    """Does runs of deletes."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self._queue = hall.service.queue
        self._rounds = hall.rounds(self._delete)

    def start(self, session: Session, run: Run) -> bytes | None:
        """Delete jobs."""
        self._rounds.add(None, (session, run), run.count)
        return None

    async def _delete(self, key: None, parts: Sequence[Part]) -> None:
        held = [[session.held.pop(number, None) for number in run.items] for session, run in parts]
        for session, _ in parts:
            session.count_held()
        mine = [job for job in chain.from_iterable(held) if job is not None]
        if any(_topic_of(job) == SCHEDULES for job in mine):
            self._note(parts, held)
        try:
            acked = await self._ack(mine)
        except DwellError:
            _restore(parts, held)
            raise
        if all(acked) and len(mine) == sum(run.count for _, run in parts):
            for session, run in parts:
                self._hall.histories.forget(run.items)
                session.answer(DELETED * run.count)
            return
        await self._delete_others(parts, held, acked)

    def _note(self, parts: Sequence[Part], held: Sequence[Sequence[Held | None]]) -> None:
        """Note deleted schedules for the audit log."""
        pairs = chain.from_iterable(
            zip(run.items, jobs, strict=True) for (_, run), jobs in zip(parts, held, strict=True)
        )
        numbers = [number for number, job in pairs if job and _topic_of(job) == SCHEDULES]
        self._hall.note_schedules("delete", numbers)

    async def _ack(self, jobs: Sequence[Held]) -> list[bool]:
        """Acknowledge jobs; return for each whether its lease was still held."""
        if not jobs:
            return []
        codes = await self._queue.ack_at_once(array_of([job[0] for job in jobs]))
        acked: np.ndarray = codes == Result.ACKED
        done: list[bool] = acked.tolist()
        for topic, count in Counter(compress(map(_topic_of, jobs), done)).items():
            self._hall.totals[topic].deletes += count
        return done

    async def _delete_others(
        self, parts: Sequence[Part], held: Sequence[Sequence[Held | None]], acked: Sequence[bool]
    ) -> None:
        """Delete the jobs whose lease was not held, or has ended."""
        said = [[DELETED] * run.count for _, run in parts]
        others = []
        left = iter(acked)
        for (_, run), jobs, replies in zip(parts, held, said, strict=True):
            for index, job in enumerate(jobs):
                if job is None or not next(left):
                    others.append(_Other(run.items[index], replies, index))
                else:
                    self._hall.histories.forget(run.items[index : index + 1])
        try:
            await self._cancel(others)
        except DwellError as error:
            for other in others:
                other.replies[other.place] = word_of(error)
        for (session, _), replies in zip(parts, said, strict=True):
            session.answer(b"".join(replies))

    async def _cancel(self, others: Sequence[_Other]) -> None:
        numbers = [other.number if other.number <= _MAX_NUMBER else 0 for other in others]
        by_topic: dict[str, list[tuple[str, _Other]]] = {}
        for name, other in zip(await self._queue.named(numbers), others, strict=True):
            other.replies[other.place] = NOT_FOUND
            # Without a right on its topic a job does not exist for the caller.
            if name is not None and self._hall.may(Verb.DELETE, name[0]):
                by_topic.setdefault(name[0], []).append((name[1], other))
        for topic, named in by_topic.items():
            # Time and others may change a job between the two steps; then both are done again.
            left: Sequence[tuple[str, _Other]] = named
            for _ in range(_MOST_CHANGES):
                if left:
                    left = await self._cancel_in(topic, left)

    async def _cancel_in(
        self, topic: str, named: Sequence[tuple[str, _Other]]
    ) -> Sequence[tuple[str, _Other]]:
        """Cancel jobs of a topic, and nothing that has their ids since; return those to look at."""
        try:
            numbers = np.array([other.number for _, other in named], np.uint64)
            versions = await self._queue.store.versions(numbers)
            if versions is not None:
                named = list(compress(named, versions > 0))
                versions = versions[versions > 0]
            if not named:
                return ()
            results = await self._queue.cancel(topic, [id_ for id_, _ in named], versions=versions)
        except DwellError as error:
            for _, other in named:
                other.replies[other.place] = word_of(error)
            return ()
        if topic == SCHEDULES:
            self._hall.note_schedules("delete", [id_ for id_, _ in named])
        for (_, other), code in zip(named, results.codes.tolist(), strict=True):
            if code == Result.CANCELLED:
                other.replies[other.place] = DELETED
                self._hall.totals[topic].deletes += 1
                self._hall.histories.forget((other.number,))
        is_changed = results.codes == Result.UNKNOWN
        return () if versions is None else list(compress(named, is_changed))


def _restore(parts: Sequence[Part], held: Sequence[Sequence[Held | None]]) -> None:
    """Return the jobs that could not be deleted to the sessions that held them."""
    for (session, run), jobs in zip(parts, held, strict=True):
        for number, job in zip(run.items, jobs, strict=True):
            if job is not None:
                session.hold_on(number, job)
