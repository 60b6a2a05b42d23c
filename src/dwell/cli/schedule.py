"""``dwell schedule``: messages that are put repeatedly, by a calendar."""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from dwell.cli import given
from dwell.cli.exits import require
from dwell.cli.options import LeaseOption
from dwell.cli.preview import preview
from dwell.cli.session import Session, session_of
from dwell.cli.terminal import table
from dwell.cli.texts import away_text, cut, printable, span_text, time_text
from dwell.clock import RealClock
from dwell.errors import InvalidInput
from dwell.message import DEFAULT_PRIORITY, Result
from dwell.threads.sync import SyncQueue
from dwell.wire.rows import span_of


class Action(StrEnum):
    """The action of the command."""

    PUT = "put"
    CHANGE = "change"
    LIST = "list"
    SHOW = "show"
    NEXT = "next"
    RUNS = "runs"
    PREVIEW = "preview"
    RUN = "run"
    PAUSE = "pause"
    RESUME = "resume"
    REMOVE = "remove"


def _text(metavar: str, text: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, show_default=False)


def _place(metavar: str, text: str) -> Any:
    return typer.Argument(metavar=metavar, help=text, show_default=False)


def _number(text: str) -> int | None:
    """Read a whole number; an empty text stands for the default."""
    return int(text) if text else None


class _Named(NamedTuple):
    """A verb on a schedule by its name, and its successful results."""

    verb: Callable[[SyncQueue, str], Result]
    wanted: tuple[Result, ...]


_BY_NAME = {
    Action.RUN: _Named(lambda q, name: q.schedules.run(name).result, (Result.CREATED,)),
    Action.PAUSE: _Named(lambda q, name: q.schedules.pause(name), (Result.REPLACED, Result.KEPT)),
    Action.RESUME: _Named(lambda q, name: q.schedules.resume(name), (Result.REPLACED, Result.KEPT)),
    Action.REMOVE: _Named(lambda q, name: q.schedules.remove(name), (Result.CANCELLED,)),
}

#: The options that say when a schedule runs.
_WHEN = ("cron", "dialect", "every", "rrule", "zone", "start", "end", "days_off", "when_off")
#: The options of an action in addition to the name; put and change take all except ``count``.
_TAKES = {
    Action.PREVIEW: (*_WHEN, "count"),
    Action.NEXT: ("count",),
    Action.RUNS: ("count",),
}

#: How many runs show tells.
_SHOWN_RUNS = 3
_SPANS = ("every", "jitter", "grace", "lease", "ttl")
#: Words of the API without a default that an empty text could stand for.
_NEEDED = {"topic", "body", "cron", "every", "rrule", "dialect"}
#: Words of the API whose options have another name.
_PARAMETERS = {"headers": "header", "days_off": "day_off"}

_ActionOf = Annotated[
    Action,
    _place("ACTION", "put, change, list, show, next, runs, preview, run, pause, resume or remove."),
]
_Name = Annotated[str | None, _place("[NAME]", "What the schedule is called.")]
_Topic = Annotated[str | None, _place("[TOPIC]", "Where its messages go.")]
_Body = Annotated[str | None, _place("[BODY]", "Their body, or - for standard input.")]
_Cron = Annotated[str | None, _text("LINE", 'A line of cron: "0 9 * * mon-fri".')]
_Dialect = Annotated[
    str, typer.Option(metavar="WORD", help="For which system the line of cron was written.")
]
_Every = Annotated[str | None, _text("SPAN", "A span: 15m.")]
_Rrule = Annotated[
    str | None,
    _text("RULE", "A rule of RFC 5545: FREQ=MONTHLY;BYDAY=-1FR. Or the lines of a calendar."),
]
_Zone = Annotated[str, typer.Option(metavar="NAME", help="The time zone of the rule.")]
_Start = Annotated[str | None, _text("TIME", "Not before: ISO 8601 with a zone.")]
_End = Annotated[str | None, _text("TIME", "Not after.")]
_DayOff = Annotated[
    list[str] | None, _text("DAY", "A weekday (sat) or date without a run; may be repeated.")
]
_WhenOff = Annotated[
    str, typer.Option(metavar="WORD", help="What a run on a day off is: skip, before or after.")
]
_Jitter = Annotated[str, typer.Option(metavar="SPAN", help="Each up to so much later.")]
_Misfire = Annotated[str, typer.Option(metavar="WORD", help="What was missed: once, all or skip.")]
_Overlap = Annotated[
    str,
    typer.Option(
        metavar="WORD", help="While the message before is not done: queue, skip or replace."
    ),
]
_Grace = Annotated[str, typer.Option(metavar="SPAN", help="How late is not too late for skip.")]
_Key = Annotated[str | None, _text("TEXT", "The key that orders messages.")]
_Header = Annotated[list[str] | None, _text("NAME=VALUE", "A header; may be repeated.")]
_Priority = Annotated[
    int | None, typer.Option(metavar="N", parser=_number, help="Lower is taken first.")
]
_MaxAttempts = Annotated[
    int | None,
    typer.Option(
        metavar="N", parser=_number, help="How often each may be taken.", show_default=False
    ),
]
_Ttl = Annotated[str | None, _text("SPAN", "Not taken within this time, it is buried.")]
_Count = Annotated[
    int, typer.Option(metavar="N", min=1, help="How many runs next, runs and preview show.")
]


