"""The manifest of an export: its files, its messages by state, and its store.

``_manifest.json`` is written last, so that a folder without it is not an export.

Rule for changes: FORMAT grows by one with every change of the columns, of the files or of the
manifest that an older version would misread. An export of a newer format is refused.
"""

import contextlib
import os
import re
import stat
import zlib
from pathlib import Path
from typing import IO, Any

import msgspec

from dwell.errors import InvalidInput
from dwell.given import values
from dwell.given.values import shown
from dwell.message import TopicSettings

FORMAT = 1
#: Readers of data sets skip names that begin so.
MANIFEST = "_manifest.json"
_FILE = re.compile(r"messages-[0-9]{5,9}\.parquet")
_STORE = re.compile(r"[0-9a-f]{8}")
_PIECE_BYTES = 1 << 20
#: More than a million topics with settings need.
_MANIFEST_BYTES = 256 * 1024 * 1024


class Counts(msgspec.Struct):
    """The number of a topic's messages by state."""

    delayed: int = 0
    ready: int = 0
    leased: int = 0
    dead: int = 0

    @property
    def total(self) -> int:
        """The number of messages in all states."""
        return self.delayed + self.ready + self.leased + self.dead


class File(msgspec.Struct, frozen=True):
    """A file of an export: its name, size, rows, and the CRC-32 of its bytes."""

    name: str
    bytes: int
    rows: int
    crc: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of ``_manifest.json``.

    ``dwell_export`` is the format, ``version`` that of the Dwell that wrote it, ``store`` the
    number of the store in 8 hexadecimal digits, and ``history`` names the life of the store whose
    events came last; it is empty if there are none, or a token does not allow to read them. The
    messages were read between ``began_ms`` and ``ended_ms``. ``settings`` has the settings of
    topics that differ from the defaults. ``crc`` is the CRC-32 of the manifest as compact JSON
    with a crc of 0.
    """

    dwell_export: int
    version: str
    store: str
    history: str
    began_ms: int
    ended_ms: int
    topics: dict[str, Counts]
    settings: dict[str, dict[str, Any]]
    files: tuple[File, ...]
    crc: int = 0

    @property
    def rows(self) -> int:
        """The number of messages of the export."""
        return sum(file.rows for file in self.files)


def file_name(number: int) -> str:
    """Return the name of the file of messages with a number."""
    return f"messages-{number:05}.parquet"


def written(manifest: Manifest) -> bytes:
    """Return the content of ``_manifest.json``."""
    whole = msgspec.structs.replace(manifest, crc=_crc_of(manifest))
    return msgspec.json.format(msgspec.json.encode(whole), indent=1)


def _crc_of(manifest: Manifest) -> int:
    return zlib.crc32(msgspec.json.encode(msgspec.structs.replace(manifest, crc=0)))


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest durably, which completes the export."""
    new = folder / f"{MANIFEST}.new"
    with open(new, "xb") as file:
        file.write(written(manifest))
        file.flush()
        os.fsync(file.fileno())
    new.rename(folder / MANIFEST)
    for one in (folder, folder.absolute().parent):
        # A folder above may not be ours to read.
        with contextlib.suppress(PermissionError):
            sync_folder(one)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


#: The errors of reading JSON that is not a manifest, also of deeply nested JSON.
_UNREADABLE = (
    msgspec.MsgspecError,
    LookupError,
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
)


