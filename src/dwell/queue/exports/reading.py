"""Reading an export that anybody may have made: all of it is checked before anything is put."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dwell.batch.blobs import moved_mark
from dwell.errors import InvalidInput
from dwell.given.values import shown
from dwell.message import I64, QUEUE_ID_MARK
from dwell.queue.exports.doubles import NO_DOUBLES, Doubles, doubles_in
from dwell.queue.exports.manifest import Manifest, check_files, read
from dwell.queue.exports.writing import MOST_GROUP_BYTES, MOST_GROUP_ROWS, REPEATED, SCHEMA


class Checked(NamedTuple):
    """An export that is whole.

    ``rivals`` has topic and id of each message whose id, a caller's, is the one that another
    message of the export becomes. ``doubles`` knows the ids that several messages have.
    """

    manifest: Manifest
    rivals: frozenset[tuple[str, str]]
    doubles: Doubles


def checked(folder: Path) -> Checked:
    """Return the manifest of an export whose files are whole; raises InvalidInput."""
    manifest = read(folder)
    check_files(folder, manifest)
    has_keys = False
    for file in manifest.files:
        with _readable(folder / file.name) as opened:
            if opened.metadata.num_rows != file.rows:
                got = f"{opened.metadata.num_rows} rows"
                raise InvalidInput(f"export: got {file.name} of {got}, expected {file.rows}")
            if not opened.schema_arrow.equals(SCHEMA):
                got = str(opened.schema_arrow.names)[:200]
                raise InvalidInput(f"export: got {file.name} with {got}, expected {SCHEMA.names}")
            for at in range(opened.num_row_groups):
                group = opened.metadata.row_group(at)
                _check_group(group, f"{file.name}, row group {at}")
                has_keys = has_keys or _has_keys(group)
    rivals = _check_rows(folder, manifest)
    # Without keys no store has two messages of one id.
    if not has_keys:
        return Checked(manifest, rivals, NO_DOUBLES)
    names = _names(folder, manifest, "key")
    return Checked(manifest, rivals, doubles_in(names, manifest.rows))


def groups_of(path: Path, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """Yield the row groups of a file."""
    with _readable(path) as opened:
        for at in range(opened.num_row_groups):
            try:
                group = opened.read_row_group(at, columns).combine_chunks()
                # Texts that are no UTF-8 would end it later, in the middle.
                group.validate(full=True)
                yield group
            except (pa.ArrowException, OSError) as error:
                raise InvalidInput(f"export: cannot read {path.name}: {error!s:.300}") from None


def by_topic(rows: pa.Table, first: int) -> list[tuple[str, pa.Table, I64]]:
    """Return the rows of each topic in their order, and their numbers in the export."""
    topics = rows.column("topic").combine_chunks().dictionary_encode()
    codes = topics.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    rows = rows.take(pa.array(order)).combine_chunks()
    sizes = np.bincount(codes, minlength=len(topics.dictionary))
    starts = np.cumsum(sizes) - sizes
    each = zip(topics.dictionary.to_pylist(), starts.tolist(), sizes.tolist(), strict=True)
    return [
        (topic, rows.slice(start, size), order[start : start + size] + first)
        for topic, start, size in each
    ]


def moved_ids(ids: pa.Array, mark: str) -> pa.Array:
    """Return ids as they are put: one that a queue made begins with ``mark`` instead of its own."""
    is_made = pc.starts_with(ids, QUEUE_ID_MARK)
    if not pc.any(is_made).as_py():
        return ids
    moved = pc.binary_join_element_wise(mark, pc.utf8_slice_codeunits(ids, 1), "")
    return pc.if_else(is_made, moved, ids)


def _readable(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"export: cannot read {path.name}: {error!s:.300}") from None


def _check_group(group: pq.RowGroupMetaData, where: str) -> None:
    """Refuse a row group that would become large in memory; an export has none."""
    for got, most, what in (
        (group.num_rows, MOST_GROUP_ROWS, "rows"),
        (group.total_byte_size, MOST_GROUP_BYTES, "bytes"),
    ):
        if got > most:
            raise InvalidInput(f"{where}: got {got} {what}, expected at most {most}")
    for at in range(group.num_columns):
        column = group.column(at)
        # With a dictionary a large value is a few bytes in the file, however often it is there.
        if column.has_dictionary_page and column.path_in_schema not in REPEATED:
            name = shown(column.path_in_schema)
            raise InvalidInput(f"{where}: got a dictionary of {name}, expected plain values")


def _has_keys(group: pq.RowGroupMetaData) -> bool:
    """Tell whether a message of a row group may have a key."""
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema == "key":
            said = column.statistics
            return said is None or not said.has_null_count or said.null_count < group.num_rows
    return False


def _check_rows(folder: Path, manifest: Manifest) -> frozenset[tuple[str, str]]:
    """Check the counts of the topics; return the messages whose ids others become."""
    counted, mark = Counter[str](), moved_mark(int(manifest.store, 16))
    alike = set[tuple[str, str]]()
    for rows in _names(folder, manifest):
        counts = rows.column("topic").value_counts()
        counted.update(dict(zip(*(one.to_pylist() for one in counts.flatten()), strict=True)))
        alike.update(_pairs(rows.filter(pc.starts_with(rows.column("id"), mark))))
    said = {topic: counts.total for topic, counts in manifest.topics.items() if counts.total}
    for topic in sorted({*said, *counted}):
        if said.get(topic, 0) != counted[topic]:
            raise InvalidInput(
                f"topics: got {counted[topic]} rows of {shown(topic)}, "
                f"expected {said.get(topic, 0)}, as the manifest has"
            )
    if not alike:
        return frozenset()
    rivals = set[tuple[str, str]]()
    for rows in _names(folder, manifest):
        made = rows.filter(pc.starts_with(rows.column("id"), QUEUE_ID_MARK))
        moved = moved_ids(made.column("id").combine_chunks(), mark)
        rivals.update(alike.intersection(_pairs(made.set_column(1, "id", moved))))
    return frozenset(rivals)


def _names(folder: Path, manifest: Manifest, *more: str) -> Iterator[pa.Table]:
    for file in manifest.files:
        yield from groups_of(folder / file.name, ["topic", "id", *more])


def _pairs(rows: pa.Table) -> Iterator[tuple[str, str]]:
    return zip(rows.column("topic").to_pylist(), rows.column("id").to_pylist(), strict=True)
