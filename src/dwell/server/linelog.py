"""Line logs: files of JSON lines, written by a thread of its own, so that callers never wait.

Lines that come faster than they can be written are dropped and counted, and the log has the count.
A file that has grown to its limit replaces ``FILE.1``. If somebody else has moved the file away, a
new file is started.
"""

import contextlib
import json
import logging
import os
import queue
import stat
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dwell.errors import InvalidSettings

_log = logging.getLogger(__name__)

STDERR = "-"
_STDERR_FD = 2
#: The limits of a line and of a value in it, and how many lines may wait to be written.
MOST_LINE_BYTES, _MOST_CHARS, MOST_WAITING = 4096, 300, 5000
#: How many things a list or a table in a line may name.
_MOST_NAMED = 10
#: How long the thread lets lines gather: each time that it wakes costs all others a turn.
_GATHER_S = 0.05
#: How long the end waits for the last lines.
_LAST_S = 5.0

_encoder = msgspec.json.Encoder(enc_hook=str)


class LineLog:
    """One log. One thread may call ``write``; its owner calls ``start`` and ``stop``."""

    def __init__(self, name: str, path: str, most_bytes: int) -> None:
        self.name = name
        self._path = None if path == STDERR else Path(path).absolute()
        self._most_bytes = most_bytes
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._fd = _STDERR_FD
        self._size_bytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"dwell-{name}-log", daemon=True)
        # How many lines found no room, how many could not be written, and of how many it has told.
        self._dropped = self._lost = self._told = 0
        self._has_failed = False

    @property
    def dropped(self) -> int:
        """How many lines are missing."""
        return self._dropped + self._lost

    def start(self) -> None:
        """Open it; raises InvalidSettings."""
        try:
            self._open()
        except OSError as error:
            raise InvalidSettings(f"{self.name}_log: {self._path}: {error.strerror}") from None
        self._thread.start()

    def stop(self) -> None:
        """Write the pending lines, and close the file."""
        self._is_over.set()
        self._lines.put(None)
        # A pipe may have no reader, so the wait is limited.
        self._thread.join(_LAST_S)
        if not self._thread.is_alive() and self._path is not None and self._fd >= 0:
            os.close(self._fd)

    def write(self, fields: Mapping[str, Any]) -> None:
        """Have a line written, if there is room for it."""
        if self._lines.qsize() >= MOST_WAITING:
            self._dropped += 1
        else:
            self._lines.put(line_of(fields))

    # --- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        is_over = False
        while not is_over:
            lines = [self._lines.get()]
            self._is_over.wait(_GATHER_S)
            with contextlib.suppress(queue.Empty):
                while len(lines) < MOST_WAITING:
                    lines.append(self._lines.get_nowait())
            is_over = None in lines
            self._write([line for line in lines if line is not None])

    def _write(self, lines: list[bytes]) -> None:
        dropped = self.dropped - self._told
        if dropped:
            lines = [line_of({"log": self.name, "dropped": dropped}), *lines]
        data = b"".join(lines)
        try:
            self._reserve_answer(len(data))
            while data:
                written = os.write(self._fd, data)
                self._size_bytes += written
                data = data[written:]
            self._told += dropped
        except OSError as error:
            if not self._has_failed:
                _log.error("lines of the %s log are lost: %s", self.name, error)
            self._has_failed = True
            self._lost += len(lines) - bool(dropped)
        else:
            self._has_failed = False

    def _reserve_answer(self, size_bytes: int) -> None:
        """Start a new file if this file is full, or is gone."""
        if self._path is None:
            return
        is_there = False
        with contextlib.suppress(OSError):
            is_there = os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        is_full = self._size_bytes and self._size_bytes + size_bytes > self._most_bytes
        # A device, a pipe or a link, such as /dev/stdout, must not be renamed.
        if is_there and is_full and stat.S_ISREG(os.lstat(self._path).st_mode):
            self._path.replace(f"{self._path}.1")
            is_there = False
        if not is_there:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1
            self._open()

    def _open(self) -> None:
        if self._path is not None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o600)
            self._size_bytes = os.fstat(self._fd).st_size


def line_of(fields: Mapping[str, Any]) -> bytes:
    """Return a line, with the time first, and with long values cut."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    line = {"time": now, **{name: _cut(value) for name, value in fields.items()}}
    data = _encoded(line)
    if len(data) >= MOST_LINE_BYTES:
        # The long fields come from callers; the others tell who has done what.
        short = {n: v for n, v in line.items() if not isinstance(v, dict | list)}
        data = _encoded({**short, "is_cut": True})
    return data + b"\n"


def _encoded(line: Mapping[str, Any]) -> bytes:
    """Return a line in ASCII, without control characters that could move a terminal's cursor."""
    try:
        data = _encoder.encode(line)
    except (UnicodeEncodeError, msgspec.MsgspecError, TypeError, ValueError):
        texts = {name: ascii(value)[:_MOST_CHARS] for name, value in line.items()}
        data = _encoder.encode(texts)
    if not data.isascii():
        data = json.dumps(msgspec.json.decode(data)).encode()
    return data.replace(b"\x7f", b"\\u007f")


def _cut(value: Any) -> Any:
    """Return a value with long texts cut, and with a limited number of items."""
    if isinstance(value, str):
        return value if len(value) <= _MOST_CHARS else f"{value[:_MOST_CHARS]}…"
    if isinstance(value, list | tuple):
        some = [_cut(one) for one in value[:_MOST_NAMED]]
        return (
            some if len(value) <= _MOST_NAMED else [*some, f"and {len(value) - _MOST_NAMED} more"]
        )
    if isinstance(value, dict):
        return {_cut(str(name)): _cut(one) for name, one in list(value.items())[: 2 * _MOST_NAMED]}
    return value
