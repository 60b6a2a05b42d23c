"""Paging: cuts answers that would be too large, and tells the caller how to go on."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from dwell.batch.page import Cursor, Page
from dwell.batch.sweep import Sweep
from dwell.errors import InvalidLimit, StoreDamaged
from dwell.given import values
from dwell.message import MAX_BATCH_BYTES, MAX_BODY_BYTES, Message, State
from dwell.queue import Queue
from dwell.queue.changes import Place
from dwell.queue.search import cursor_before
from dwell.server.http.answer import Answer
from dwell.server.http.call import Call
from dwell.server.http.encoding import MOST_PAGE_BYTES, Rows
from dwell.server.http.media import Media
from dwell.slices import slices
from dwell.wire.columns import columns_of_page

#: A part of a store's content, with messages.
P = TypeVar("P", Page, Sweep)

_CURSOR = "dwell-cursor"
_CURSOR_TEXT = re.compile(r"(-?[0-9]{1,18})\.([0-9]{1,19})")
_WORDS = {str(state): state for state in State if state is not State.GONE}
#: The least number of messages that are read by their ids before their size is checked. Usually the
#: number is what fits if each message has the maximum size.
_FEWEST = 4
#: How many topics an answer has, and how many names are sorted before other tasks run.
MOST_TOPICS = 10_000
_NAMES_AT_ONCE = 10_000


def cursor_of(text: str | None) -> Cursor | None:
    """Return a cursor from its text; raises InvalidLimit."""
    if text is None:
        return None
    found = _CURSOR_TEXT.fullmatch(text)
    if found is None or int(found[2]) >= 2**63:
        raise values.refusal(InvalidLimit, "cursor", text, "the cursor of an answer")
    return Cursor(int(found[1]), int(found[2]))


def place_of(text: str | None) -> Place | None:
    """Return the position of a search through the states; raises InvalidLimit."""
    if text is None:
        return None
    word, _, cursor = text.partition(".")
    if word not in _WORDS or not _CURSOR_TEXT.fullmatch(cursor):
        raise values.refusal(InvalidLimit, "cursor", text, "the cursor of an answer")
    found = cursor_of(cursor)
    assert found is not None
    return Place(_WORDS[word], found)


def place_text(place: Place) -> str:
    """Return where such a search stopped as text."""
    return f"{place.state}.{place.cursor}"


async def names_after(names: Iterable[str], after: str) -> tuple[list[str], str | None]:
    """Return as many names after one as an answer holds, and the last of them if there are more."""
    first: list[str] = []
    for some in slices(list(names), _NAMES_AT_ONCE):
        if first:
            await asyncio.sleep(0)
        first = sorted([*first, *(name for name in some if name > after)])[: MOST_TOPICS + 1]
    page = first[:MOST_TOPICS]
    return page, page[-1] if len(page) < len(first) else None


def answer_bytes(messages: int) -> int:
    """Return the memory that an answer of ``messages`` may take while it is made."""
    return 2 * min(messages * MAX_BODY_BYTES, MAX_BATCH_BYTES)


def cursor_of_rest(page: Page, count: int) -> Cursor | None:
    """Return the cursor that continues a page after its first ``count`` messages."""
    return page.cursor if count == len(page.messages) else cursor_before(page, count)


async def page_answer(call: Call, page: Page) -> Answer:
    """Return a page of messages in the form that the caller asks for; Arrow is another's work.

    Rows that would be larger than an answer are left to the next page.
    """
    form, batch = call.asked, page.messages
    if form is Media.COLUMNS:
        return call.made_answer(Answer(msgspec.msgpack.encode(columns_of_page(page)), form))
    rows = await Rows.of(batch, form, MOST_PAGE_BYTES)
    cursor = cursor_of_rest(page, rows.count)
    if rows.count < len(batch):
        call.give_back_from(rows.count)
    return rows_answer(call, rows, cursor)


async def read_in_rows(
    read: Callable[[int], Awaitable[P]], limit: int, form: Media
) -> tuple[P, Rows]:
    """Return the result of ``read`` for a limit, and its messages as rows that fit an answer.

    Only the store knows where a shorter page ends, so the page is read again with a lower limit. A
    store may return more messages than requested because it stores them together; those all go out.
    """
    while True:
        page = await read(limit)
        rows = await Rows.of(page.messages, form, MOST_PAGE_BYTES)
        if rows.count == len(page.messages):
            return page, rows
        if len(page.messages) > limit:
            return page, await Rows.of(page.messages, form, 0)
        limit = rows.count


def rows_answer(call: Call, rows: Rows, cursor: Cursor | None) -> Answer:
    """Return rows, and where the next page begins."""
    if call.asked is Media.NDJSON:
        return call.made_answer(with_cursor(rows.answer(), cursor))
    return call.made_answer(rows.answer(cursor=str(cursor) if cursor else None))


def with_cursor(answer: Answer, cursor: Cursor | None) -> Answer:
    """Return an answer that says in its head where the next page begins."""
    if cursor is not None:
        answer.headers[_CURSOR] = str(cursor)
    return answer


async def first_of(
    queue: Queue, topic: str, ids: Sequence[bytes], most_bytes: int
) -> list[Message | StoreDamaged | None]:
    """Return the messages of the first ids, up to ``most_bytes``, at least one message."""
    found: list[Message | StoreDamaged | None] = []
    size_bytes = 0
    while len(found) < len(ids):
        room = max((most_bytes - size_bytes) // MAX_BODY_BYTES, _FEWEST)
        for message in await queue.store.get(topic, ids[len(found) : len(found) + room]):
            if isinstance(message, Message):
                size_bytes += len(message.body) + _headers_bytes(message)
            if size_bytes > most_bytes and found:
                return found
            found.append(message)
        await asyncio.sleep(0)
    return found


def _headers_bytes(message: Message) -> int:
    return sum(len(name) + len(value) for name, value in message.headers.items())
