"""A backup: a checkpoint copied to a new folder, which can be opened as a store at once."""

import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from dwell.errors import InvalidInput
from dwell.store.embedded.backup.checkpoint import Checkpoint, Held
from dwell.store.embedded.disk import Disk
from dwell.store.embedded.thread import in_thread

_CHUNK_BYTES = 4 * 1024 * 1024


def new_place(disk: Disk, folder: str | Path, store: Path | None = None) -> Path:
    """Return the full path of a folder that is to hold a backup; raises InvalidInput."""
    place = Path(folder).resolve()
    if disk.exists(place):
        raise InvalidInput(f"backup: {folder} is there already, expected a new folder")
    if store is not None and place.is_relative_to(store.resolve()):
        raise InvalidInput(f"backup: {folder} lies in the store itself, expected another place")
    return place


@contextlib.asynccontextmanager
async def new_folder(disk: Disk, place: Path) -> AsyncIterator[Path]:
    """Yield the path of a new folder; at the end it takes its name, or else is removed.

    Raises InvalidInput when another backup is being made there.
    """
    new = place.with_name(f"{place.name}.new")
    try:
        disk.make_new_folder(new)
    except FileExistsError:
        raise InvalidInput(
            f"backup: {new} is there: a backup is being made, or was cut short; "
            "remove it in that case"
        ) from None
    try:
        yield new
        # Nothing is awaited from here on, so a cancelled call leaves no folder of that name.
        disk.sync_folder(new)
        disk.rename(new, place)
    except BaseException:
        # Report the first error, not this one. If the folder has its name already, only the sync of
        # its parent folder has failed.
        with contextlib.suppress(OSError):
            await in_thread(disk.remove_folder, new if disk.exists(new) else place)
        raise


async def copy_to(checkpoint: Checkpoint, folder: Path) -> None:
    """Copy the files of a checkpoint to a folder that is there; raises DiskFull."""
    stop = threading.Event()
    await in_thread(_copy_all, checkpoint, folder, stop, stop=stop)


def _copy_all(checkpoint: Checkpoint, folder: Path, stop: threading.Event) -> None:
    for held in checkpoint.files:
        _copy(checkpoint.disk, held, folder / held.name, stop)


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
