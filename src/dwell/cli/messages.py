"""Messages as objects for programs, and as blocks and tables for people."""

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from dwell.cli.terminal import table
from dwell.cli.texts import away_text, body_text, cut, printable, span_text, time_text
from dwell.message import DEFAULT_PRIORITY, Message, State
from dwell.wire.rows import state_text

_STYLES = {
    State.DELAYED: "cyan",
    State.READY: "green",
    State.LEASED: "yellow",
    State.DEAD: "red",
}


def message_block(message: Message, now_ms: int) -> Text:
    """Return everything about one message, a line for each thing that it has."""
    text = Text()
    text.append(printable(message.id), "bold")
    text.append(f"  {message.topic}  ")
    text.append(state_text(message.state), _STYLES[message.state])
    for name, value in _facts(message, now_ms):
        text.append(f"\n  {name:<11}", "dim")
        text.append(value.replace("\n", "\n" + " " * 13))
    return text


def _facts(message: Message, now_ms: int) -> list[tuple[str, str]]:
    """Return the names and values of a message's fields; default values are left out."""
    facts = [
        ("receipt", message.receipt),
        ("due", _moment(message.due_ms, now_ms)),
        ("lease ends", _moment(message.lease_until_ms, now_ms)),
        ("died", _moment(message.died_ms, now_ms)),
        ("expires", _moment(message.expires_ms, now_ms)),
        ("attempt", _attempt(message)),
        ("priority", str(message.priority) if message.priority != DEFAULT_PRIORITY else None),
        ("lease", span_text(message.lease_ms) if message.lease_ms else None),
        ("key", printable(message.key) if message.key is not None else None),
        *(("header", printable(f"{name}={value}")) for name, value in message.headers.items()),
        ("last error", printable(message.last_error) if message.last_error else None),
        ("body", body_text(message.body, lines=True)),
    ]
    return [(name, value) for name, value in facts if value is not None]


def _moment(ms: int, now_ms: int) -> str | None:
    return f"{time_text(ms)}  ({away_text(ms, now_ms)})" if ms else None


def _attempt(message: Message) -> str:
    most = f" of {message.max_attempts}" if message.max_attempts else ""
    return f"{message.attempt}{most}"


# An optional column: its name, whether a message needs it, and its value for a message.
_Column = tuple[str, Callable[[Message], bool], Callable[[Message, int], str]]

_OPTIONAL: tuple[_Column, ...] = (
    ("lease ends", lambda m: m.lease_until_ms > 0, lambda m, now: away_text(m.lease_until_ms, now)),
    ("died", lambda m: m.died_ms > 0, lambda m, now: away_text(m.died_ms, now)),
    ("expires", lambda m: m.expires_ms > 0, lambda m, now: away_text(m.expires_ms, now)),
    ("priority", lambda m: m.priority != DEFAULT_PRIORITY, lambda m, now: str(m.priority)),
    ("key", lambda m: m.key is not None, lambda m, now: printable(m.key or "")),
    (
        "last error",
        lambda m: bool(m.last_error),
        lambda m, now: cut(printable(m.last_error or "")),
    ),
)


def message_table(messages: Sequence[Message], now_ms: int) -> Table:
    """Return a row for each message, with the columns that some of them need."""
    needed = [column for column in _OPTIONAL if any(map(column[1], messages))]
    names = [name for name, _, _ in needed]
    made = table("state", "id", "due", "", "attempt", *names, "body", right=("attempt", "priority"))
    for message in messages:
        made.add_row(
            Text(state_text(message.state), _STYLES[message.state]),
            Text(printable(message.id)),
            Text(time_text(message.due_ms)),
            Text(away_text(message.due_ms, now_ms)),
            Text(str(message.attempt)),
            *(Text(say(message, now_ms) if has(message) else "") for _, has, say in needed),
            Text(cut(body_text(message.body)), no_wrap=True, overflow="ellipsis"),
        )
    return made
