"""Releases: the records of messages that are given back, each after a delay and with an error."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from msgspec import structs

from dwell.message import Rows
from dwell.store.base import Delays, Errors
from dwell.store.embedded.journal.record import Meta, Record, RecordKind
from dwell.store.embedded.terms import Terms

#: What a record takes that says an error of some messages, and what a message takes in it.
_RECORD_BYTES, _MESSAGE_BYTES = 128, 16


def releases_of(
    terms: Terms, rows: Rows, good: np.ndarray, now_ms: int, told: tuple[Delays, Errors], meta: Meta
) -> list[Record]:
    """Return records of those rows that are ``good``, in their order; a record has one error.

    ``told`` is of all rows, or says something of each.
    """
    delay_ms, error = told
    going = rows[good]
    if isinstance(delay_ms, np.ndarray):
        delay_ms = delay_ms[good]
    due_ms = terms.release_dues(going, now_ms, delay_ms, counted=meta.counted)
    records, start = [], 0
    for own, count in _runs(error, good):
        part = slice(start, start + count)
        columns = {"rows": going[part], "due_ms": due_ms[part]}
        how = structs.replace(meta, error=own)
        records.append(Record(RecordKind.RELEASE, now_ms, columns, how))
        start += count
    return records


def size_bytes_of(records: Sequence[Record]) -> int:
    """Return how many bytes records take at most."""
    errors = sum(4 * len(record.meta.error or "") for record in records)
    return errors + _RECORD_BYTES * len(records) + _MESSAGE_BYTES * sum(map(len, records))


def _runs(error: Errors, good: np.ndarray) -> list[tuple[str | None, int]]:
    """Return the errors of what is good, each with how many have it one after another."""
    if error is None or isinstance(error, str):
        return [(error, int(good.sum()))]
    each = groupby(error[place] for place in np.flatnonzero(good).tolist())
    return [(own, len(list(same))) for own, same in each]
