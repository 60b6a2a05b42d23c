"""Entries: the schedules and the single messages that a source describes."""

import contextlib
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote, urlencode

from dwell.errors import InvalidSchedule, InvalidUrl
from dwell.message import MAX_TOPIC_CHARS
from dwell.urls import shown

_ODD = re.compile(r"[^A-Za-z0-9._:-]+")
_DIGEST_CHARS = 12


class Entry(NamedTuple):
    """One entry of a source, found there at ``where``: a schedule, a message, or a ``reason``.

    ``words`` are options of :meth:`dwell.queue.schedules.Schedules.put`; with ``due_ms`` (epoch
    milliseconds) the entry is a single message, and they are options of :meth:`dwell.Queue.put`. An
    entry with a reason is refused, or has nothing left to do if it ``is_over``. With
    ``is_anchored`` the start of its schedule follows the last run there, so it changes. After
    ``since_ms`` (epoch milliseconds) nothing has run there, so what has passed since is caught up.
    """

    where: str
    name: str = ""
    topic: str = ""
    body: bytes = b""
    words: Mapping[str, object] = {}
    due_ms: int | None = None
    is_paused: bool = False
    is_anchored: bool = False
    since_ms: int | None = None
    reason: str = ""
    is_over: bool = False


class Source(Protocol):
    """A source that is read and never written to."""

    def entries(self) -> Iterator[Entry]:
        """Yield the entries, in the same order each time.

        Raises InvalidUrl or ServerUnreachable, for an unknown layout before the first entry.
        """


def options_of(url: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """Return an address without some of its options, and these; raises InvalidUrl."""
    rest, _, query = url.partition("?")
    said = parse_qsl(query, keep_blank_values=True)
    own = {name: value for name, value in said if name in names}
    if empty := sorted(name for name, value in own.items() if not value):
        raise InvalidUrl(f"url: got {shown(url)!r:.80}, expected a value of {empty[0]}")
    others = [(name, value) for name, value in said if name not in names]
    return f"{rest}?{urlencode(others)}" if others else rest, own


def path_of(url: str, prefix: str, form: str) -> Path | None:
    """Return the file of an address without options, None for standard input."""
    name = unquote(url.removeprefix(prefix))
    if not name or "?" in url:
        raise InvalidUrl(f"url: got {shown(url)!r:.80}, expected {form}")
    return None if name == "-" else Path(name.removeprefix("//"))


@contextlib.contextmanager
def opened(path: Path | None) -> Iterator[BinaryIO]:
    """Open a file, or standard input; raises InvalidUrl if it cannot be read."""
    try:
        with sys.stdin.buffer if path is None else path.open("rb") as file:
            yield file
    except OSError as error:
        raise InvalidUrl(f"from: cannot read {path}: {error.strerror or error}") from None


def moment_of(text: str, field: str) -> datetime:
    """Return a time that a source has as text, in UTC if it has no zone; raises InvalidSchedule."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidSchedule(f"{field}: got {text!r:.80}, expected a time") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def name_for(prefix: str, text: str) -> str:
    """Return a name for a schedule: the text itself if it can be, else with a digest of it."""
    name = f"{prefix}:{text}"
    if len(name) <= MAX_TOPIC_CHARS and not _ODD.search(name):
        return name
    return f"{plain(name)[: MAX_TOPIC_CHARS - _DIGEST_CHARS - 1]}-{digest(text)}"


def plain(text: str) -> str:
    """Return a text with a hyphen for whatever a name cannot have."""
    return _ODD.sub("-", text)


def digest(text: str) -> str:
    """Return a short digest of a text."""
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_CHARS]
