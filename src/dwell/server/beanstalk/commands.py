"""The commands of the beanstalk protocol: their words, arguments and limits.

The words of this protocol (job, tube, reserve) are spoken in this package only.
"""

import re
from collections.abc import Callable, Sequence
from enum import IntEnum, auto
from typing import Any, NamedTuple

from dwell.message import MAX_DELAY_MS
from dwell.server.beanstalk.replies import BAD_FORMAT, UNKNOWN_COMMAND

#: The longest command line, with the two bytes that end it.
MAX_LINE_BYTES = 224
MAX_TUBE_BYTES = 200
#: The greatest delay; longer delays are cut to it.
MAX_DELAY_S = MAX_DELAY_MS // 1000

_MAX_U32 = 2**32 - 1
_MAX_U64 = 2**64 - 1
_MAX_INT = 2**31 - 1


class Verb(IntEnum):
    """The kind of a command; the last are a line that is not valid, and ``quit``."""

    PUT = auto()
    USE = auto()
    RESERVE = auto()
    RESERVE_WITH_TIMEOUT = auto()
    RESERVE_JOB = auto()
    DELETE = auto()
    RELEASE = auto()
    BURY = auto()
    TOUCH = auto()
    WATCH = auto()
    IGNORE = auto()
    PEEK = auto()
    PEEK_READY = auto()
    PEEK_DELAYED = auto()
    PEEK_BURIED = auto()
    KICK = auto()
    KICK_JOB = auto()
    STATS = auto()
    STATS_JOB = auto()
    STATS_TUBE = auto()
    LIST_TUBES = auto()
    LIST_TUBE_USED = auto()
    LIST_TUBES_WATCHED = auto()
    PAUSE_TUBE = auto()
    REFUSED = auto()
    QUIT = auto()


class Head(NamedTuple):
    """The first line of a put. Delay and time to run are in seconds."""

    priority: int
    delay_s: int
    ttr_s: int
    size_bytes: int


class Release(NamedTuple):
    """A job to release: its new priority, and its delay in seconds."""

    number: int
    priority: int
    delay_s: int


class Bury(NamedTuple):
    """A job to set aside, and its priority from now on."""

    number: int
    priority: int


class Pause(NamedTuple):
    """A tube that gives nothing for some seconds."""

    tube: str
    delay_s: int


class Run:
    """``count`` commands of one verb that came one after the other; ``items`` has a value for each.

    An item is a body (put, with the line before it in ``heads``), a :class:`Release`, a
    :class:`Bury`, a :class:`Pause`, a job's number, a tube's name, seconds, a count, the reply to a
    command that is refused, or None.
    """

    __slots__ = ("count", "heads", "items", "verb")

    def __init__(self, verb: Verb, items: Sequence[Any], heads: Sequence[Head] = ()) -> None:
        self.verb = verb
        self.items = items
        self.heads = heads
        self.count = len(items)

    def __repr__(self) -> str:
        return f"<Run of {self.count} {self.verb.name}>"


#: The verbs whose commands are worth being read as runs.
IN_RUNS = frozenset({Verb.RESERVE_WITH_TIMEOUT, Verb.RELEASE, Verb.BURY, Verb.TOUCH, Verb.DELETE})

Command = tuple[Verb, Any]
_BAD: Command = (Verb.REFUSED, BAD_FORMAT)
_UNKNOWN: Command = (Verb.REFUSED, UNKNOWN_COMMAND)

_NAME = rb"[A-Za-z0-9+/;.$_()][A-Za-z0-9\-+/;.$_()]*"
_TUBE = re.compile(_NAME)
_ONE = re.compile(rb" *(\d+)")
_TWO = re.compile(rb" *(\d+) +(\d+)")
_THREE = re.compile(rb" *(\d+) +(\d+) +(\d+)")
_FOUR = re.compile(rb" *(\d+) +(\d+) +(\d+) +(\d+)")
_OF_HTTP = (b" HTTP/1.1", b" HTTP/1.0")
_KICK = re.compile(rb"[ \t\n\v\f\r]*([+-]?)(\d+)")
# A name takes all that it can: the digits of "pause-tube 55" are not a name and a delay.
_PAUSE = re.compile(rb" *(" + _NAME + rb"+) *(\d+)")


def parse_line(line: bytes) -> Command:
    """Return the command of a line that is no put, without the bytes that end the line."""
    if b"\0" in line:
        return _BAD
    word, space, rest = line.partition(b" ")
    parse = _BY_WORD.get(word + space)
    if parse is None:
        parse, rest = _by_prefix(line)
    return parse(rest)


def parse_put(line: bytes, most_bytes: int) -> Head | None:
    """Return the numbers of a line that begins with ``put``, or None if they are not valid."""
    found = _FOUR.match(line, 4)
    if found is None or b"\0" in line:
        return None
    head = Head(*map(int, found.groups()))
    if max(head) > _MAX_U32:
        return None
    # The body of a job that is too big is skipped before any other check.
    is_whole = found.end() == len(line) or head.size_bytes > most_bytes
    return head if is_whole else None


