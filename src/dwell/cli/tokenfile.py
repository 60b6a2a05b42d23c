"""Changes the token file: one process at a time, completely or not at all.

Comments, order and form of the file stay as people wrote them.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dwell.errors import InvalidInput

_ENTRY = re.compile(r"^[ \t]*\[\[[ \t]*token[ \t]*\]\]", re.MULTILINE)
_TABLE = re.compile(r"^[ \t]*\[", re.MULTILINE)
_HASH = re.compile(r"^[ \t]*sha256[ \t]*=[ \t]*", re.MULTILINE)


def changed(file: Path, change: Callable[[str], str]) -> None:
    """Change the text of a file; a missing file is created, readable by its owner only.

    Simultaneous changes run one after the other. Readers see the old text or the new text. Raises
    OSError if the file cannot be replaced.
    """
    path = Path(os.path.realpath(file))
    is_new = not path.exists()
    with _locked(path) as fd:
        try:
            _replace(path, change(_text_of(fd, file)), os.fstat(fd))
        except BaseException:
            if is_new and not os.fstat(fd).st_size:
                path.unlink(missing_ok=True)
            raise


def _text_of(fd: int, file: Path) -> str:
    try:
        with open(fd, encoding="utf-8", newline="", closefd=False) as source:
            return source.read()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"token: {file} is no text: {error}") from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Hold the lock of a file for the length of a block."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # The previous holder of the lock has replaced the file: open the new file.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    yield fd
                    return
        finally:
            os.close(fd)


def _replace(path: Path, text: str, before: os.stat_result) -> None:
    """Put another text in the place of a file, with the same mode and owner."""
    other = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(other, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w", encoding="utf-8", newline="") as target:
            made = os.fstat(fd)
            if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
                os.fchown(fd, before.st_uid, before.st_gid)
            os.fchmod(fd, before.st_mode & 0o777)
            target.write(text)
            target.flush()
            os.fsync(fd)
        other.replace(path)
    except BaseException:
        other.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def hashes_changed(text: str, name: str, change: Callable[[list[str]], list[str]]) -> str:
    """Return the text of a file with other hashes for a token; raises InvalidInput."""
    before = tomllib.loads(text)
    (entry,) = [one for one in before["token"] if one.get("name") == name]
    given = entry["sha256"]
    entry["sha256"] = change([given] if isinstance(given, str) else given)
    for start, end in _entries(text):
        found = _HASH.search(text, start, end)
        value_end = found and _value_end(text, found.end(), end)
        if found and value_end:
            said = json.dumps(entry["sha256"])
            after = f"{text[: found.end()]}{said}{text[value_end:]}"
            if _read(after) == before:
                return after
    raise InvalidInput(f"token: the entry {name} is written in a way that only people can change")


def _entries(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each entry begins and ends."""
    for begun in _ENTRY.finditer(text):
        following = _TABLE.search(text, begun.end())
        yield begun.end(), following.start() if following else len(text)


def _value_end(text: str, start: int, end: int) -> int | None:
    """Return where the value that begins somewhere ends: with the first line that makes it one."""
    at = start
    while at < end:
        line_end = text.find("\n", at, end)
        at = end if line_end < 0 else line_end + 1
        if _read(f"value = {text[start:at]}") is not None:
            value = text[start:at]
            # A comment behind the value stays.
            body = value.rstrip()
            cut = body.rfind("]") if body.startswith("[") else body.find('"', 1)
            cut = body.find("'", 1) if body.startswith("'") else cut
            return start + cut + 1 if cut > 0 else None
    return None


def _read(text: str) -> Any:
    with contextlib.suppress(tomllib.TOMLDecodeError):
        return tomllib.loads(text)
    return None
