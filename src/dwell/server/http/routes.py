"""Routes: which endpoint a request is for, by its method and its path."""

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote

import httptools

from dwell.server.http.answer import Refusal
from dwell.server.http.endpoint import Endpoint

_PART = re.compile(r"\{(\w+)(:path)?\}")
#: How many targets are remembered, and how long those are.
_MOST_KNOWN = 4096
_MOST_KNOWN_BYTES = 256


class Route(NamedTuple):
    """An endpoint, the parts of the path that it has names for, and the query as it was sent."""

    endpoint: Endpoint
    path: dict[str, str]
    query: str


class NotAllowed(Refusal):
    """A method that the resource does not support."""

    def __init__(self, methods: str) -> None:
        super().__init__(405, "Method Not Allowed")
        self.methods = methods


class Routes:
    """All endpoints; matches are cached, since most requests are alike."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._patterns = [(_pattern(e.path), e) for e in endpoints]
        self._known: dict[tuple[str, bytes], Route] = {}

    def find(self, method: str, target: bytes) -> Route:
        """Return the endpoint of a request; raises Refusal, NotAllowed where the path is one."""
        known = self._known.get((method, target))
        if known is not None:
            return known
        route = self._find(method, target)
        if len(target) <= _MOST_KNOWN_BYTES:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[method, target] = route
        return route

    def _find(self, method: str, target: bytes) -> Route:
        try:
            url = httptools.parse_url(target)
            path = unquote((url.path or b"").decode("ascii"), errors="strict")
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError) as error:
            raise Refusal(400, f"target: {error}") from None
        if url.host is not None:
            # The host of an absolute target would replace the header, which is the checked one.
            raise Refusal(400, "target: got an absolute URL, expected a path")
        methods = set()
        for pattern, endpoint in self._patterns:
            found = pattern.fullmatch(path)
            if found is None:
                continue
            answered = ("GET", "HEAD") if endpoint.method == "GET" else (endpoint.method,)
            if method in answered:
                return Route(endpoint, found.groupdict(), (url.query or b"").decode("latin-1"))
            methods.update(answered)
        if methods:
            raise NotAllowed(", ".join(sorted(methods)))
        raise Refusal(404, "Not Found")


def _pattern(template: str) -> re.Pattern[str]:
    """Return the pattern of a path template: a part has no slash, except for ``:path``."""
    pieces, at = [], 0
    for part in _PART.finditer(template):
        pieces += [re.escape(template[at : part.start()])]
        pieces += [f"(?P<{part[1]}>{'.*' if part[2] else '[^/]+'})"]
        at = part.end()
    return re.compile("".join((*pieces, re.escape(template[at:]))), re.DOTALL)
