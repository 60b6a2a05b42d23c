"""The session: the options before the command, which select the store and the output."""

import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import typer

import dwell
from dwell.batch.results import Results
from dwell.cli import given
from dwell.cli.exits import refused_after, require
from dwell.cli.output import Output
from dwell.cli.texts import printable
from dwell.errors import AccessDenied, NotAStore, StoreLocked
from dwell.message import Result
from dwell.threads.sync import SyncQueue

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
#: How many topics an error names.
_NAMES = 10
_RETRIES = 4
_FILE = re.compile(r"file:(?://)?", re.IGNORECASE)


@dataclass(frozen=True)
class Session:
    """One run of the command line.

    ``store_given`` says that ``--store`` stood on it, ``store_named`` that this or DWELL_STORE
    names the store.
    """

    store: str
    store_given: bool
    store_named: bool
    out: Output

    @contextmanager
    def queue(self, *, create: bool = False) -> Iterator[SyncQueue]:
        """Open the store; a missing store is created only with ``create``."""
        # A person at a terminal should soon learn that no server is at an address.
        is_server = self.store.startswith(("http:", "https:"))
        patience: dict[str, Any] = {"retries": _RETRIES} if is_server else {}
        handle = dwell.open(self.store, **patience)
        folder = folder_of(self.store)
        if folder is not None and not create:
            require_store(folder)
        with ExitStack() as stack:
            try:
                queue = stack.enter_context(handle)
            except StoreLocked:
                admitted = None if folder is None else stack.enter_context(admin_url(folder))
                if admitted is None:
                    raise
                queue = stack.enter_context(dwell.open(admitted))
            yield queue

    def say_if_missing(self, queue: SyncQueue, *topics: str) -> None:
        """After an empty answer, print a note for each topic that does not exist.

        Prints nothing if the caller may not see the list of topics.
        """
        try:
            known = sorted(queue.stats().topics)
        except AccessDenied:
            return
        others = f"; there are {shortened(known)}" if known else ""
        for topic in topics:
            if topic not in known:
                self.out.note(f"there is no topic {printable(topic)}{others}")

    def apply(
        self,
        field: str,
        names: Sequence[str],
        wanted: Result,
        verb: Callable[[SyncQueue, list[str]], Results],
    ) -> None:
        """Apply a verb to all named messages, and print the result of each.

        The command ends as not done if a message has another result than the wanted one.
        """
        is_as_asked, done = True, 0
        with self.queue() as queue, refused_after(lambda: done, field):
            for chunk in given.chunks(names):
                results = verb(queue, chunk)
                done += len(chunk)
                self.out.results(field, chunk, results, wanted)
                is_as_asked &= results.count(wanted) == len(chunk)
        require(is_as_asked)


def session_of(context: typer.Context) -> Session:
    """Return the session that a command runs in."""
    session = context.find_object(Session)
    assert session is not None
    return session


def shortened(names: Sequence[str]) -> str:
    """Return some of many names, and how many more there are."""
    more = f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else ""
    return ", ".join(map(printable, names[:_NAMES])) + more


def folder_of(url: str) -> Path | None:
    """Return the folder that a store's URL names, or None if it names none."""
    if scheme := _FILE.match(url):
        return Path(unquote(url[scheme.end() :]))
    return None if _SCHEME.match(url) else Path(url)


@contextmanager
def admin_url(folder: Path) -> Iterator[str | None]:
    """Yield the URL of the program that has a folder open; None if it admits nobody."""
    # Imported here, as commands for a server need nothing of a folder.
    from dwell.store.embedded.folder import socket_path

    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        path = socket_path(folder.absolute(), fd)
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(bytes(path))
            except OSError:
                yield None
                return
        yield f"http+unix://{quote(bytes(path))}"
    finally:
        os.close(fd)


def require_store(folder: Path) -> None:
    """Refuse a folder that is missing or empty, as its path is probably wrong."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        raise NotAStore(f"{folder}: there is no store here; --store names one, and put makes one")
