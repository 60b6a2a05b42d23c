"""Releases: the records of released messages, each with a delay and an error."""

from collections.abc import Sequence

import numpy as np
from msgspec import structs

from dwell.batch.blobs import text_bytes
from dwell.message import EXPIRED
from dwell.slices import places
from dwell.store.base import Delays, Errors
from dwell.store.embedded.journal.record import Meta, Record, RecordKind
from dwell.store.embedded.terms import Terms

#: The most bytes of a record in addition to its errors, of an error in addition to its text, and of
#: a message.
_RECORD_BYTES, _ERROR_BYTES, _MESSAGE_BYTES = 128, 8, 24


def releases_of(
    terms: Terms,
    columns: dict[str, np.ndarray],
    good: np.ndarray,
    now_ms: int,
    told: tuple[Delays, Errors],
    meta: Meta,
    most_bytes: int,
) -> list[Record]:
    """Return records of the rows in ``columns``, in their order.

    They cover the ``good`` messages; ``told`` has one value for all, or one for each. The errors of
    a record are about ``most_bytes`` long.
    """
    delay_ms, error = told
    going, places_of = columns["rows"], np.flatnonzero(good)
    if isinstance(delay_ms, np.ndarray):
        delay_ms = delay_ms[good]
    due_ms = terms.release_dues(going, now_ms, delay_ms, counted=meta.counted)
    # A message that will have expired at its due does not wait for it.
    dies = terms.will_expire(going, np.maximum(due_ms, now_ms), counted=meta.counted)
    records: list[Record] = []
    for kind, which in ((RecordKind.RELEASE, ~dies), (RecordKind.BURY, dies)):
        if not which.any():
            continue
        own_columns = {name: column[which] for name, column in columns.items()}
        usual = EXPIRED if kind is RecordKind.BURY else None
        if kind is RecordKind.RELEASE:
            own_columns["due_ms"] = due_ms[which]
        if error is None or isinstance(error, str):
            plain = structs.replace(meta, error=usual if error is None else error)
            records.append(Record(kind, now_ms, own_columns, plain))
            continue
        told_of = [error[place] for place in places_of[which].tolist()]
        own = [usual if one is None else one for one in told_of]
        records += [
            Record(
                kind,
                now_ms,
                {name: column[part] for name, column in own_columns.items()},
                structs.replace(meta, errors=own[part]),
            )
            for part in places(map(_size_bytes, own), most_bytes)
        ]
    return records


def size_bytes_of(records: Sequence[Record]) -> int:
    """Return an upper bound of the size of records."""
    told = sum(sum(map(_size_bytes, (r.meta.error, *(r.meta.errors or ())))) for r in records)
    return told + _RECORD_BYTES * len(records) + _MESSAGE_BYTES * sum(map(len, records))


def _size_bytes(error: str | None) -> int:
    return _ERROR_BYTES + text_bytes(error)
