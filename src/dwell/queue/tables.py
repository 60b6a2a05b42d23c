"""Tables of any size: read batch by batch, and put in as few puts as they allow."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from dwell.batch.puts import PutAnswer, Puts
from dwell.batch.results import counts_of
from dwell.clock import Clock
from dwell.errors import DwellError, InvalidInput
from dwell.given import values
from dwell.message import MAX_BATCH_MESSAGES, Result
from dwell.queue.tablecolumns import check_schema, puts_of_table, pyarrow
from dwell.store.partly import results_before

#: Called for each row that is not put, with its index in the table, from 0, and the reason.
OnBad = Callable[[int, str], None]
#: Called after each put with the counts of its results.
OnPut = Callable[[Counter[Result]], None]


def batches_of(table: object) -> Any:
    """Return a reader of record batches for any object with a stream of Arrow.

    Raises InvalidInput for anything else, and for columns that no put has.
    """
    pa = pyarrow()
    if isinstance(table, pa.RecordBatchReader):
        reader = table
    elif hasattr(table, "__arrow_c_stream__"):
        _refuse_objects(table)
        try:
            reader = pa.RecordBatchReader.from_stream(table)
        except Exception as error:
            raise InvalidInput(f"table: gives no stream of Arrow: {error!s:.300}") from None
    else:
        allowed = "a table of Arrow: of PyArrow, Polars, DuckDB, pandas from 2.2 on, ..."
        raise values.refusal(InvalidInput, "table", table, allowed)
    check_schema(reader.schema)
    return reader


def _refuse_objects(table: object) -> None:
    """Refuse columns of Python objects in Polars, which gives their addresses in memory."""
    if type(table).__module__.partition(".")[0] != "polars":
        return
    for name, kind in getattr(table, "schema", {}).items():
        if str(kind) == "Object":
            raise InvalidInput(f"table: column {values.shown(name)} has objects, expected values")


class RowsPutter:
    """Puts rows by halves if they are too many bytes, or one of them cannot be put.

    ``puts_of`` returns the columns of one put for some rows, and ``put`` is called with them.
    ``on_bad`` is called for a row that cannot be put; without it such a row raises an InvalidInput
    that names it, and the rows before it are put.
    """

    def __init__(
        self,
        puts_of: Callable[[Any], Awaitable[Puts]],
        put: Callable[[Puts], Awaitable[PutAnswer]],
        on_bad: OnBad | None,
        on_put: OnPut | None = None,
    ) -> None:
        self._puts_of, self._put = puts_of, put
        self._on_bad, self._on_put = on_bad, on_put

    async def put(self, rows: Any, first: int) -> None:
        """Put rows, of which the first has a number, in as few puts as they allow."""
        for at in range(0, len(rows), MAX_BATCH_MESSAGES):
            await self._put_part(rows.slice(at, MAX_BATCH_MESSAGES), first + at)

    async def _put_part(self, part: Any, first: int) -> None:
        try:
            answer = await self._put(await self._puts_of(part))
        except InvalidInput as error:
            if len(part) > 1:
                half = len(part) // 2
                await self._put_part(part.slice(0, half), first)
                await self._put_part(part.slice(half), first + half)
                return
            if self._on_bad is None:
                raise type(error)(f"row {first}: {error}") from None
            self._on_bad(first, str(error))
            return
        except DwellError as error:
            self._note(results_before(error))
            raise
        self._note(counts_of(answer.results))

    def _note(self, counts: Counter[Result]) -> None:
        if self._on_put is not None and counts:
            self._on_put(counts)


class TablePutter:
    """Puts the rows of one table into a topic, in their order."""

    def __init__(
        self,
        topic: str,
        put: Callable[[Puts], Awaitable[PutAnswer]],
        clock: Clock,
        on_bad: OnBad | None,
        on_put: OnPut | None,
    ) -> None:
        self._topic, self._clock, self._on_put = topic, clock, on_put
        self._rows = RowsPutter(self._puts_of, put, on_bad, self._note)
        self._levels_ms: tuple[int, ...] = ()
        self.counts: Counter[Result] = Counter()

    async def run(self, table: object, levels_ms: tuple[int, ...]) -> Counter[Result]:
        """Put all rows; return how many had which result."""
        self._levels_ms = levels_ms
        reader, first = batches_of(table), 0
        while (batch := await asyncio.to_thread(_next, reader, first)) is not None:
            await self._rows.put(pyarrow().Table.from_batches([batch]), first)
            first += len(batch)
        return self.counts

    async def _puts_of(self, rows: Any) -> Puts:
        return await puts_of_table(rows, self._topic, self._clock.now_ms(), self._levels_ms)

    def _note(self, counts: Counter[Result]) -> None:
        self.counts += counts
        if self._on_put is not None:
            self._on_put(counts)


def _next(reader: Any, row: int) -> Any:
    try:
        return next(reader, None)
    except Exception as error:
        # The program that makes the batches may raise errors of its own.
        raise InvalidInput(f"table: cannot be read from row {row} on: {error!s:.300}") from None
