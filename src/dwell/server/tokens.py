"""Tokens: who may do what, on which topics.

A token file is TOML: an entry a token, and what callers without a token may do::

    [anonymous]
    put = ["public."]

    [[token]]
    name = "orders"
    sha256 = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"
    put = ["orders."]
    take = ["orders.", "refunds."]
    admin = []
    quota = {topics = 100, pending = 100000, stored_bytes = 1073741824, requests_per_s = 50}

    [[token]]
    name = "prometheus"
    sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
    expires = 2027-01-31T12:00:00Z
    metrics = true

A token may have several hashes (``sha256 = ["...", "..."]``) of secrets that are all valid, so that
a new secret works before the old secret is removed. From ``expires`` on (a moment with its zone, or
a date, whose beginning in UTC counts), the token is refused, and its waiting requests end.

Each right has a list of prefixes of topics; the empty prefix means all topics. A prefix such as
``d``, which covers the queue's own topics (``dwell:schedules``), is refused. ``metrics`` belongs
to no topic: it is given or not. No right implies another. The file holds hashes only. A token is 32
random bytes, which nobody can guess, so a plain hash is enough; a deliberately slow hash, as for
passwords, would only cost time.
"""

import hashlib
import hmac
import logging
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec

from dwell.clock import RealClock
from dwell.clock.clock import Clock
from dwell.errors import AccessDenied, Forbidden, InvalidSettings, Unauthorized
from dwell.message import MAX_TOPIC_CHARS, OWN_TOPICS

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_PREFIX = re.compile(rf"[A-Za-z0-9._:-]{{0,{MAX_TOPIC_CHARS}}}")
_WAYS = "DWELL_TOKEN, the option token, or the header Authorization says which"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")
#: How many secrets one token may have.
_MOST_SECRETS = 10
_TOLD_EVERY_MS = 60_000


class Right(StrEnum):
    """A right that a token may have."""

    PUT = "put"
    TAKE = "take"
    READ = "read"
    ADMIN = "admin"
    METRICS = "metrics"


#: Any right on topics will do.
ANY = (Right.PUT, Right.TAKE, Right.READ, Right.ADMIN)


_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None


