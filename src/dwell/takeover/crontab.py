"""A crontab as a source: each line becomes a schedule, whose body is the command.

The format is that of crontab(5) of Debian's cron and of cronie. A body is JSON: ``command`` is what
cron gives to the shell, ``stdin`` what follows the first ``%``, ``user`` the user of a system
crontab, and ``environment`` the variables that are set above the line.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from dwell.errors import InvalidUrl
from dwell.given import values
from dwell.takeover.entries import Entry, digest, opened, options_of, path_of, plain

#: The prefix of such addresses.
PREFIX = "crontab:"
_FORM = "crontab:FILE[?format=user|system&zone=NAME&prefix=NAME], FILE - for standard input"
_OPTIONS = ("format", "zone", "prefix")
#: Files whose lines name a user.
_SYSTEM = (Path("/etc/crontab"), Path("/etc/cron.d"))
_BLANKS = " \t"
_VARIABLE = re.compile(
    r"""(?:"([^"]*)"|'([^']*)'|([^\s="'#][^\s=]*))[ \t]*=[ \t]*(.*)""", re.DOTALL
)
_QUOTED = re.compile(r"""(["'])(.*)\1""", re.DOTALL)
_FIELDS = re.compile(r"(@\w+|(?:[^ \t]+[ \t]+){4}[^ \t]+)(?:[ \t]+(.*))?", re.DOTALL)
#: A user of a system crontab and the command.
_USER = re.compile(r"([^ \t]+)[ \t]+(.+)", re.DOTALL)
#: A command up to its end: a backslash goes with what follows, which may be another.
_COMMAND = re.compile(r"(?:\\.|[^%])*", re.DOTALL)
_PAIR = re.compile(r"\\(.)", re.DOTALL)
#: By how many minutes at most cronie delays the lines below.
_DELAY, _MINUTES = "RANDOM_DELAY", re.compile("[0-9]{1,9}")
#: How much of a name is from the command.
_WORD_CHARS = 40


class _Line(NamedTuple):
    """A line that runs a command: when, in which zone, as whom, and after which variables."""

    when: str
    zone: str | None
    user: str | None
    command: str
    variables: Mapping[str, str]


class Crontab:
    """A crontab; its schedules put into ``topic``, or into the topic ``crontab``."""

    def __init__(self, url: str, topic: str | None = None) -> None:
        rest, options = options_of(url, _OPTIONS)
        self._path = path_of(rest, PREFIX, _FORM)
        kind = options.get("format")
        if kind not in (None, "user", "system"):
            raise InvalidUrl(f"format: got {kind!r:.80}, expected user or system")
        self._has_users = self._is_system() if kind is None else kind == "system"
        self._zone = options.get("zone")
        self._prefix = options.get("prefix", "crontab")
        self._topic = "crontab" if topic is None else values.topic(topic)

    def _is_system(self) -> bool:
        path = None if self._path is None else self._path.absolute()
        return path is not None and (path in _SYSTEM or path.parent in _SYSTEM)

    def entries(self) -> Iterator[Entry]:
        """Yield an entry for each line that runs a command; raises InvalidUrl without the file."""
        zone = self._zone or _zone_here()
        names: Counter[str] = Counter()
        with opened(self._path) as file:
            for number, line in self._lines(file):
                where = f"line {number}"
                if isinstance(line, str):
                    yield Entry(where, reason=line)
                else:
                    yield self._entry(where, line, zone, names)

    def _lines(self, file: BinaryIO) -> Iterator[tuple[int, _Line | str]]:
        """Yield the number of each line that runs a command, and what it says or its fault."""
        variables: Mapping[str, str] = {}
        for number, data in enumerate(file, 1):
            try:
                text = data.decode().removesuffix("\n").lstrip(_BLANKS)
            except UnicodeDecodeError as error:
                yield number, f"line: got bytes that are not UTF-8: {error.reason}"
                continue
            if not text or text.startswith("#"):
                continue
            if (variable := _variable(text)) is not None:
                variables = {**variables, variable[0]: variable[1]}
                continue
            yield number, self._line(text, variables)

    def _line(self, text: str, variables: Mapping[str, str]) -> _Line | str:
        # A hyphen in front keeps a line of a system crontab out of cronie's log.
        found = _FIELDS.fullmatch(text.removeprefix("-"))
        if found is None or not found[2]:
            return f"line: got {text!r:.80}, expected five fields or @daily, and a command"
        user, command = None, found[2]
        if self._has_users:
            both = _USER.fullmatch(command)
            if both is None:
                return f"line: got {command!r:.80}, expected a user and a command"
            user, command = both.groups()
        return _Line(found[1], variables.get("CRON_TZ"), user, command, variables)

    def _entry(self, where: str, line: _Line, zone: str, names: Counter[str]) -> Entry:
        when = " ".join(line.when.split())
        said = "\0".join((when, line.zone or "", line.user or "", line.command))
        word = plain(re.split(r"[ \t]", line.command)[0].rpartition("/")[2])[:_WORD_CHARS]
        name = f"{self._prefix}:{word}-{digest(said)}"
        names[name] += 1
        if names[name] > 1:
            # Cron runs a line as often as it is there.
            name = f"{name}-{names[name]}"
        words: dict[str, object] = {"cron": when, "zone": line.zone or zone}
        delay = line.variables.get(_DELAY, "0")
        if not _MINUTES.fullmatch(delay):
            return Entry(where, reason=f"{_DELAY}: got {delay!r:.40}, expected minutes")
        if int(delay):
            words["jitter"] = f"{int(delay)}m"
        return Entry(where, name, self._topic, _body(line), words)


def _variable(text: str) -> tuple[str, str] | None:
    """Return the name and the value that a line sets; None for other lines."""
    found = _VARIABLE.fullmatch(text)
    if found is None:
        return None
    *names, value = found.groups()
    value = value.rstrip(_BLANKS)
    quoted = _QUOTED.fullmatch(value)
    return next(name for name in names if name is not None), quoted[2] if quoted else value


def _body(line: _Line) -> bytes:
    command, stdin = _split(line.command)
    body: dict[str, object] = {"command": command}
    if stdin is not None:
        body["stdin"] = stdin
    if line.user is not None:
        body["user"] = line.user
    if line.variables:
        body["environment"] = line.variables
    return msgspec.json.encode(body)


def _split(text: str) -> tuple[str, str | None]:
    r"""Return a command and its standard input, if it has one.

    The first ``%`` ends the command, others are line ends, and ``\%`` is a percent sign. In the
    command ``\\`` is a pair, after which a ``%`` is one of its own; in the input it is not. The
    input ends with a line end, as cron adds one.
    """
    found = _COMMAND.match(text)
    assert found is not None
    command = _PAIR.sub(lambda pair: "%" if pair[1] == "%" else pair[0], found[0])
    if found.end() == len(text):
        return command, None
    rest = text[found.end() + 1 :]
    lines = [part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", rest)]
    stdin = "\n".join(lines)
    return command, stdin if stdin.endswith("\n") or not stdin else f"{stdin}\n"


def _zone_here() -> str:
    """Return the time zone of this machine, in which its cron runs; raises InvalidUrl."""
    link, name = Path("/etc/localtime"), Path("/etc/timezone")
    if link.is_symlink():
        _, found, zone = str(link.resolve()).partition("/zoneinfo/")
        if found:
            return zone.removeprefix("posix/")
    if name.is_file():
        return name.read_text().strip()
    if link.exists():
        raise InvalidUrl("crontab: cannot tell the zone of this machine, expected ?zone=NAME")
    return "UTC"
