"""Releases: the records of messages that are given back, each after a delay and with an error."""

from collections.abc import Sequence

import numpy as np
from msgspec import structs

from dwell.batch.blobs import text_bytes
from dwell.message import Rows
from dwell.slices import places
from dwell.store.base import Delays, Errors
from dwell.store.embedded.journal.record import Meta, Record, RecordKind
from dwell.store.embedded.terms import Terms

#: What a record takes at most beside its errors, an error beside its text, and a message.
_RECORD_BYTES, _ERROR_BYTES, _MESSAGE_BYTES = 128, 8, 16


def releases_of(
    terms: Terms,
    rows: Rows,
    good: np.ndarray,
    now_ms: int,
    told: tuple[Delays, Errors],
    meta: Meta,
    most_bytes: int,
) -> list[Record]:
    """Return records of those rows that are ``good``, in their order.

    ``told`` is of all rows, or says something of each; the errors of a record are about
    ``most_bytes`` long.
    """
    delay_ms, error = told
    going = rows[good]
    if isinstance(delay_ms, np.ndarray):
        delay_ms = delay_ms[good]
    due_ms = terms.release_dues(going, now_ms, delay_ms, counted=meta.counted)
    if error is None or isinstance(error, str):
        columns = {"rows": going, "due_ms": due_ms}
        return [Record(RecordKind.RELEASE, now_ms, columns, structs.replace(meta, error=error))]
    own = [error[place] for place in np.flatnonzero(good).tolist()]
    return [
        Record(
            RecordKind.RELEASE,
            now_ms,
            {"rows": going[part], "due_ms": due_ms[part]},
            structs.replace(meta, errors=own[part]),
        )
        for part in places(map(_size_bytes, own), most_bytes)
    ]


def size_bytes_of(records: Sequence[Record]) -> int:
    """Return how many bytes records take at most."""
    told = sum(sum(map(_size_bytes, (r.meta.error, *(r.meta.errors or ())))) for r in records)
    return told + _RECORD_BYTES * len(records) + _MESSAGE_BYTES * sum(map(len, records))


def _size_bytes(error: str | None) -> int:
    return _ERROR_BYTES + text_bytes(error)
