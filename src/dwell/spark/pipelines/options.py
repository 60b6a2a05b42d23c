"""The command line of a pipeline, made from its settings class."""

import argparse
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Union, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from dwell.errors import InvalidSettings
from dwell.given import values

LOG_LEVELS = ("ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")

_UNIONS = (Union, types.UnionType)


class Wanted(NamedTuple):
    """The result of a command line: the pipeline's settings, and options for Spark."""

    settings: msgspec.Struct
    master: str | None
    conf: dict[str, str]
    log_level: str


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are the errors of Dwell."""

    def error(self, message: str) -> NoReturn:
        """Refuse a command line."""
        raise InvalidSettings(f"{message} (see {self.prog} --help)")


class _Option(NamedTuple):
    """One field of the settings, in the form of a command line."""

    field: FieldInfo
    about: str
    kind: Any

    @property
    def flag(self) -> str:
        return "--" + self.field.name.replace("_", "-")

    @property
    def is_mapping(self) -> bool:
        return self.kind in (dict, Mapping)

    @property
    def is_repeated(self) -> bool:
        return self.is_mapping or self.kind in (list, tuple, set, frozenset, Sequence)


def parse(name: str, about: str, cls: type[msgspec.Struct], argv: Sequence[str]) -> Wanted:
    """Return the request of a command line; raises InvalidSettings."""
    options = [_option(field) for field in msgspec.structs.fields(cls)]
    given = vars(_parser(name, about, options).parse_args(argv))
    missing = [o.flag for o in options if o.field.required and given[o.field.name] is None]
    if missing:
        what = "is required" if len(missing) == 1 else "are required"
        raise InvalidSettings(f"{', '.join(missing)}: {what} (see dwell pipeline {name} --help)")
    settings = {
        option.field.name: _value(option, given[option.field.name])
        for option in options
        if given[option.field.name] is not None
    }
    return Wanted(
        settings=cls(**settings),
        master=given["spark_master"],
        conf=_pairs("--conf", given["spark_conf"] or []),
        log_level=given["spark_log_level"],
    )


# --- from fields to options -----------------------------------------------------------------------


def _option(field: FieldInfo) -> _Option:
    about = " ".join(_descriptions(field.type))
    default = field.default
    if not field.required and default not in (None, "", (), False, msgspec.NODEFAULT):
        about = f"{about} Default: {default}."
    return _Option(field, about, _kind(field.type))


def _descriptions(hint: Any) -> Iterator[str]:
    """Yield the descriptions in a type, of the whole or of a part."""
    if get_origin(hint) is Annotated:
        yield from (meta.description for meta in hint.__metadata__ if meta.description)
        yield from _descriptions(hint.__origin__)
    elif get_origin(hint) in _UNIONS:
        for part in get_args(hint):
            yield from _descriptions(part)


def _kind(hint: Any) -> Any:
    """Return the type without its wrapping: list for ``list[str] | None``."""
    if get_origin(hint) is Annotated:
        return _kind(hint.__origin__)
    if get_origin(hint) in _UNIONS:
        return _kind(next(part for part in get_args(hint) if part is not type(None)))
    if get_origin(hint) is Literal:
        return hint
    return get_origin(hint) or hint


def _parser(name: str, about: str, options: Sequence[_Option]) -> _Parser:
    parser = _Parser(
        prog=f"dwell pipeline {name}",
        description=_escaped(about),
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for option in options:
        _add(parser, option)
    spark = parser.add_argument_group("how Spark is run")
    about_master = "Where it runs: local[2], spark://HOST:7077, yarn, k8s://... Default: local[*]."
    spark.add_argument("--master", dest="spark_master", metavar="URL", help=about_master)
    spark.add_argument(
        "--conf",
        dest="spark_conf",
        action="append",
        metavar="KEY=VALUE",
        help="A setting of Spark's own. May be repeated.",
    )
    spark.add_argument(
        "--log-level",
        dest="spark_log_level",
        default="ERROR",
        type=str.upper,
        choices=LOG_LEVELS,
        metavar="LEVEL",
        help="What Spark says: DEBUG, INFO, WARN, ERROR or OFF. Default: ERROR, without the "
        "stacks of what ends the run.",
    )
    return parser


def _add(parser: argparse.ArgumentParser, option: _Option) -> None:
    name, about = option.field.name, _escaped(option.about)
    if option.kind is bool:
        action = argparse.BooleanOptionalAction
        parser.add_argument(option.flag, dest=name, action=action, default=None, help=about)
    elif option.is_repeated:
        about += " May be repeated."
        form = _form(option)
        parser.add_argument(option.flag, dest=name, action="append", metavar=form, help=about)
    else:
        parser.add_argument(option.flag, dest=name, metavar=_form(option), help=about)


def _form(option: _Option) -> str:
    if option.is_mapping:
        return "KEY=VALUE"
    if get_origin(option.kind) is Literal:
        return "|".join(map(str, get_args(option.kind)))
    return {int: "N", float: "X"}.get(option.kind, option.field.name.upper())


def _escaped(text: str) -> str:
    return text.replace("%", "%%")


# --- from texts to values -------------------------------------------------------------------------


def _value(option: _Option, given: Any) -> Any:
    """Return a value as the field's own type; raises InvalidSettings."""
    if option.is_mapping:
        given = _pairs(option.flag, given)
    try:
        return msgspec.convert(given, option.field.type, strict=False)
    except msgspec.ValidationError as error:
        allowed = _allowed(option, str(error))
        raise values.refusal(InvalidSettings, option.flag, given, allowed) from None


def _allowed(option: _Option, error: str) -> str:
    if get_origin(option.kind) is Literal:
        return "one of " + ", ".join(map(str, get_args(option.kind)))
    expected = error.partition(" - at ")[0].partition(", got")[0]
    return expected.removeprefix("Expected ").replace("`", "")


def _pairs(flag: str, given: Sequence[str]) -> dict[str, str]:
    """Return ``key=value`` texts as a dict; the last value of a key counts."""
    pairs = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise values.refusal(InvalidSettings, flag, text, "KEY=VALUE")
        pairs[key] = value
    return pairs
