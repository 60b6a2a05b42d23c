"""``dwell settings``: the defaults and limits of a topic's messages."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from dwell.cli.options import TopicArgument
from dwell.cli.output import Output
from dwell.cli.session import session_of
from dwell.cli.terminal import table
from dwell.cli.texts import rate_text, span_text
from dwell.errors import InvalidSettings, InvalidTime
from dwell.given import values
from dwell.message import TopicSettings

_SPANS = "_ms"


def settings(
    context: typer.Context,
    topic: TopicArgument,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="What to change.", show_default=False),
    ] = None,
) -> None:
    """Show a topic's settings, or change some of them and show them all.

    Spans are milliseconds, or have a unit: lease_ms=30s. Lists have commas: retry_delays_ms=1s,5s.
    """
    session = session_of(context)
    changed = dict(map(_change, changes or ()))
    with session.queue(create=bool(changed)) as queue:
        found = queue.configure(topic, **changed) if changed else queue.settings(topic)
    if session.out.json:
        session.out.object({"topic": topic, **msgspec.to_builtins(found)})
    elif not (changed and session.out.quiet):
        _show(session.out, found)


def _change(given: str) -> tuple[str, Any]:
    name, equals, text = given.partition("=")
    if not equals:
        raise values.refusal(InvalidSettings, "settings", given, "name=value")
    return name, _value(name, text)


def _value(name: str, text: str) -> Any:
    """Return the value of a text; the queue checks whether it is allowed."""
    if isinstance(getattr(TopicSettings(), name, None), tuple):
        return [_item(name, item) for item in text.strip("[]").split(",") if item]
    return _item(name, text)


def _item(name: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        pass
    if not name.endswith(_SPANS):
        return text
    try:
        return values.delay_ms(text, name)
    except InvalidTime as error:
        raise InvalidSettings(str(error)) from None


def _show(out: Output, found: TopicSettings) -> None:
    made = table("setting", "value")
    for name, value in msgspec.to_builtins(found).items():
        made.add_row(Text(name), Text(_said(name, value)))
    out.show(made)


def _said(name: str, value: Any) -> str:
    """Return a value as the text that sets it."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(_said(name, item) for item in value)
    if name.endswith(_SPANS):
        return span_text(value)
    if name == "rate":
        return rate_text(value)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