def _by_prefix(line: bytes) -> tuple[Callable[[bytes], Command], bytes]:
    """Return a parser for lines that only begin with a command's word."""
    for prefix, parse in _PREFIXES:
        if line.startswith(prefix):
            return parse, line[len(prefix) :]
    # A web page can make a browser send any bytes as the body of such a request.
    return (_quit if line.endswith(_OF_HTTP) else _unknown), b""


def _unknown(rest: bytes) -> Command:
    return _UNKNOWN


def _alone(verb: Verb) -> Callable[[bytes], Command]:
    """Return a parser for a command without arguments."""

    def parse(rest: bytes) -> Command:
        return _BAD if rest else (verb, None)

    return parse


def _quit(rest: bytes) -> Command:
    return (Verb.QUIT, None)


def _number(verb: Verb) -> Callable[[bytes], Command]:
    """Return a parser for the number of a job."""

    def parse(rest: bytes) -> Command:
        found = _ONE.fullmatch(rest)
        if found is None or (number := int(found[1])) > _MAX_U64:
            return _BAD
        return (verb, number)

    return parse


def _tube(verb: Verb) -> Callable[[bytes], Command]:
    """Return a parser for the name of a tube."""

    def parse(rest: bytes) -> Command:
        if len(rest) > MAX_TUBE_BYTES or not _TUBE.fullmatch(rest):
            return _BAD
        return (verb, rest.decode())

    return parse


def _timeout(rest: bytes) -> Command:
    # Text after the number is ignored, as in beanstalkd.
    found = _ONE.match(rest)
    if found is None or (seconds := int(found[1])) > _MAX_INT:
        return _BAD
    return (Verb.RESERVE_WITH_TIMEOUT, seconds)


def _release(rest: bytes) -> Command:
    found = _THREE.fullmatch(rest)
    if found is None:
        return _BAD
    item = Release(*map(int, found.groups()))
    if item.number > _MAX_U64 or max(item.priority, item.delay_s) > _MAX_U32:
        return _BAD
    return (Verb.RELEASE, item)


def _bury(rest: bytes) -> Command:
    found = _TWO.fullmatch(rest)
    if found is None:
        return _BAD
    item = Bury(*map(int, found.groups()))
    if item.number > _MAX_U64 or item.priority > _MAX_U32:
        return _BAD
    return (Verb.BURY, item)


def _kick(rest: bytes) -> Command:
    # The number is read as C's strtoul does, sign and all, and kept in 32 bits, as in beanstalkd.
    found = _KICK.match(rest)
    if found is None or (count := int(found[2])) > _MAX_U64:
        return _BAD
    return (Verb.KICK, (-count if found[1] == b"-" else count) & _MAX_U32)


def _pause(rest: bytes) -> Command:
    found = _PAUSE.fullmatch(rest)
    if found is None or len(found[1]) > MAX_TUBE_BYTES or (delay_s := int(found[2])) > _MAX_U32:
        return _BAD
    return (Verb.PAUSE_TUBE, Pause(found[1].decode(), delay_s))


#: In the order of beanstalkd's comparisons: a longer prefix comes before a shorter one.
_PREFIXES: tuple[tuple[bytes, Callable[[bytes], Command]], ...] = (
    (b"peek ", _number(Verb.PEEK)),
    (b"peek-ready", _alone(Verb.PEEK_READY)),
    (b"peek-delayed", _alone(Verb.PEEK_DELAYED)),
    (b"peek-buried", _alone(Verb.PEEK_BURIED)),
    (b"reserve-with-timeout ", _timeout),
    (b"reserve-job ", _number(Verb.RESERVE_JOB)),
    (b"reserve", _alone(Verb.RESERVE)),
    (b"delete ", _number(Verb.DELETE)),
    (b"release ", _release),
    (b"bury ", _bury),
    (b"kick ", _kick),
    (b"kick-job ", _number(Verb.KICK_JOB)),
    (b"touch ", _number(Verb.TOUCH)),
    (b"stats-job ", _number(Verb.STATS_JOB)),
    (b"stats-tube ", _tube(Verb.STATS_TUBE)),
    (b"stats", _alone(Verb.STATS)),
    (b"use ", _tube(Verb.USE)),
    (b"watch ", _tube(Verb.WATCH)),
    (b"ignore ", _tube(Verb.IGNORE)),
    (b"list-tubes-watched", _alone(Verb.LIST_TUBES_WATCHED)),
    (b"list-tube-used", _alone(Verb.LIST_TUBE_USED)),
    (b"list-tubes", _alone(Verb.LIST_TUBES)),
    (b"quit", _quit),
    (b"pause-tube", _pause),
)
_BY_WORD = dict(_PREFIXES)
