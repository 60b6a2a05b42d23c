"""Batches: made from the arguments of callers, joined with others of the same turn, and split."""

from collections.abc import Awaitable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from dwell.batch.blobs import chained
from dwell.batch.puts import PUT_ARRAYS, Put, PutAnswer, Puts, Row
from dwell.batch.results import Results, results_of
from dwell.batch.schema import joined_columns
from dwell.errors import DwellError, InvalidInput, StoreFull, TopicFull
from dwell.given import columns
from dwell.message import DEFAULT_PRIORITY, U8, U64, Result
from dwell.queue.gather import Partly
from dwell.store.base import Store
from dwell.store.partly import PartlyPut, partly_done

#: The key that combines puts: the topic, what to do with an id that exists, and whether the
#: callers named the ids.
PutKey: TypeAlias = tuple[str, str, bool]

#: What is refused of one call, with nothing done, is not refused of those joined with it: a server
#: may allow less than this client, and a result may have no room.
REFUSALS = (InvalidInput, StoreFull)


def puts_of(
    topic: str,
    bodies: Sequence[object],
    now_ms: int,
    levels_ms: Sequence[int] = (),
    /,
    *,
    ids: object = None,
    delay: object = None,
    due: object = None,
    delay_level: object = None,
    priority: object = DEFAULT_PRIORITY,
    lease: object = None,
    max_attempts: object = None,
    expires: object = None,
    ttl: object = None,
    key: object = None,
    headers: object = None,
) -> Puts:
    """Return the columns of one put, as :meth:`dwell.Queue.put_many` takes them.

    ``levels_ms`` are the topic's delay levels. Raises InvalidInput for the first value that is not
    valid.
    """
    many = columns.bodies(bodies)
    size = len(many)
    due_ms = columns.dues(delay, due, delay_level, size, now_ms, levels_ms)
    return Puts(
        topic=topic,
        bodies=many,
        due_ms=due_ms,
        priority=columns.priorities(priority, size),
        lease_ms=columns.leases(lease, size),
        max_attempts=columns.max_attempts(max_attempts, size),
        expires_ms=columns.expiries(expires, ttl, due_ms, now_ms),
        ids=columns.own_ids(ids, size),
        extras=columns.extras(key, headers, size),
        counted=columns.counted(due, ttl, size),
    )


def joined_puts(many: Sequence[Puts]) -> Puts:
    """Return puts into one topic as one; all of them name their ids, or none does."""
    first = many[0]
    extras = None
    if any(puts.extras is not None for puts in many):
        extras = list(chain.from_iterable(puts.extras or [b""] * len(puts) for puts in many))
    return Puts(
        topic=first.topic,
        bodies=chained([puts.bodies for puts in many]),
        ids=None if first.ids is None else chained([puts.ids or () for puts in many]),
        extras=extras,
        counted=_joined_column([puts.counted for puts in many], many, np.uint8),
        versions=_joined_column([puts.versions for puts in many], many, np.uint64),
        **joined_columns(many, PUT_ARRAYS),
    )


def _joined_column(
    columns: Sequence[np.ndarray | None], many: Sequence[Puts], dtype: type[np.generic]
) -> np.ndarray | None:
    """Return a column of some puts as one, zeros for a put without it; None if none has it."""
    if all(column is None for column in columns):
        return None
    pairs = zip(columns, many, strict=True)
    return np.concatenate(
        [np.zeros(len(puts), dtype) if column is None else column for column, puts in pairs]
    )


def cut_answer(answer: PutAnswer, many: Sequence[Puts]) -> list[PutAnswer]:
    """Return the part of an answer that belongs to each put."""
    return [answer[part] for part in _parts(many)]


async def put_rows(
    store: Store, key: PutKey, rows: Sequence[Row], calls: U64 | None = None
) -> list[Put]:
    """Put single messages of several callers as one; raises Partly when some were refused."""
    topic, on_conflict, _ = key
    puts = Puts.of_rows(topic, rows)
    puts.calls = calls
    try:
        return list(await store.put(puts, on_conflict))
    except PartlyPut as partly:
        raise Partly(partly.answers()) from None