def schedule(
    context: typer.Context,
    action: _ActionOf,
    name: _Name = None,
    topic: _Topic = None,
    body: _Body = None,
    cron: _Cron = None,
    dialect: _Dialect = "crontab",
    every: _Every = None,
    rrule: _Rrule = None,
    zone: _Zone = "UTC",
    start: _Start = None,
    end: _End = None,
    day_off: _DayOff = None,
    when_off: _WhenOff = "skip",
    jitter: _Jitter = "0s",
    misfire: _Misfire = "once",
    overlap: _Overlap = "queue",
    grace: _Grace = "1m",
    key: _Key = None,
    header: _Header = None,
    priority: _Priority = DEFAULT_PRIORITY,
    lease: LeaseOption = None,
    max_attempts: _MaxAttempts = None,
    ttl: _Ttl = None,
    count: _Count = 5,
) -> None:
    """Put messages again and again, by a calendar; they fire where a server or a worker runs.

    `put NAME TOPIC BODY` with --cron, --every or --rrule makes one or replaces it, `change NAME`
    changes only what the options name, where an empty text (--end "") gives a default back, `list`
    shows all, `show` one, `next` its next runs, `runs` its last runs with what became of their
    messages; `run` puts its message now; `preview LINE`, or --cron, --every or --rrule, shows the
    runs of a rule before it is put; `pause`, `resume` and `remove` do what they say.
    """
    session = session_of(context)
    spans = {"every": every, "jitter": jitter, "grace": grace, "lease": lease, "ttl": ttl}
    words: dict[str, Any] = {word: span_of(span) for word, span in spans.items()}
    words |= {"cron": cron, "dialect": dialect, "rrule": rrule, "zone": zone}
    words |= {"start": start, "end": end, "misfire": misfire, "key": key}
    is_emptied = action is Action.CHANGE and header == [""]
    words |= {"headers": None if is_emptied else given.headers(header or ()), "priority": priority}
    words |= {"max_attempts": max_attempts, "overlap": overlap}
    words |= {"days_off": day_off or (), "when_off": when_off}
    _refuse_untaken(context, action, [*words, "topic", "body", "count"])
    if action is Action.LIST:
        _list(session)
    elif action is Action.PREVIEW:
        preview(session.out, {word: words[word] for word in _WHEN} | _line(cron, name), count)
    elif name is None:
        raise InvalidInput(f"name: got none, expected the schedule to {action}")
    elif action is Action.PUT:
        _put(session, name, topic, body, words)
    elif action is Action.CHANGE:
        words |= {"topic": topic, "body": None if body is None else given.body(body)}
        _change(
            session, name, {word: _or_none(word, words[word]) for word in _given(context, words)}
        )
    else:
        _by_name(session, action, name, count)


def _line(cron: str | None, name: str | None) -> dict[str, str | None]:
    """Return the line of cron, which stands in the place of a name or in its option."""
    if cron and name:
        raise InvalidInput(f"preview: got {name!r:.80} and --cron, expected one line of cron")
    return {"cron": cron or name}


def _by_name(session: Session, action: Action, name: str, count: int) -> None:
    if action is Action.RUNS:
        _runs(session, name, count)
    elif action not in _BY_NAME:
        _show(session, name, count if action is Action.NEXT else 0)
    else:
        with session.queue() as queue:
            result = _BY_NAME[action].verb(queue, name)
        _said(session, name, result, _BY_NAME[action].wanted)


def _put(
    session: Session, name: str, topic: str | None, body: str | None, words: dict[str, Any]
) -> None:
    if topic is None or body is None:
        raise InvalidInput("put: expected a name, a topic and a body")
    data = given.body(body)
    with session.queue(create=True) as queue:
        result = queue.schedules.put(name, topic, data, **words)
    _said(session, name, result, (Result.CREATED, Result.REPLACED, Result.KEPT))


def _given(context: typer.Context, words: Iterable[str]) -> list[str]:
    """Return the words that the command line names."""
    sources = {word: context.get_parameter_source(_PARAMETERS.get(word, word)) for word in words}
    return [word for word, source in sources.items() if source and source.name == "COMMANDLINE"]


