"""Batches that callers give in one turn of the event loop, joined into one and cut again."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise

import numpy as np

from dwell.lazy import chained
from dwell.message import U8
from dwell.results import Results
from dwell.store.base import PutAnswer, Puts

_ARRAYS = ("due_ms", "priority", "lease_ms", "max_attempts", "expires_ms")


def joined_puts(many: Sequence[Puts]) -> Puts:
    """Return puts into one topic as one; all of them name their ids, or none does."""
    first = many[0]
    arrays = {name: np.concatenate([getattr(puts, name) for puts in many]) for name in _ARRAYS}
    extras = None
    if any(puts.extras is not None for puts in many):
        extras = list(chain.from_iterable(puts.extras or [b""] * len(puts) for puts in many))
    return Puts(
        topic=first.topic,
        bodies=chained([puts.bodies for puts in many]),
        ids=None if first.ids is None else list(chain.from_iterable(p.ids or () for p in many)),
        extras=extras,
        **arrays,
    )


def cut_answer(answer: PutAnswer, many: Sequence[Puts]) -> list[PutAnswer]:
    """Return the part of an answer that belongs to each put."""
    return [answer[part] for part in _parts(many)]


def cut_results(codes: U8, many: Sequence[Sequence[object] | np.ndarray]) -> list[Results]:
    """Return the part of some results that belongs to each batch."""
    return [Results(codes[part]) for part in _parts(many)]


def _parts(many: Sequence[Puts] | Sequence[Sequence[object] | np.ndarray]) -> Iterator[slice]:
    return (slice(start, end) for start, end in pairwise(accumulate(map(len, many), initial=0)))
