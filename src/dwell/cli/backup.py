"""``dwell backup``: a copy of a store, which can be opened as a store at once."""

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Protocol, runtime_checkable

import typer

import dwell
from dwell.cli.session import admin_url, folder_of, require_store, session_of
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
    working. A program that has it open with an admin socket makes the copy as well.
    """
    session = session_of(context)
    source = folder_of(session.store)
    if source is not None:
        require_store(source)
    try:
        asyncio.run(_copy(session.store, folder))
    except StoreLocked as error:
        with admin_url(source) if source is not None else nullcontext() as url:
            if url is None:
                raise StoreLocked(
                    f"{error}; if that is a server, let it make the copy, as in "
                    f"dwell --store http://localhost:8410 backup {folder}"
                ) from None
            asyncio.run(_copy(url, folder))
    session.out.confirm({"store": session.store, "backup": str(folder)}, f"copied to {folder}")


async def _copy(store: str, folder: Path) -> None:
    async with dwell.open(store) as queue:
        if not isinstance(queue.store, _CanCopy):
            raise InvalidUrl(
                f"url: got {shown(store)!r:.80}, expected a folder or a server: "
                "only those can be copied"
            )
        await queue.store.backup(folder)
