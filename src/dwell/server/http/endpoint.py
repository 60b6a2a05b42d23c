"""An endpoint: one verb of the API, as the data that routes, checks and documents are made from."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from dwell.server.http.answer import Answer
from dwell.server.http.call import MAX_ASK_BYTES, Call
from dwell.server.http.media import Media
from dwell.server.http.schemas.requests import Nothing, Request
from dwell.server.http.scope import Scope
from dwell.server.tokens import ANY, Right

Handler = Callable[[Call], Awaitable[Answer]]

ROWS = (Media.JSON, Media.MSGPACK)
ROWS_COLUMNS = (*ROWS, Media.COLUMNS)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One verb of the API: its name, path, request, answer and rights.

    A caller needs any one of its ``rights`` on the topics of its ``scope``, and the right ``also``,
    if given, on the topic that the body names; without rights everybody may call it. Several kinds
    of ``answer`` are a tuple. ``takes`` and ``gives`` are the media types of body and answer; they
    are empty for an answer with a form of its own. ``most_bytes`` is the limit of the body. An
    ``audited`` endpoint changes what others rely on: the audit log has each request, unless the
    handler says that it changed nothing. An endpoint that ``is_long`` searches much data, for a few
    callers at a time. A request to a ``numbered`` endpoint may have a call number, so that a repeat
    is recognized.
    """

    method: str
    path: str
    handler: Handler
    rights: tuple[Right, ...]
    answer: Any = None
    query: type[Request] = Nothing
    body: Any = None
    takes: tuple[Media, ...] = ROWS
    gives: tuple[Media, ...] = ROWS
    group: str = "messages"
    most_bytes: int = MAX_ASK_BYTES
    numbered: bool = False
    scope: Scope = Scope.TOPIC
    also: Right | None = None
    audited: bool = False
    is_long: bool = False

    @property
    def name(self) -> str:
        """The name of the operation."""
        return self.handler.__name__

    @property
    def summary(self) -> str:
        """One sentence about it."""
        return (self.handler.__doc__ or "").split("\n")[0]

    @property
    def needs(self) -> str:
        """The rights that it needs, in words."""
        if not self.rights:
            return "none"
        words = "any" if self.rights == ANY else " or ".join(self.rights)
        return f"{words}, and {self.also}" if self.also else words

    @property
    def covers(self) -> str:
        """On which topics they are needed, in words."""
        if not self.rights:
            return ""
        return f"{self.scope}, and the one that it names" if self.also else str(self.scope)
