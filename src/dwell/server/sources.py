"""Where settings come from: flags, the environment, a file, the defaults; the first one counts."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dwell.errors import InvalidSettings, InvalidTime
from dwell.given import values
from dwell.server.settings import FIELDS, Field, ServerSettings, refusal

CONFIG_ENV = "DWELL_CONFIG"
CONFIG_FLAG = "--config"
DEFAULT = "default"

_PREFIX = "DWELL_"
#: Variables that begin like settings and are something else's.
_OTHERS = {CONFIG_ENV, "DWELL_TOKEN"}
_WORDS = {"true": True, "yes": True, "on": True, "1": True}
_WORDS |= {"false": False, "no": False, "off": False, "0": False}
# Bounded, as Python does not read numbers of thousands of digits.
_SIZE = re.compile(r"([0-9][0-9_]{0,30}) *(KiB|MiB|GiB)?")
_SIZES = {None: 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class Given(NamedTuple):
    """A value before it is parsed, and its source."""

    value: Any
    source: str


class Loaded(NamedTuple):
    """The settings, the source of each, and warnings about probable mistakes."""

    settings: ServerSettings
    sources: dict[str, str]
    doubts: list[str]


def load(flags: Mapping[str, object], environ: Mapping[str, str]) -> Loaded:
    """Return the settings; raises InvalidSettings.

    ``flags`` has the given flags, by the names of the settings, and ``config``, the file.
    """
    config = flags.get("config") or environ.get(CONFIG_ENV)
    layers = [
        {name: Given(flags[name], field.flag) for name, field in FIELDS.items() if name in flags},
        {
            name: Given(environ[field.env], field.env)
            for name, field in FIELDS.items()
            # Compose files and the like pass on unset variables as empty.
            if environ.get(field.env)
        },
        _of_file(Path(str(config))) if config else {},
    ]
    found: dict[str, Given] = {}
    for layer in reversed(layers):
        found |= layer
    read = {name: _read(FIELDS[name], given) for name, given in found.items()}
    sources = {name: found[name].source if name in found else DEFAULT for name in FIELDS}
    return Loaded(_made(read, sources), sources, list(_doubts(environ)))


def _made(read: dict[str, Any], sources: dict[str, str]) -> ServerSettings:
    try:
        return ServerSettings(**read)
    except InvalidSettings as error:
        # The error begins with the names that it is about.
        names = str(error).partition(":")[0].split(", ")
        places = {sources[name] for name in names if name in sources} - {DEFAULT}
        if not places:
            raise
        raise InvalidSettings(f"{error} (from {', '.join(sorted(places))})") from None


def _of_file(path: Path) -> dict[str, Given]:
    where = f"config {path}"
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidSettings(f"{where}: {error.strerror}") from None
    except ValueError as error:
        # Bad TOML, bytes that are not UTF-8, or a number of thousands of digits.
        raise InvalidSettings(f"{where}: {error}") from None
    for name in found:
        if name not in FIELDS:
            raise InvalidSettings(f"{where}: {name} is no setting{_meant(name, list(FIELDS))}")
    return {name: Given(value, str(path)) for name, value in found.items()}


def _doubts(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a word on each variable that is no setting, but looks as if it was to be one.

    Others are left alone: an orchestrator sets DWELL_PORT and the like for a service named dwell.
    """
    known = {field.env.removeprefix(_PREFIX): field.env for field in FIELDS.values()}
    for name in sorted(environ):
        if name.startswith(_PREFIX) and name not in _OTHERS | set(known.values()):
            meant = get_close_matches(name.removeprefix(_PREFIX), known, 1, 0.7)
            if meant:
                yield f"{name} is no setting; {known[meant[0]]} is one"


def _meant(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


# --- values -------------------------------------------------------------------------------------


def _read(field: Field, given: Given) -> Any:
    """Return a value as the setting holds it; raises InvalidSettings, naming the source."""
    value = _converted(field, given.value)
    if value is None or (field.kind is int and not field.low <= value <= field.high):
        error = refusal(field.name, given.value, field.allowed)
        raise InvalidSettings(f"{error} (from {given.source})")
    return value


def _converted(field: Field, value: Any) -> Any:
    """Return a value of the setting's type, or None when it is not one."""
    if field.kind is bool:
        return _WORDS.get(value.lower()) if isinstance(value, str) else _exactly(bool, value)
    if field.kind is int:
        return _number(field, value) if isinstance(value, str) else _exactly(int, value)
    if field.choices:
        return value if value in field.choices else None
    return _exactly(str, value)


def _exactly(kind: type, value: Any) -> Any:
    return value if type(value) is kind else None


def _number(field: Field, text: str) -> int | None:
    found = _SIZE.fullmatch(text.strip())
    if found and (found[2] is None or field.unit == "bytes"):
        return int(found[1]) * _SIZES[found[2]]
    if field.unit == "ms":
        try:
            return values.delay_ms(text.strip(), field.name)
        except InvalidTime:
            return None
    return None


# --- showing ------------------------------------------------------------------------------------


def show(loaded: Loaded) -> str:
    """Return the settings as an equivalent file, with the source of each as a comment.

    Only a password in the store's URL is left out.
    """
    found = {**msgspec.structs.asdict(loaded.settings), "store": loaded.settings.store_shown}
    lines = [(f"{name} = {_said(found[name])}", name) for name in FIELDS]
    width = max(len(line) for line, _ in lines)
    text = "".join(f"{line:<{width}}  # {loaded.sources[name]}\n" for line, name in lines)
    return "".join(f"# {doubt}\n" for doubt in loaded.doubts) + text


def _said(value: str | int | bool) -> str:
    # A text of JSON is one of TOML too, but for this character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
