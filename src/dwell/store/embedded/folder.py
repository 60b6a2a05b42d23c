"""The folder: its label, its format, and its lock.

``dwell.json`` is written last when a store is made, so that a folder either is a store or is not.

Rule for changes: FORMAT grows by one with every change of a file's layout. A store of an older
format is read, one of a newer format is refused; tests/data keeps a store of every format.
"""

import contextlib
import zlib
from pathlib import Path

import msgspec

from dwell.errors import NotAStore, StoreDamaged, StoreTooNew
from dwell.store.embedded.disk import LOCK, Disk
from dwell.store.embedded.openings import Opening

FORMAT = 4
#: The hash of callers' ids in new stores; a store keeps the hash it was made with.
_IDS = 2
LABEL = "dwell.json"
#: Where a program that has the folder open may listen.
SOCKET = "admin.sock"
#: The first format whose labels have a checksum.
_CHECKED_FORMAT = 3


class Label(msgspec.Struct, frozen=True):
    """The contents of ``dwell.json``: format, the store's number, the hash of ids, and its seed.

    ``openings`` names the openings that its events belong to. Older versions of this format ignore
    it, and events made while they have the store open count as the last opening's. ``crc`` is the
    CRC-32 of the label as it is written with a crc of 0; format 3 began with it.
    """

    dwell: int
    number: int
    seed: int
    segment_bytes: int
    ids: int = 1
    openings: tuple[Opening, ...] = ()
    crc: int = 0

    @property
    def secret(self) -> bytes:
        """The seed as bytes; it must stay secret."""
        return self.seed.to_bytes(16, "little")


def socket_path(folder: Path, fd: int) -> Path:
    """Return a path of the socket in an open folder, which stays short and outlives a rename."""
    held = Path(f"/proc/self/fd/{fd}")
    return (held if held.is_dir() else folder) / SOCKET


class Hold:
    """A store's folder, held and locked until :meth:`close`, and its label."""

    def __init__(self, disk: Disk, folder: Path, segment_bytes: int) -> None:
        """Hold a folder; an empty or missing one becomes a store.

        Raises StoreLocked, NotAStore, StoreTooNew or StoreDamaged.
        """
        if disk.exists(folder) and not disk.is_folder(folder):
            raise NotAStore(f"{folder}: is a file, expected a folder")
        disk.make_folder(folder)
        with contextlib.ExitStack() as stack:
            self.fd = disk.hold(folder)
            stack.callback(disk.let_go, folder, self.fd)
            names = disk.names(folder)
            if LABEL not in names and set(names) - {LOCK, f"{LABEL}.new"}:
                raise NotAStore(f"{folder}: holds files but no {LABEL}, so it is not a store")
            # Older versions lock this file, not the folder.
            stack.callback(disk.close, disk.lock(folder / LOCK))
            is_store = LABEL in names
            self.label = _read(disk, folder) if is_store else _make(disk, folder, segment_bytes)
            self.close = stack.pop_all().close


def _read(disk: Disk, folder: Path) -> Label:
    try:
        raw = msgspec.json.decode(disk.read(folder / LABEL))
        found = int(raw["dwell"])
        if found > FORMAT:
            raise StoreTooNew(
                f"{folder}: has format {found}; this version of Dwell reads up to {FORMAT}"
            )
        label = msgspec.convert(raw, Label)
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError, ValueError):
        raise StoreDamaged(f"{folder / LABEL}: is not a store's label") from None
    if found >= _CHECKED_FORMAT and label.crc != _crc_of(label):
        raise StoreDamaged(f"{folder / LABEL}: is damaged, its checksum is not that of the rest")
    if found < FORMAT:
        # Older versions would misread the writes from now on.
        label = msgspec.structs.replace(label, dwell=FORMAT)
        write_label(disk, folder, label)
    return label


def _make(disk: Disk, folder: Path, segment_bytes: int) -> Label:
    label = Label(
        dwell=FORMAT,
        number=drawn_number(disk),
        seed=disk.system.random_bits(63),
        segment_bytes=segment_bytes,
        ids=_IDS,
    )
    # The process that made the folder may have stopped before its name was durable.
    with contextlib.suppress(PermissionError):
        disk.sync_folder(folder.parent)
    write_label(disk, folder, label)
    return label


def drawn_number(disk: Disk) -> int:
    """Return a number for a new store, which its receipts contain."""
    return disk.system.random_bits(31) or 1


def write_label(disk: Disk, folder: Path, label: Label) -> None:
    """Write the label of a store durably."""
    new = folder / f"{LABEL}.new"
    disk.write_file(new, [label_bytes(label)])
    disk.rename(new, folder / LABEL)


def label_bytes(label: Label) -> bytes:
    """Return a label as ``dwell.json`` holds it."""
    return msgspec.json.encode(msgspec.structs.replace(label, crc=_crc_of(label)))


def _crc_of(label: Label) -> int:
    return zlib.crc32(msgspec.json.encode(msgspec.structs.replace(label, crc=0)))
