"""``dwell token``: make a token for a server, and the entry of its token file."""

import json
import os
import secrets
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from dwell.cli.session import session_of
from dwell.errors import InvalidInput
from dwell.server.tokens import Entry, Quota, Right, Tokens, check_entry, hash_of

#: How a token begins, so that people and scanners know one when they see it.
PREFIX = "dwell_"

_TOKEN_BYTES = 32
_ABOUT = "May {} the topics that begin so; an empty text means all topics."


def _right(verb: str) -> Any:
    return typer.Option(metavar="PREFIX", help=_ABOUT.format(verb), show_default=False)


def token(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Whose token it is.", show_default=False)
    ],
    put: Annotated[list[str] | None, _right("put to")] = None,
    take: Annotated[list[str] | None, _right("take from")] = None,
    read: Annotated[list[str] | None, _right("look at")] = None,
    admin: Annotated[list[str] | None, _right("administer")] = None,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="May ask for /metrics, and for nothing else.")
    ] = False,
    quota: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help=f"How much it may have and ask for: {', '.join(Quota.__struct_fields__)}.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The token file to add it to.", show_default=False),
    ] = None,
) -> None:
    """Make a token, and print it: nobody can show it again, since only its hash is kept.

    A server reads its token file when it starts, and again when it gets SIGHUP.
    """
    out = session_of(context).out
    text = PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    entry = Entry(
        name=name,
        sha256=hash_of(text),
        put=tuple(put or ()),
        take=tuple(take or ()),
        read=tuple(read or ()),
        admin=tuple(admin or ()),
        metrics=metrics,
        quota=_quota(quota or []),
    )
    check_entry(entry, "token")
    if not entry.prefixes(Right):
        options = ", ".join(f"--{right}" for right in Right)
        raise InvalidInput(f"token: got no right, expected one of {options}")
    if file is not None:
        _append(file, entry)
    if out.json:
        out.object({"token": text, **msgspec.to_builtins(entry)})
        return
    out.line(text)
    if file is None:
        out.line(f"\n{_toml(entry)}".rstrip("\n"))
    else:
        out.note(f"its hash is in {file}; a server that runs reads it on SIGHUP")


def _append(file: Path, entry: Entry) -> None:
    """Add an entry to a token file, which is made if it is missing, for its owner alone."""
    if file.exists() and entry.name in Tokens.load(file).names:
        raise InvalidInput(f"token: {file} has one named {entry.name} already")
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(fd, "a") as target:
        # A file whose last line has no end is no reason to spoil both.
        target.write(f"\n{_toml(entry)}" if target.tell() else _toml(entry))
        target.flush()
        os.fsync(fd)


def _toml(entry: Entry) -> str:
    lines = ["[[token]]", f'name = "{entry.name}"', f'sha256 = "{entry.sha256}"']
    rights = {right: getattr(entry, right) for right in Right}
    lines += [f"{right} = {json.dumps(given)}" for right, given in rights.items() if given]
    if quota := msgspec.to_builtins(entry.quota):
        lines += [f"quota = {{{', '.join(f'{name} = {most}' for name, most in quota.items())}}}"]
    return "\n".join(lines) + "\n"


def _quota(words: list[str]) -> Quota:
    """Return what ``NAME=NUMBER`` say; raises InvalidInput."""
    given = dict(word.partition("=")[::2] for word in words)
    try:
        return msgspec.convert(given, Quota, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"quota: {error}") from None