def _refuse_untaken(context: typer.Context, action: Action, words: Iterable[str]) -> None:
    """Raise InvalidInput for options that the action does not take."""
    if action in (Action.PUT, Action.CHANGE):
        taken = {*words} - {"count"}
    else:
        taken = {*_TAKES.get(action, ())}
    for word in _given(context, words):
        if word not in taken:
            name = word if word in ("topic", "body") else _option(word)
            allowed = ", ".join(map(_option, sorted(taken))) or "nothing but a name"
            raise InvalidInput(f"{action}: got {name}, expected {allowed}")


def _option(word: str) -> str:
    return "--" + _PARAMETERS.get(word, word).replace("_", "-")


def _or_none(word: str, value: Any) -> Any:
    """Return None, which stands for the default, for an empty text."""
    return None if value in ("", [""]) and word not in _NEEDED else value


def _change(session: Session, name: str, words: dict[str, Any]) -> None:
    if not words:
        raise InvalidInput("change: got nothing to change, expected a topic, a body or an option")
    with session.queue() as queue:
        result = queue.schedules.change(name, **words)
    _said(session, name, result, (Result.REPLACED, Result.KEPT))


def _said(session: Session, name: str, result: Result, wanted: tuple[Result, ...]) -> None:
    is_as_asked = result in wanted
    answer = {"schedule": name, "result": str(result)}
    session.out.confirm(answer, f"{result}  {printable(name)}", is_as_asked=is_as_asked)
    require(is_as_asked)


def _list(session: Session) -> None:
    now_ms = RealClock().now_ms()
    with session.queue() as queue:
        rows = (found.as_dict() for found in queue.schedules.each())
        if session.out.json:
            for row in rows:
                session.out.object(row)
            return
        lines = [[printable(str(cell)) for cell in _cells(row, now_ms)] for row in rows]
    if lines:
        shown = table("schedule", "topic", "when", "zone", "next", "last")
        for line in lines:
            shown.add_row(*line)
        session.out.show(shown)


def _cells(row: dict[str, Any], now_ms: int) -> Iterator[str]:
    every = f"every {span_text(row['every_ms'])}" if row["every_ms"] else ""
    yield row["name"]
    yield row["topic"]
    yield cut(printable(row["cron"] or row["rrule"] or every))
    yield row["zone"]
    yield away_text(row["next_ms"], now_ms) if row["next_ms"] else row["problem"] or "paused"
    yield away_text(row["last_ms"], now_ms) if row["last_ms"] else ""


def _runs(session: Session, name: str, count: int) -> None:
    with session.queue() as queue:
        if queue.schedules.get(name) is None:
            _said(session, name, Result.UNKNOWN, ())
            return
        runs, is_whole = queue.schedules.runs(name, count)
    if session.out.json:
        for run in runs:
            session.out.object(msgspec.structs.asdict(run))
    elif runs:
        shown = table("moment", "put", "state", "since", "attempt")
        for run in runs:
            times = [time_text(ms) for ms in (run.moment_ms, run.put_ms, run.last_ms)]
            shown.add_row(*times[:2], run.state, times[2], str(run.attempt))
        session.out.show(shown)
    if not is_whole:
        session.out.note("the event log has more than was searched")


def _show(session: Session, name: str, count: int) -> None:
    with session.queue() as queue:
        found = queue.schedules.get(name)
        if found is None:
            _said(session, name, Result.UNKNOWN, ())
            return
        asked = count or (0 if session.out.json else _SHOWN_RUNS)
        runs = [run.isoformat() for run in queue.schedules.next(name, asked)] if asked else []
    if count:
        if found.next_ms is None:
            why = "paused" if found.problem is None else f"dead ({found.problem})"
            session.out.note(f"{printable(name)} is {printable(why)}, so nothing comes next")
        for run in runs:
            session.out.object({"run": run}) if session.out.json else session.out.line(run)
    elif session.out.json:
        session.out.object(found.as_dict())
    else:
        for field, text in _fields(found.as_dict(), runs):
            session.out.line(f"{field:<14}{printable(text)}")


def _field_text(name: str, value: Any) -> str:
    if name == "days_off":
        return " ".join(value)
    text = span_text if name in _SPANS else time_text if name in ("start", "end") else str
    return text(value)


def _fields(row: dict[str, Any], runs: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the shown fields of a schedule: times as times, and spans as they are given."""
    for field, value in row.items():
        name = field.removesuffix("_ms")
        if name in ("next", "last"):
            continue
        if value not in (None, "", {}, (), 0, False):
            yield name, _field_text(name, value)
    yield "last", time_text(row["last_ms"]) if row["last_ms"] else "never"
    for run in runs:
        yield "next", run
