"""``dwell put``: one message, or one for each line."""

from typing import Annotated, Any

import typer

from dwell.cli import given
from dwell.cli.bulk import put_lines
from dwell.cli.exits import require
from dwell.cli.files import LINES, kind_of
from dwell.cli.options import DelayOption, DueOption, LeaseOption, TopicArgument
from dwell.cli.session import Session, session_of
from dwell.cli.tables import put_file
from dwell.cli.texts import printable
from dwell.errors import InvalidInput
from dwell.message import DEFAULT_PRIORITY, Result
from dwell.wire.rows import Line, words_of

#: The results of a put whose message is in the queue as requested.
_IN = (Result.CREATED, Result.KEPT, Result.REPLACED)


def _option(metavar: str, text: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, show_default=False)


_Body = Annotated[
    str | None,
    typer.Argument(
        metavar="BODY", help="The body, or - to read it from standard input.", show_default=False
    ),
]
_Many = Annotated[
    str | None,
    _option(
        "FILE", "Put a message for each line of a file of JSON objects, or - for standard input."
    ),
]
_From = Annotated[
    str | None,
    _option(
        "FILE",
        "Put a message for each row of a file: Parquet, Arrow, CSV, or lines of JSON.",
        "--from",
    ),
]
_Rejected = Annotated[
    str | None,
    _option("FILE", "With --from: write the rows that no message can be there, as lines of JSON."),
]
_Id = Annotated[str | None, _option("ID", "Your own id, unique in the topic.", "--id")]
_DelayLevel = Annotated[int | None, _option("N", "One of the topic's delay levels, from 1.")]
_Priority = Annotated[int, typer.Option(metavar="N", help="Lower is taken first.")]
_Ttl = Annotated[str | None, _option("SPAN", "Not taken within this time, it is buried.")]
_Expires = Annotated[
    str | None,
    _option("TIME", "Not taken by then, it is buried: ISO 8601 with a zone, or epoch ms."),
]
_Key = Annotated[str | None, _option("TEXT", "The key that orders messages.")]
_Header = Annotated[list[str] | None, _option("NAME=VALUE", "A header; may be repeated.")]
_MaxAttempts = Annotated[
    int | None, _option("N", "How often it may be taken. By default the topic's setting.")
]
_OnConflict = Annotated[
    str, typer.Option(metavar="WORD", help="On an id that exists: keep, replace or error.")
]


def put(
    context: typer.Context,
    topic: TopicArgument,
    body: _Body = None,
    many: _Many = None,
    from_: _From = None,
    rejected: _Rejected = None,
    id_: _Id = None,
    delay: DelayOption = None,
    due: DueOption = None,
    delay_level: _DelayLevel = None,
    priority: _Priority = DEFAULT_PRIORITY,
    lease: LeaseOption = None,
    ttl: _Ttl = None,
    expires: _Expires = None,
    key: _Key = None,
    header: _Header = None,
    max_attempts: _MaxAttempts = None,
    on_conflict: _OnConflict = "keep",
) -> None:
    """Put a message, to be taken once it is due: now unless a time is given.

    With --many each line is a JSON object with a body or a body_base64, and optionally id, due,
    due_ms, delay, delay_level, priority, lease, ttl, expires, key, headers and max_attempts. The
    options are the defaults for all lines. Lines are put in batches of 1000: a batch with a bad
    line is not put, but the batches before it are.

    With --from each row of a table is a message: the columns have the names of the fields of
    --many, and delay_ms, lease_ms, ttl_ms and expires_ms are milliseconds. The first row that no
    message can be ends it, unless --rejected names a file for such rows.
    """
    if from_ is not None and kind_of(from_) not in LINES:
        _refuse_beside_table(context)
        put_file(session_of(context), topic, from_, rejected, on_conflict)
        return
    if rejected is not None:
        raise InvalidInput("rejected: got a file, expected --from with a table beside it")
    many = from_ if many is None else many
    defaults = Line(
        id=id_,
        delay=delay,
        due=due,
        delay_level=delay_level,
        priority=priority,
        lease=lease,
        ttl=ttl,
        expires=expires,
        key=key,
        headers=given.headers(header or ()),
        max_attempts=max_attempts,
    )
    if many is None:
        _put_one(session_of(context), topic, _required(body), defaults, on_conflict)
    else:
        if body is not None or id_ is not None:
            raise InvalidInput("many: got a body or --id beside it, expected --many alone")
        put_lines(session_of(context), topic, many, defaults, on_conflict)


def _refuse_beside_table(context: typer.Context) -> None:
    """Raise InvalidInput for options of single messages, which the rows say themselves."""
    allowed = ("topic", "from_", "rejected", "on_conflict")
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            shown = name if name == "body" else "--" + name.strip("_").replace("_", "-")
            raise InvalidInput(f"from: got {shown} beside it, expected a column of the table")


def _required(body: str | None) -> str:
    if body is None:
        raise InvalidInput(
            "body: got none, expected a body, - for standard input, --many FILE or --from FILE"
        )
    return body


def _put_one(session: Session, topic: str, body: str, line: Line, on_conflict: str) -> None:
    data, words = given.body(body), words_of(line)
    with session.queue(create=True) as queue:
        put = queue.put(topic, data, on_conflict=on_conflict, **words)
    is_in = put.result in _IN
    answer = {"topic": topic, "id": put.id, "result": str(put.result)}
    session.out.confirm(answer, f"{put.result}  {printable(put.id)}", is_as_asked=is_in)
    require(is_in)
