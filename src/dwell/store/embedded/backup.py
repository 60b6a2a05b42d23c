"""A backup: a checkpoint copied to a new folder, which can be opened as a store at once."""

import contextlib
import threading
from pathlib import Path

from dwell.errors import InvalidInput
from dwell.store.embedded.checkpoint import Checkpoint, Held, in_thread
from dwell.store.embedded.disk import Disk

_CHUNK_BYTES = 4 * 1024 * 1024


class NewFolder:
    """A folder that gets its name only when all that belongs into it is on the disk."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder
        self.path = folder.with_name(f"{folder.name}.new")

    def make(self) -> None:
        """Make it, still under its other name; raises InvalidInput when that is taken."""
        try:
            self._disk.make_new_folder(self.path)
        except FileExistsError:
            raise InvalidInput(
                f"backup: {self.path} is there: a backup is being made, or was cut short; "
                "remove it in that case"
            ) from None

    def finish(self) -> None:
        """Let it take its name, for good."""
        self._disk.sync_folder(self.path)
        self._disk.rename(self.path, self._folder)

    def discard(self) -> None:
        """Remove it, and all that is in it."""
        # What brought it to this is the error that matters.
        with contextlib.suppress(OSError):
            self._disk.remove_folder(self.path)


def new_place(folder: str | Path, store: Path | None = None) -> Path:
    """Return the full path of a folder that is to hold a backup; raises InvalidInput."""
    place = Path(folder).resolve()
    if place.exists():
        raise InvalidInput(f"backup: {folder} is there already, expected a new folder")
    if store is not None and place.is_relative_to(store.resolve()):
        raise InvalidInput(f"backup: {folder} lies in the store itself, expected another place")
    return place


async def copy_to(checkpoint: Checkpoint, folder: Path) -> None:
    """Copy a checkpoint to a new folder; raises InvalidInput or DiskFull, leaving nothing."""
    stop = threading.Event()
    await in_thread(_copy_all, checkpoint, NewFolder(checkpoint.disk, folder), stop, stop=stop)


def _copy_all(checkpoint: Checkpoint, new: NewFolder, stop: threading.Event) -> None:
    new.make()
    try:
        for held in checkpoint.files:
            _copy(checkpoint.disk, held, new.path / held.name, stop)
        if stop.is_set():
            new.discard()
        else:
            new.finish()
    except BaseException:
        new.discard()
        raise


def _copy(disk: Disk, held: Held, path: Path, stop: threading.Event) -> None:
    fd = disk.create(path, held.room_bytes)
    try:
        for offset in range(0, held.size_bytes, _CHUNK_BYTES):
            if stop.is_set():
                return
            size_bytes = min(_CHUNK_BYTES, held.size_bytes - offset)
            disk.write(fd, [disk.read_part(held.fd, size_bytes, offset)], offset)
        disk.sync(fd)
    finally:
        disk.close(fd)
