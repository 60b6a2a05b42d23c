"""Puts: the jobs that many connections put into one tube, in one batch."""

import logging
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise

import numpy as np

from dwell.batch.puts import DUE_COUNTED, Puts, uniform
from dwell.errors import DwellError, StoreFull
from dwell.message import MAX_ATTEMPTS, MAX_LEASE_MS
from dwell.server.beanstalk.commands import MAX_DELAY_S, Head, Run, Verb
from dwell.server.beanstalk.hall import Hall, Part
from dwell.server.beanstalk.refusals import word_of
from dwell.server.beanstalk.replies import INTERNAL_ERROR, OUT_OF_MEMORY, inserted
from dwell.server.beanstalk.session import Session
from dwell.server.quotas import Room

_log = logging.getLogger(__name__)


class Putting:
    """Does runs of puts."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        self._rounds = hall.rounds(self._put)

    def start(self, session: Session, run: Run) -> bytes | None:
        """Put jobs into the tube that the session uses."""
        session.is_producer = True
        size_bytes = sum(map(len, run.items))
        try:
            self._hall.service.check_puts()
            self._hall.allow(Verb.PUT, (session.topic,))
            self._hall.in_flight.enter(size_bytes)
        except DwellError as error:
            return word_of(error) * run.count
        self._rounds.add(session.topic, (session, run), run.count, size_bytes)
        return None

    async def _put(self, topic: str, parts: Sequence[Part]) -> None:
        size_bytes = sum(len(body) for _, run in parts for body in run.items)
        try:
            fitting, refused = await self._let_in(topic, parts)
            replies = await self._put_all(topic, fitting) if fitting else []
        finally:
            self._hall.in_flight.leave(size_bytes, len(parts))
        for (session, _), reply in zip(fitting, replies, strict=True):
            session.answer(reply)
        for session, run in refused:
            session.answer(OUT_OF_MEMORY * run.count)

    async def _let_in(
        self, topic: str, parts: Sequence[Part]
    ) -> tuple[dict[Part, Room | None], list[Part]]:
        """Return the runs that the quota has room for, with that, and the others."""
        gate = await self._hall.service.quotas.gate("")
        # The right may have ended while the runs waited for their round, and for the quota.
        self._hall.allow(Verb.PUT, (topic,))
        if gate is None:
            return dict.fromkeys(parts), []
        fitting: dict[Part, Room | None] = {}
        refused = []
        for part in parts:
            bodies = part[1].items
            try:
                fitting[part] = gate.enter(topic, len(bodies), sum(map(len, bodies)))
            except StoreFull:
                refused.append(part)
        return fitting, refused

    async def _put_all(self, topic: str, parts: dict[Part, Room | None]) -> list[bytes]:
        """Put the jobs of some runs, and return the replies to each."""
        bodies = list(chain.from_iterable(run.items for _, run in parts))
        heads = list(chain.from_iterable(run.heads for _, run in parts))
        try:
            puts = puts_of(topic, bodies, heads, self._hall.now_ms)
            found, error = await self._hall.service.queue.put_fitting(puts)
        finally:
            for room in filter(None, parts.values()):
                room.leave()
        numbers, missing = found.tolist(), OUT_OF_MEMORY
        if error is not None:
            # A client that is told OUT_OF_MEMORY puts them again.
            missing = INTERNAL_ERROR
            _log.warning("%d jobs may be put or not: %s", numbers.count(0), error)
        self._hall.totals[topic].puts += len(numbers) - numbers.count(0)
        self._hall.histories.put(numbers, [min(head.delay_s, MAX_DELAY_S) for head in heads])
        ends = accumulate((run.count for _, run in parts), initial=0)
        return [_replies(numbers[start:end], missing) for start, end in pairwise(ends)]


def _replies(numbers: Sequence[int], missing: bytes) -> bytes:
    if 0 not in numbers:
        return inserted(numbers)
    return b"".join(inserted([number]) if number else missing for number in numbers)


def puts_of(topic: str, bodies: Sequence[bytes], heads: Sequence[Head], now_ms: int) -> Puts:
    """Return jobs as the columns of a put; a job is never given up for being reserved often."""
    size = len(bodies)
    first = heads[0]
    if heads.count(first) == size:
        delay_ms, ttr_ms = _times(np.array([first.delay_s]), np.array([first.ttr_s]))
        due_ms = uniform(now_ms + int(delay_ms[0]), size, np.int64)
        lease_ms = uniform(int(ttr_ms[0]), size, np.uint32)
        priority = uniform(first.priority, size, np.uint32)
    else:
        table = np.array(heads, dtype=np.int64)
        delay_ms, lease_ms = _times(table[:, 1], table[:, 2])
        due_ms = now_ms + delay_ms
        priority = table[:, 0].astype(np.uint32)
    return Puts(
        topic=topic,
        bodies=bodies,
        due_ms=due_ms,
        priority=priority,
        lease_ms=lease_ms.astype(np.uint32),
        max_attempts=uniform(MAX_ATTEMPTS, size, np.uint16),
        expires_ms=uniform(0, size, np.int64),
        counted=uniform(DUE_COUNTED, size, np.uint8),
    )


def _times(delay_s: np.ndarray, ttr_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return delays and leases in milliseconds, within the limits of a message."""
    return np.minimum(delay_s, MAX_DELAY_S) * 1000, np.clip(ttr_s * 1000, 1000, MAX_LEASE_MS)
