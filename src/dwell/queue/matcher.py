"""What looks at messages: which of them fit a selection, bodies and all."""

from typing import NamedTuple

from dwell.batch.batch import Batch
from dwell.batch.page import Cursor
from dwell.batch.selection import Selection
from dwell.errors import InvalidQuery

#: No bound.
EVERYTHING = 2**62


class Looked(NamedTuple):
    """The places of the messages of a page that match, in their order, among the first so many."""

    places: list[int]
    seen: int


class Matcher:
    """Looks at pages for a selection, which was checked; raises InvalidQuery.

    ``most_steps`` is after how many steps of its expression it is spent, and looks no further.
    """

    def __init__(self, selection: Selection, most_steps: int = EVERYTHING) -> None:
        self.selection = selection
        if selection.where is None:
            self._query = None
            return
        try:
            # Imported here, as who asks for nothing by its body does not need the extra.
            from dwell.queue.query import Query
        except ModuleNotFoundError as error:
            raise InvalidQuery(
                f"where: a predicate needs pip install 'dwell[query]': {error}"
            ) from None
        self._query = Query(selection.where, most_steps)

    @property
    def is_spent(self) -> bool:
        """Whether the expression took as many steps as it may."""
        return self._query is not None and self._query.is_spent

    def start(self, cursor: Cursor | None) -> Cursor | None:
        """Return where to begin a scan that is to go on after a cursor: at the first due."""
        first = Cursor(self.selection.due_from_ms - 1, 2**63 - 1)
        if first.due_ms < 0 or (cursor is not None and cursor.due_ms >= first.due_ms):
            return cursor
        return first

    async def places(self, page: Batch) -> Looked:
        """Return which messages of a page match; it looks at fewer than all where it is spent."""
        places = self.selection.places(page)
        if self._query is None:
            return Looked(places, len(page))
        found, seen = await self._query.places(page, places)
        return Looked(found, seen)