def opened(path: Path) -> IO[bytes]:
    """Open a regular file; raises OSError for a pipe or a device, whose end never comes."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(None, "no regular file")
    return open(number, "rb")


def read(folder: Path) -> Manifest:
    """Return the manifest of an export; raises InvalidInput for any other folder."""
    try:
        with opened(folder / MANIFEST) as file:
            data = file.read(_MANIFEST_BYTES + 1)
    except OSError as error:
        raise InvalidInput(
            f"export: got {shown(str(folder))} without a {MANIFEST} ({error.strerror}), expected "
            "the folder of an export that came to its end"
        ) from None
    if len(data) > _MANIFEST_BYTES:
        raise InvalidInput(
            f"export: got a {MANIFEST} that is larger, expected at most {_MANIFEST_BYTES} bytes"
        )
    try:
        raw = msgspec.json.decode(data)
        found = int(raw["dwell_export"])
        if found > FORMAT:
            raise InvalidInput(f"export: got format {found}, expected {FORMAT} or older")
        manifest = msgspec.convert(raw, Manifest)
    except _UNREADABLE as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(
            f"export: got a {MANIFEST} that cannot be read, expected one of an export"
        ) from None
    if manifest.crc != _crc_of(manifest):
        raise InvalidInput(f"export: got a damaged {MANIFEST}, expected checksum {manifest.crc}")
    _check_books(manifest)
    return manifest


def _check_books(manifest: Manifest) -> None:
    if _STORE.fullmatch(manifest.store) is None:
        raise values.refusal(InvalidInput, "store", manifest.store, "8 hexadecimal digits")
    names = set[str]()
    for file in manifest.files:
        if file.name in names:
            raise InvalidInput(f"files: got {shown(file.name)} twice, expected each file once")
        names.add(file.name)
        for name in ("bytes", "rows"):
            _check_count(getattr(file, name), f"files: {name} of {shown(file.name)}")
    for topic, counts in manifest.topics.items():
        for state, count in msgspec.structs.asdict(counts).items():
            _check_count(count, f"topics: {state} of {shown(topic)}")
    counted = sum(counts.total for counts in manifest.topics.values())
    if counted != manifest.rows:
        raise InvalidInput(
            f"export: got {manifest.rows} rows in its files, expected {counted}, as its topics have"
        )


def _check_count(count: int, field: str) -> None:
    if count < 0:
        raise InvalidInput(f"{field}: got {count}, expected 0 or more")


def known_settings(manifest: Manifest) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the settings of topics that this version knows, and the names of the others.

    Raises InvalidInput for a topic or a value that no store takes.
    """
    found, strange = {}, set[str]()
    names = TopicSettings.__struct_fields__
    for topic, given in manifest.settings.items():
        values.topic(topic, "settings")
        strange |= {name for name in given if name not in names}
        found[topic] = {name: value for name, value in given.items() if name in names}
        try:
            settings = msgspec.convert(found[topic], TopicSettings)
            found[topic] = {name: getattr(settings, name) for name in found[topic]}
            values.setting_changes(found[topic])
        except InvalidInput as error:
            raise InvalidInput(f"settings of {shown(topic)}: {error}") from None
        except msgspec.ValidationError as error:
            raise InvalidInput(
                f"settings of {shown(topic)}: got {shown(found[topic])}, expected those of a topic "
                f"({error!s:.200})"
            ) from None
    return found, sorted(strange)


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raise InvalidInput unless the files are those of the manifest, byte by byte."""
    known = {file.name for file in manifest.files}
    strange = [
        name
        for name in sorted(os.listdir(folder))
        if not name.startswith(("_", ".")) and name not in known
    ]
    if strange:
        raise InvalidInput(
            f"export: got the file {shown(strange[0])}, expected those of {MANIFEST}"
        )
    for file in manifest.files:
        if _FILE.fullmatch(file.name) is None:
            raise InvalidInput(f"export: got the file {shown(file.name)}, expected {file_name(0)}")
        size, crc = _sum_of(folder, file)
        if size != file.bytes:
            raise InvalidInput(f"export: got {file.name} of {size} bytes, expected {file.bytes}")
        if crc != file.crc:
            raise InvalidInput(
                f"export: got {file.name} damaged, with checksum {crc}, expected {file.crc}"
            )


def _sum_of(folder: Path, file: File) -> tuple[int, int]:
    """Return the size and the CRC-32 of a file."""
    size = crc = 0
    try:
        with opened(folder / file.name) as data:
            # One byte more shows that it is larger, whatever its end is.
            while piece := data.read(min(_PIECE_BYTES, file.bytes + 1 - size)):
                size, crc = size + len(piece), zlib.crc32(piece, crc)
    except OSError as error:
        raise InvalidInput(
            f"export: got no {file.name} ({error.strerror}), expected {file.rows} rows"
        ) from None
    return size, crc
