"""``dwell export`` and ``dwell import``: all messages as a data set of Parquet, and back."""

import contextlib
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from dwell.cli.bulk import bar
from dwell.cli.exits import refused_after, require
from dwell.cli.output import Output
from dwell.cli.session import session_of
from dwell.cli.tables import written
from dwell.cli.texts import count_text, printable
from dwell.queue.exports.manifest import Counts, Manifest, read
from dwell.queue.exports.report import Imported, Tally


def export(
    context: typer.Context,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="The folder to make.", show_default=False)
    ],
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]...", help="The topics. By default all.", show_default=False
        ),
    ] = None,
) -> None:
    """Write all messages, delayed, ready, leased and dead, to a folder of Parquet files.

    Both the store and its workers keep working. The folder is whole when it has _manifest.json,
    which is written last. PyArrow, DuckDB, Polars and Spark read it where it lies; `dwell import`
    puts its messages into any store.
    """
    session = session_of(context)
    with session.queue() as queue, bar(session.out, "{task.completed:,} messages") as shown:
        task = shown.add_task("export", total=None)
        manifest = queue.export(
            to, topics or (), tell=lambda rows: shown.update(task, completed=rows)
        )
        missing = [topic for topic in topics or () if topic not in manifest.topics]
        if missing:
            session.say_if_missing(queue, *missing)
    session.out.confirm(_object(to, manifest), _text(manifest))


def _object(to: Path, manifest: Manifest) -> dict[str, Any]:
    return {
        "to": str(to),
        "messages": manifest.rows,
        "files": len(manifest.files),
        "bytes": sum(file.bytes for file in manifest.files),
        "topics": {name: msgspec.to_builtins(found) for name, found in manifest.topics.items()},
    }


def _text(manifest: Manifest) -> str:
    lines = [f"{printable(topic)}: {_states(counts)}" for topic, counts in manifest.topics.items()]
    total = count_text(manifest.rows, "message")
    return "\n".join([*lines, f"{total} in {count_text(len(manifest.files), 'file')}"])


def _states(counts: Counts) -> str:
    named = msgspec.structs.asdict(counts).items()
    return ", ".join(f"{count:,} {state}" for state, count in named if count)


def import_(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="What export has made.", show_default=False)
    ],
    dead: Annotated[
        str,
        typer.Option(
            metavar="WORD", help="Dead messages: keep them dead, put them as pending, or skip them."
        ),
    ] = "keep",
    settings: Annotated[
        bool,
        typer.Option("--settings", help="Give topics with default settings those of the export."),
    ] = False,
    rejected: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the messages that cannot be put to a file, as lines of JSON.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Put the messages of an export, of this store or another one, and count them by topic.

    All files are checked before anything is put. Messages keep their id, due, body, key, headers,
    priority, lease, expiry and limit of attempts; attempts count from 0, and leased messages are
    pending again. Existing ids are kept, so that an interrupted run can be repeated.
    """
    session = session_of(context)
    # Before a store is made for what is no export.
    read(folder)
    done = Imported()

    def tell(report: Imported) -> None:
        nonlocal done
        done = report
        shown.update(task, completed=report.total.read, total=report.rows)

    with contextlib.ExitStack() as stack:
        refuse = (
            None if rejected is None else stack.enter_context(written(rejected, may_replace=True))
        )
        queue = stack.enter_context(session.queue(create=True))
        stack.callback(lambda: _say(session.out, folder, done))
        stack.enter_context(refused_after(lambda: done.total.created, "message"))
        shown = stack.enter_context(bar(session.out, "{task.completed:,} messages"))
        task = shown.add_task("import", total=None)
        done = queue.put_export(folder, dead=dead, settings=settings, on_bad=refuse, tell=tell)
    require(_is_as_asked(done))


def _is_as_asked(done: Imported) -> bool:
    total = done.total
    return done.is_whole and done.balances and not total.rejected and not total.dropped


def _say(out: Output, folder: Path, done: Imported) -> None:
    """Say what became of the messages, also if it ended early, as those stay put."""
    if not done.rows and not done.is_whole:
        return
    answer = {
        "from": str(folder),
        "messages": done.rows,
        **vars(done.total),
        "balances": done.balances,
        "is_whole": done.is_whole,
        "settings": done.settings,
        "strange_settings": done.strange_settings,
        "topics": {topic: vars(tally) for topic, tally in sorted(done.topics.items())},
    }
    lines = [f"{printable(topic)}: {_tally(one)}" for topic, one in sorted(done.topics.items())]
    lines.append(f"{_tally(done.total)}, of {count_text(done.rows, 'message')}")
    if done.settings:
        lines.append(f"settings of {', '.join(map(printable, done.settings))}")
    if done.strange_settings:
        lines.append(
            f"left out unknown settings {', '.join(map(printable, done.strange_settings))}"
        )
    if not done.is_whole:
        lines.append("stopped before the end; run it again")
    elif not done.balances:
        lines.append("the count DOES NOT BALANCE")
    out.confirm(answer, "\n".join(lines), is_as_asked=_is_as_asked(done))


def _tally(tally: Tally) -> str:
    said = [f"{tally.read:,} read: {tally.created:,} created", f"{tally.kept:,} already there"]
    rest = (("rejected", tally.rejected), ("dropped", tally.dropped), ("skipped", tally.skipped))
    return ", ".join([*said, *(f"{count:,} {word}" for word, count in rest if count)])