class Quota(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The limits of a token; None is no limit.

    ``topics`` counts topics with messages, ``pending`` the messages in all of them. The bytes of
    ``stored_bytes`` are bodies, headers, keys, ids and results, in the topics that the token may
    put to, or take from if it may put to none.
    ``streams`` counts running streams of push and watch.
    """

    topics: _Count = None
    pending: _Count = None
    stored_bytes: _Count = None
    requests_per_s: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    streams: _Count = None


class Grant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rights of a caller: for each right the prefixes of topics, ``""`` for all topics."""

    put: tuple[str, ...] = ()
    take: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    metrics: bool = False
    quota: Quota = Quota()

    @property
    def whose(self) -> str:
        """The name of the token, empty for callers without one."""
        return ""

    @property
    def stored(self) -> tuple[str, ...]:
        """How the topics begin in which it stores messages, or only results where it takes."""
        return self.put or self.take

    def prefixes(self, rights: Sequence[Right]) -> tuple[str, ...]:
        """Return how the topics begin on which any of some rights is given."""
        if len(rights) == 1 and rights[0] is not Right.METRICS:
            only: tuple[str, ...] = getattr(self, rights[0])
            return only
        found: list[str] = []
        for right in rights:
            given: tuple[str, ...] | bool = getattr(self, right)
            found += [""] if given is True else given or ()
        return tuple(dict.fromkeys(found))

    def allows(self, rights: Sequence[Right], topics: Iterable[str] | None) -> bool:
        """Tell whether any of some rights is given on each topic; None stands for all topics.

        A request about no topic is allowed to callers that have one of them on some topic.
        """
        prefixes = self.prefixes(rights)
        if "" in prefixes or topics is None:
            return "" in prefixes
        return bool(prefixes) and all(topic.startswith(prefixes) for topic in topics)


class Entry(Grant, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One token: its name, for people and logs, its hash in hexadecimal, and its rights.

    It may have several hashes, of secrets that are all valid. It is valid until ``expires``.
    """

    name: str
    sha256: str | tuple[str, ...]
    expires: Annotated[datetime, msgspec.Meta(tz=True)] | None = None

    @property
    def whose(self) -> str:
        """The name of the token."""
        return self.name

    @property
    def hashes(self) -> tuple[str, ...]:
        """The hashes of all its secrets."""
        return (self.sha256,) if isinstance(self.sha256, str) else self.sha256

    @property
    def ends_ms(self) -> int | None:
        """When it ends; None for never."""
        return None if self.expires is None else int(self.expires.timestamp() * 1000)


_EVERYTHING = Grant(put=("",), take=("",), read=("",), admin=("",), metrics=True)


class TokenFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a token file."""

    token: tuple[Entry, ...] = ()
    anonymous: Grant = Grant()

    @property
    def grants(self) -> dict[str, Grant]:
        """All that is granted, by the names of tokens; it is empty for callers without one."""
        return {"": self.anonymous, **{entry.name: entry for entry in self.token}}


class Tokens:
    """The tokens of a server; without a file everybody may do everything."""

    def __init__(self, path: Path | None = None, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or RealClock()
        #: Called when other rights hold.
        self.on_change: list[Callable[[], None]] = []
        self._anonymous = Grant()
        #: The content of the file, and the grants with a quota, by the names of tokens.
        self.found = TokenFile()
        self.limited: dict[str, Grant] = {}
        self._entries: dict[bytes, tuple[bytes, Entry]] = {}
        #: When it was logged last that a token has ended, by its name.
        self._told_ms: dict[str, int] = {}
        self.reload()

    @classmethod
    def load(cls, path: str | Path) -> "Tokens":
        """Return the tokens of a file; raises InvalidSettings."""
        return cls(Path(path))

    @property
    def is_open(self) -> bool:
        """Whether everybody may do everything, as no token file is set."""
        return self.path is None

    @property
    def names(self) -> list[str]:
        """The names of the tokens, in the file's order."""
        return [entry.name for entry in self.found.token]

    @property
    def next_end_ms(self) -> int | None:
        """In how many milliseconds the next token ends; None if no token ends."""
        now_ms = self._clock.now_ms()
        ends = (entry.ends_ms for entry in self.found.token)
        return min((end - now_ms for end in ends if end is not None and end > now_ms), default=None)

    def reload(self) -> None:
        """Read the file again; raises InvalidSettings, and then all stays as it was."""
        self.use(self.read())

    def read(self) -> TokenFile:
        """Return the current content of the file; raises InvalidSettings."""
        return TokenFile() if self.path is None else _read(self.path)

    def use(self, found: TokenFile) -> None:
        """Apply the content of a file, and notify the waiting requests."""
        self._entries = {
            _place(digest): (digest, entry)
            for entry in found.token
            for digest in map(bytes.fromhex, entry.hashes)
        }
        self._anonymous = found.anonymous
        self.found = found
        self.limited = {n: grant for n, grant in found.grants.items() if grant.quota != Quota()}
        for changed in self.on_change:
            changed()

    def check(
        self, token: str | None, rights: tuple[Right, ...], topics: Iterable[str] | None
    ) -> str:
        """Check that a token has any of some rights on each of some topics (None: on all).

        No topics stand for any topic. Returns the name of the token, empty for a caller without
        one. Raises Unauthorized for a missing or unknown token, and Forbidden for a known token
        that lacks the rights.
        """
        if self.path is None:
            return ""
        grant = self.grant(token)
        check_grant(grant, rights, topics)
        return grant.whose

    def allows(self, token: str | None, rights: tuple[Right, ...], topic: str) -> bool:
        """Tell whether a caller has any of some rights on a topic that the request did not name.

        If not, the answer must be the same as if nothing was found: a refusal would tell that
        something exists, and name its topic.
        """
        try:
            self.check(token, rights, (topic,))
        except AccessDenied:
            return False
        return True

    def prefixes(self, token: str | None, rights: tuple[Right, ...]) -> tuple[str, ...]:
        """Return the prefixes of the topics that a caller has any of some rights on.

        ``""`` stands for all topics. Refuses a caller that has none of the rights on any topic, as
        :meth:`check` does.
        """
        grant = self.grant(token)
        check_grant(grant, rights, ())
        return grant.prefixes(rights)

    def grant(self, token: str | None) -> Grant:
        """Return the rights of a caller; raises Unauthorized for an unknown token."""
        if self.path is None:
            return _EVERYTHING
        return self._anonymous if token is None else self._find(token)

    def _find(self, token: str) -> Entry:
        digest = hashlib.sha256(token.encode(errors="surrogatepass")).digest()
        known = self._entries.get(_place(digest))
        if known is None or not hmac.compare_digest(known[0], digest):
            raise Unauthorized("the token is unknown")
        entry = known[1]
        if entry.ends_ms is not None and self._clock.now_ms() >= entry.ends_ms:
            self._tell_end(entry)
            raise Unauthorized("the token has ended")
        return entry

    def _tell_end(self, entry: Entry) -> None:
        """Log that an ended token is still used, once a minute."""
        now_ms = self._clock.now_ms()
        if now_ms - self._told_ms.get(entry.name, -_TOLD_EVERY_MS) >= _TOLD_EVERY_MS:
            self._told_ms[entry.name] = now_ms
            _log.warning("token %s is refused: it ended at %s", entry.name, entry.expires)


def check_grant(grant: Grant, rights: tuple[Right, ...], topics: Iterable[str] | None) -> None:
    """Refuse missing rights, as :meth:`Tokens.check` does."""
    topics = None if topics is None else tuple(topics)
    if grant.allows(rights, topics):
        return
    what = f"{_verb(rights)} {_on(topics)}"
    if grant.whose:
        raise Forbidden(f"token {grant.whose} may not {what}")
    to = "" if topics == () and rights == ANY else f" to {what}"
    raise Unauthorized(f"a token is needed{to}: {_WAYS}")


def _place(digest: bytes) -> bytes:
    # The first bytes find the entry to compare. They are bytes of a hash, so measuring the time of
    # the search reveals nothing of a token.
    return digest[:8]


def hash_of(token: str) -> str:
    """Return the hash of a token, as the token file contains it."""
    return hashlib.sha256(token.encode()).hexdigest()


def check_entry(entry: Entry, where: str) -> None:
    """Refuse an entry that cannot be meant; raises InvalidSettings."""
    if not _NAME.fullmatch(entry.name):
        raise InvalidSettings(
            f"{where}: got name {entry.name!r:.120}, "
            "expected 1-100 characters of A-Z a-z 0-9 . _ : -"
        )
    if not 1 <= len(entry.hashes) <= _MOST_SECRETS:
        raise InvalidSettings(
            f"{where}: token {entry.name}: got {len(entry.hashes)} values of sha256, "
            f"expected 1-{_MOST_SECRETS}"
        )
    for sha256 in entry.hashes:
        if not _SHA256.fullmatch(sha256):
            raise InvalidSettings(
                f"{where}: token {entry.name}: got sha256 {sha256!r:.80}, "
                "expected 64 hexadecimal digits in lower case"
            )
    _check_prefixes(entry, f"{where}: token {entry.name}")


def _check_prefixes(grant: Grant, where: str) -> None:
    for right in ANY:
        for prefix in getattr(grant, right):
            if not _PREFIX.fullmatch(prefix):
                raise InvalidSettings(
                    f"{where}: got {right} {prefix!r:.80}, "
                    f"expected the beginning of a topic: 0-{MAX_TOPIC_CHARS} of A-Z a-z 0-9 . _ : -"
                )
            # A tenant whose topics begin with d is not meant to change everybody's schedules.
            if prefix and prefix != OWN_TOPICS and OWN_TOPICS.startswith(prefix):
                raise InvalidSettings(
                    f"{where}: got {right} {prefix!r}, which covers the queue's own topics; "
                    f"expected '' for all topics, a longer prefix, or {OWN_TOPICS!r} for these"
                )


def _read(path: Path) -> TokenFile:
    where = f"token_file {path}"
    try:
        _check_mode(path, where)
        text = path.read_text()
    except OSError as error:
        raise InvalidSettings(f"{where}: {error.strerror}") from None
    except ValueError as error:
        raise InvalidSettings(f"{where}: {error}") from None
    return read_text(text, where)


def read_text(text: str, where: str) -> TokenFile:
    """Return the content of a token file's text; raises InvalidSettings."""
    try:
        found = msgspec.convert(_with_moments(tomllib.loads(text)), TokenFile)
    except ValueError as error:
        # Bad TOML, a number of thousands of digits, or not a token file.
        raise InvalidSettings(f"{where}: {error}") from None
    for entry in found.token:
        check_entry(entry, where)
    _check_prefixes(found.anonymous, f"{where}: anonymous")
    _check_unique(where, "name", [entry.name for entry in found.token])
    _check_unique(where, "sha256", [one for entry in found.token for one in entry.hashes])
    return found


def moment(given: object) -> object:
    """Return an expiry that is a date as the beginning of that day in UTC; others as they are."""
    if isinstance(given, str) and _DATE.fullmatch(given):
        given = date.fromisoformat(given)
    if isinstance(given, date) and not isinstance(given, datetime):
        return datetime(given.year, given.month, given.day, tzinfo=UTC)
    return given


def _with_moments(read: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a file with dates replaced by moments."""
    entries = read.get("token")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and "expires" in entry:
            entry["expires"] = moment(entry["expires"])
    return read


def _check_mode(path: Path, where: str) -> None:
    mode = path.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InvalidSettings(
            f"{where}: others may write it (mode {stat.S_IMODE(mode):o}), so they could make "
            f"tokens; expected chmod go-w"
        )


def _check_unique(where: str, field: str, values: list[str]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise InvalidSettings(f"{where}: two tokens have the {field} {value}")


_VERBS = {
    Right.PUT: "put to",
    Right.TAKE: "take from",
    Right.READ: "read",
    Right.ADMIN: "administer",
    Right.METRICS: "see the metrics of",
}


def _verb(rights: tuple[Right, ...]) -> str:
    return " or ".join(_VERBS[right] for right in rights)


def _on(topics: tuple[str, ...] | None) -> str:
    if topics is None:
        return "all topics"
    if not topics:
        return "any topic"
    return ", ".join(topics) if len(topics) <= 3 else f"{topics[0]} and {len(topics) - 1} others"
