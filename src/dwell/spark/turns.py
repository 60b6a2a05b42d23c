"""Turns: the number of a write among the writes of one micro-batch.

Generated ids of rows consist of the query, the batch, the partition and the place in it, so that a
repeated batch makes the same ids. If one ``foreachBatch`` writes twice, they also need the number
of the write, the same each time; and Spark gives a write no such number. So the driver counts the
finished writes of the batch, in a file for the run of the query: each write is planned, and each
ends, in a process of its own there.
"""

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from dwell.errors import InvalidSettings, StoreError

_KEPT_S = 30 * 86_400
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


class Ended(msgspec.Struct, frozen=True):
    """How many writes have ended in the current batch of a query's run."""

    batch: str
    writes: int


class Turn(NamedTuple):
    """One write: the run of its query, its batch, and its index among the batch's writes."""

    run: str
    batch: str
    place: int

    @property
    def suffix(self) -> str:
        """The suffix that distinguishes it from the first write of its batch."""
        return f"-w{self.place}" if self.place else ""


def turn_of(run: str, batch: str, ended: dict[str, Ended | None]) -> Turn:
    """Return the turn of a write, given the finished writes; raises StoreError."""
    before = ended.get(run)
    if before is None and run in ended:
        raise _cut_off(run)
    return Turn(run, batch, before.writes if before is not None and before.batch == batch else 0)


def ended_writes(folder: Path | None = None) -> dict[str, Ended | None]:
    """Return the finished writes, by the run of a query; None for a run with a truncated file."""
    found: dict[str, Ended | None] = {}
    for path in (folder or _folder()).glob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            found[path.stem] = _read(path)
    return found


def end(turn: Turn, *, is_named: bool, folder: Path | None = None) -> None:
    """Note that a write has ended; raises InvalidSettings for two at once that share names.

    ``is_named`` tells that it has generated names that no other write may use.
    """
    if not _NAME.fullmatch(turn.run):
        return
    folder = folder or _folder()
    path = folder / f"{turn.run}.json"
    with _locked(folder):
        before = _read(path) if path.exists() else Ended(turn.batch, 0)
        if before is None:
            raise _cut_off(turn.run)
        count = before.writes if before.batch == turn.batch else 0
        if turn.place < count:
            if is_named:
                raise InvalidSettings(
                    "writeName: got none for two writes at once in one micro-batch, expected one "
                    "write after the other, or a name for each"
                )
            return
        whole = path.with_suffix(".new")
        whole.write_bytes(msgspec.json.encode(Ended(turn.batch, turn.place + 1)))
        whole.replace(path)
        _forget(folder)


def _read(path: Path) -> Ended | None:
    """Return the content of a file, or None if it is truncated, as by a power cut."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Ended)
    except msgspec.MsgspecError:
        return None


def _cut_off(run: str) -> StoreError:
    return StoreError(
        f"{run}.json in {_folder()}: got a file that was cut off, expected the number of writes "
        "that have ended; start the query again"
    )


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"dwell-spark-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise StoreError(f"{folder}: belongs to somebody else, expected a folder of one's own")
    return folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _forget(folder: Path) -> None:
    """Remove the files of old runs."""
    oldest_s = time.time() - _KEPT_S
    for path in folder.glob("*.json"):
        if path.stat().st_mtime < oldest_s:
            path.unlink()
