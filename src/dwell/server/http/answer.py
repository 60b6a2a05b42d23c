"""Answers to requests, and refusals that are not errors of the queue."""

import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import msgspec

from dwell.errors import DwellError
from dwell.wire import problems
from dwell.wire.problems import Problem, problem_of

#: Bytes that are sent in one piece.
Bytes: TypeAlias = bytes | bytearray | memoryview


class Refusal(Exception):
    """A request that HTTP itself gives a status to."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class Answer:
    """An answer: its status, its body in some form, and further headers.

    ``parts`` are the pieces of a long body, which are sent one after another; ``close`` is called
    when no further piece is needed.
    """

    __slots__ = ("close", "data", "form", "headers", "parts", "status")

    def __init__(self, data: Bytes, form: str, status: int = 200) -> None:
        self.data = data
        self.form = form
        self.status = status
        self.headers: dict[str, str] = {}
        self.parts: AsyncIterator[bytes] | None = None
        self.close: Callable[[], Awaitable[None]] | None = None

    async def without_parts(self) -> None:
        """Drop the parts of the body, as only the head is sent."""
        self.parts = None
        if self.close is not None:
            await self.close()


def text(words: str, status: int = 200) -> Answer:
    """Return plain words as an answer."""
    return Answer(words.encode(), "text/plain; charset=utf-8", status)


def problem(what: Problem) -> Answer:
    """Return a problem as an answer."""
    answer = Answer(msgspec.json.encode(what), problems.MEDIA_TYPE, what.status)
    if what.status in problems.RETRY_AFTER_S:
        answer.headers["retry-after"] = str(problems.RETRY_AFTER_S[what.status])
    if what.status == 401:
        answer.headers["www-authenticate"] = "Bearer"
    return answer


def refused(error: Exception) -> Answer | None:
    """Return the answer to a request that failed; None for an unexpected error."""
    if isinstance(error, DwellError):
        return problem(problem_of(error))
    if isinstance(error, Refusal):
        title = _TITLES.get(error.status, "")
        return problem(Problem("about:blank", title, error.status, problems.cut(error.detail)))
    return problem(_NO_MEMORY) if _lacks_memory(error) else None


def _lacks_memory(error: Exception) -> bool:
    """Tell whether there was no memory, be it for an object, a map or a thread."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # CPython has no class of its own for a thread that could not be started.
    is_thread = isinstance(error, RuntimeError) and "start new thread" in str(error)
    return is_thread or isinstance(error, MemoryError)


#: Made in advance, as there may be no memory for it later.
_NO_MEMORY = Problem(
    "urn:dwell:error:StoreError",
    "The server has no memory left",
    503,
    "there was no memory for this request: it may have been done or not",
    "StoreError",
)

_TITLES = {
    400: "This is no request of HTTP/1.1",
    403: "The caller may not do this",
    404: "There is nothing here",
    405: "The method is not one of this resource's",
    406: "No form of the answer is acceptable",
    415: "The form of the body is not one that is taken",
}