async def put_joined(
    store: Store, key: PutKey, many: Sequence[Puts], calls: U64 | None = None
) -> list[PutAnswer]:
    """Put the columns of several callers as one; raises Partly if some of it was refused."""
    _, on_conflict, _ = key
    puts = many[0] if len(many) == 1 else joined_puts(many)
    puts.calls = calls
    try:
        return cut_answer(await store.put(puts, on_conflict), many)
    except PartlyPut as partly:
        if len(many) == 1:
            raise partly.told() from None
        its = [partly.part(part) for part in _parts(many)]
    pairs = zip(many, its, strict=True)
    raise Partly([await _rest_put(store, puts, its, on_conflict) for puts, its in pairs])


async def _rest_put(
    store: Store, puts: Puts, partly: PartlyPut, on_conflict: str
) -> PutAnswer | DwellError | None:
    """Put again the messages that were refused because of others; None if all were refused."""
    if not partly.refused.any():
        return partly.answer
    if partly.is_unsure:
        return partly.error if partly.refused.all() else partly.told()
    if partly.refused.all():
        return None
    places = np.flatnonzero(partly.refused)
    try:
        rest = await store.put(puts.picked(places), on_conflict)
    except PartlyPut as again:
        refused = np.zeros(len(puts), dtype=bool)
        refused[places] = again.refused
        return PartlyPut(again.error, partly.completed(again.answer), refused).told()
    except DwellError as error:
        return PartlyPut(error, partly.answer, partly.refused).told()
    return partly.completed(rest)


class Fitting(NamedTuple):
    """The numbers of messages that were put, 0 for the others.

    With an ``error`` those may have been put after all.
    """

    numbers: U64
    error: DwellError | None = None


async def put_fitting(store: Store, puts: Puts) -> Fitting:
    """Put as many messages as fit."""
    try:
        return Fitting((await store.put(puts, "keep")).numbers)
    except TopicFull:
        numbers = np.zeros(len(puts), np.uint64)
        error = None
        if len(puts) > 1:
            first, rest = np.array_split(np.arange(len(puts)), 2)
            numbers[first], error = await put_fitting(store, puts.picked(first))
            # Where none of the first has room, none of the rest has.
            if numbers.any() and error is None:
                numbers[rest], error = await put_fitting(store, puts.picked(rest))
        return Fitting(numbers, error)
    except PartlyPut as partly:
        numbers = np.where(partly.refused, np.uint64(0), partly.answer.numbers)
        return Fitting(numbers, partly.error if partly.is_unsure else None)


async def told_each(asked: Awaitable[U8]) -> list[Result]:
    """Return the results of single messages of several callers; raises Partly if some failed."""
    try:
        return results_of(await asked)
    except DwellError as error:
        if not error.each:
            raise
        told = [_told([one]) for one in error.each]
    raise Partly([results_of(one)[0] if isinstance(one, np.ndarray) else one for one in told])


async def told_parts(
    asked: Awaitable[U8], many: Sequence[Sequence[object] | np.ndarray]
) -> list[Results]:
    """Return the part of some results that belongs to each batch; raises Partly if some failed."""
    try:
        codes = await asked
        return [Results(codes[part]) for part in _parts(many)]
    except DwellError as error:
        if not error.each or len(many) == 1:
            raise
        told = [_told(error.each[part]) for part in _parts(many)]
    raise Partly([Results(one) if isinstance(one, np.ndarray) else one for one in told])


def _told(each: Sequence[int | DwellError]) -> U8 | DwellError | None:
    """Return the results of one caller's messages, or the error; None if they can be run again."""
    errors = [one for one in each if isinstance(one, DwellError)]
    if not errors:
        return np.array(each, np.uint8)
    if len(errors) == len(each) and all(isinstance(one, REFUSALS) for one in errors):
        return None
    return partly_done(each)


def _parts(many: Sequence[Puts] | Sequence[Sequence[object] | np.ndarray]) -> Iterator[slice]:
    return (slice(start, end) for start, end in pairwise(accumulate(map(len, many), initial=0)))
