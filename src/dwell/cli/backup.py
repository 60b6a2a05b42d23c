"""``dwell backup``: a copy of a store, which can be opened as a store at once."""

import asyncio
from pathlib import Path
from typing import Annotated, Protocol, runtime_checkable

import typer

import dwell
from dwell.cli.session import Session, folder_of, require_store, session_of
from dwell.errors import InvalidUrl, StoreLocked
from dwell.urls import shown


@runtime_checkable
class _CanCopy(Protocol):
    """A store that can be copied to a folder of this machine."""

    async def backup(self, folder: str | Path) -> None:
        """Copy it."""


def backup(
    context: typer.Context,
    folder: Annotated[
        Path,
        typer.Argument(metavar="DEST", help="The folder to make.", show_default=False),
    ],
) -> None:
    """Copy the store, as it is now, to a new folder that can be opened as a store at once.

    If a server has the store open, let it make the copy: --store http://localhost:8410. It keeps
    working.
    """
    session = session_of(context)
    try:
        asyncio.run(_copy(session, folder))
    except StoreLocked as error:
        raise StoreLocked(
            f"{error}; if that is a server, let it make the copy, as in "
            f"dwell --store http://localhost:8410 backup {folder}"
        ) from None
    session.out.confirm({"store": session.store, "backup": str(folder)}, f"copied to {folder}")


async def _copy(session: Session, folder: Path) -> None:
    handle = dwell.open(session.store)
    if (source := folder_of(session.store)) is not None:
        require_store(source)
    async with handle as queue:
        if not isinstance(queue.store, _CanCopy):
            raise InvalidUrl(
                f"url: got {shown(session.store)!r:.80}, expected a folder or a server: "
                "only those can be copied"
            )
        await queue.store.backup(folder)
