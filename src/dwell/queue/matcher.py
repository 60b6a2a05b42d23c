"""The matcher: finds the messages of a page that fit a selection."""

import asyncio
import math
from collections.abc import Sequence
from typing import NamedTuple

from dwell.batch.batch import Batch
from dwell.batch.page import Cursor
from dwell.batch.selection import Selection
from dwell.errors import InvalidQuery

#: No bound.
EVERYTHING = 2**62

#: How many bytes of a key and headers are read in a step, and how many steps a turn of the event
#: loop has, as for an expression.
_BYTES = 16
_TURN = 20_000


class Looked(NamedTuple):
    """The places of the messages of a page that match, in their order, among the first so many."""

    places: list[int]
    seen: int


class Matcher:
    """Matches pages against a checked selection; raises InvalidQuery.

    The matcher is spent, and looks no further, after ``most_steps`` steps (of its expression, and
    for keys and headers) or ``most_s`` seconds after its first page.
    """

    def __init__(
        self, selection: Selection, most_steps: int = EVERYTHING, most_s: float = math.inf
    ) -> None:
        self.selection = selection
        self._left = most_steps
        self._most_s = most_s
        self._since_s: float | None = None
        if selection.where is None:
            self._query = None
            return
        try:
            # Imported here, as selections without ``where`` do not need the extra.
            from dwell.queue.query import Query
        except ModuleNotFoundError as error:
            raise InvalidQuery(
                f"where: a predicate needs pip install 'dwell[query]': {error}"
            ) from None
        self._query = Query(selection.where, most_steps)

    @property
    def is_spent(self) -> bool:
        """Whether it took as long, or as many steps, as it may."""
        if self._left < 0 or (self._query is not None and self._query.is_spent):
            return True
        # At least one page is read, so that a search that continues makes progress.
        now_s = asyncio.get_running_loop().time()
        return self._since_s is not None and now_s - self._since_s >= self._most_s

    def start(self, cursor: Cursor | None) -> Cursor | None:
        """Return the cursor to scan from in order to continue one: the first possible due."""
        first = Cursor(self.selection.due_from_ms - 1, 2**63 - 1)
        if first.due_ms < 0 or (cursor is not None and cursor.due_ms >= first.due_ms):
            return cursor
        return first

    async def places(self, page: Batch) -> Looked:
        """Return which messages of a page match, and how many were examined: fewer if spent."""
        if self._since_s is None:
            self._since_s = asyncio.get_running_loop().time()
        places, seen = self.selection.places(page), len(page)
        if self.selection.has_extra:
            places, seen = await self._with_extra(page.extras, places)
        if self._query is None:
            return Looked(places, seen)
        found, asked = await self._query.places(page, places, self._since_s + self._most_s)
        return Looked(found, min(seen, asked))

    async def _with_extra(self, extras: Sequence[bytes], among: Sequence[int]) -> Looked:
        """Return the places whose messages have the key and headers; yields to other tasks."""
        found: list[int] = []
        turn = _TURN
        for at in among:
            extra = extras[at]
            if self.selection.fits(extra):
                found.append(at)
            steps = 1 + len(extra) // _BYTES
            self._left -= steps
            turn -= steps
            if self._left < 0:
                return Looked(found, at + 1)
            if turn < 0:
                await asyncio.sleep(0)
                turn = _TURN
        return Looked(found, len(extras))
