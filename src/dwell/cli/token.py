"""``dwell token``: make a token for a server, and the entry of its token file."""

import json
import secrets
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from dwell.cli.output import Output
from dwell.cli.session import session_of
from dwell.cli.tokenfile import changed, hashes_changed
from dwell.errors import InvalidInput
from dwell.server.tokens import (
    Entry,
    Quota,
    Right,
    Tokens,
    check_entry,
    hash_of,
    moment,
    read_text,
)

#: How a token begins, so that people and scanners know one when they see it.
PREFIX = "dwell_"

_TOKEN_BYTES = 32
_ABOUT = "May {} the topics that begin so; an empty text means all topics."


def _right(verb: str) -> Any:
    return typer.Option(metavar="PREFIX", help=_ABOUT.format(verb), show_default=False)


_Quotas = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=NUMBER",
        help=f"How much it may have and ask for: {', '.join(Quota.__struct_fields__)}.",
        show_default=False,
    ),
]
_End = Annotated[
    str | None,
    typer.Option(
        metavar="WHEN",
        help="From when on it is refused: a moment with its zone, or a date.",
        show_default=False,
    ),
]
_Metrics = Annotated[bool, typer.Option("--metrics", help="May ask for /metrics alone.")]
_File = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The token file to change.", show_default=False),
]
_Add = Annotated[
    bool, typer.Option("--add", help="Make another secret for a token of the file; all are good.")
]
_Drop = Annotated[
    bool, typer.Option("--drop", help="Forget all secrets of a token of the file but the newest.")
]


def token(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Whose token it is.", show_default=False)
    ],
    put: Annotated[list[str] | None, _right("put to")] = None,
    take: Annotated[list[str] | None, _right("take from")] = None,
    read: Annotated[list[str] | None, _right("look at")] = None,
    admin: Annotated[list[str] | None, _right("administer")] = None,
    metrics: _Metrics = False,
    quota: _Quotas = None,
    expires: _End = None,
    file: _File = None,
    add: _Add = False,
    drop: _Drop = False,
) -> None:
    """Make a token, and print it: nobody can show it again, since only its hash is kept.

    A server reads its token file when it starts, and again when it gets SIGHUP.
    """
    out = session_of(context).out
    given = {"put": put, "take": take, "read": read, "admin": admin, "quota": quota}
    if add or drop:
        if any(given.values()) or metrics or expires or file is None or (add and drop):
            raise InvalidInput("token: got more beside --add or --drop, expected --file alone")
        return _rotate(out, file, name, is_new=add)
    text = _secret()
    entry = Entry(
        name=name,
        sha256=hash_of(text),
        put=tuple(put or ()),
        take=tuple(take or ()),
        read=tuple(read or ()),
        admin=tuple(admin or ()),
        metrics=metrics,
        quota=_quota(quota or []),
        expires=_moment(expires),
    )
    check_entry(entry, "token")
    if not entry.prefixes(tuple(Right)):
        options = ", ".join(f"--{right}" for right in Right)
        raise InvalidInput(f"token: got no right, expected one of {options}")
    if file is not None:
        changed(file, partial(_appended, file, entry))
    if out.json:
        return out.object({"token": text, **msgspec.to_builtins(entry)})
    out.line(text)
    if file is None:
        return out.line(f"\n{_toml(entry)}".rstrip("\n"))
    return out.note(f"its hash is in {file}; a server that runs reads it on SIGHUP")


def _secret() -> str:
    return PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)


def _appended(file: Path, entry: Entry, text: str) -> str:
    """Return the text of a token file with an entry more."""
    if text and entry.name in Tokens.load(file).names:
        raise InvalidInput(f"token: {file} has one named {entry.name} already")
    # The last line of the file may lack a newline.
    return f"{text}\n{_toml(entry)}" if text else _toml(entry)


def _rotate(out: Output, file: Path, name: str, *, is_new: bool) -> None:
    """Add a secret to a token of a file, or leave it the newest alone."""
    text = _secret()

    def change(hashes: list[str]) -> list[str]:
        return [*hashes, hash_of(text)] if is_new else hashes[-1:]

    def rewritten(before: str) -> str:
        tokens = Tokens.load(file)
        if name not in tokens.names:
            raise InvalidInput(f"token: {file} has none named {name}")
        after = hashes_changed(before, name, change)
        (entry,) = [one for one in read_text(after, str(file)).token if one.name == name]
        check_entry(entry, "token")
        return after

    if not file.exists():
        raise InvalidInput(f"token: there is no file {file}")
    changed(file, rewritten)
    if is_new:
        out.object({"token": text, "name": name}) if out.json else out.line(text)
    out.note(f"{file} is changed; a server that runs reads it on SIGHUP")


def _toml(entry: Entry) -> str:
    lines = ["[[token]]", f'name = "{entry.name}"', f'sha256 = "{entry.sha256}"']
    if entry.expires is not None:
        lines.append(f"expires = {entry.expires.isoformat()}")
    rights = {right: getattr(entry, right) for right in Right}
    lines += [f"{right} = {json.dumps(given)}" for right, given in rights.items() if given]
    if quota := msgspec.to_builtins(entry.quota):
        lines += [f"quota = {{{', '.join(f'{name} = {most}' for name, most in quota.items())}}}"]
    return "\n".join(lines) + "\n"


def _quota(words: list[str]) -> Quota:
    """Return the quota of ``NAME=NUMBER`` texts; raises InvalidInput."""
    given = dict(word.partition("=")[::2] for word in words)
    try:
        return msgspec.convert(given, Quota, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"quota: {error}") from None


def _moment(text: str | None) -> datetime | None:
    """Return when a token ends; raises InvalidInput."""
    if text is None:
        return None
    try:
        found: datetime = msgspec.convert(moment(text), Annotated[datetime, msgspec.Meta(tz=True)])
    except (msgspec.ValidationError, ValueError):
        raise InvalidInput(
            f"expires: got {text!r:.80}, expected a date, or a moment such as 2027-01-31T12:00:00Z"
        ) from None
    return found
