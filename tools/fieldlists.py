"""Field lists: the places at which the fields of a message are written out by hand.

``python -m tools.fieldlists`` prints them. A place is a piece of source of a few lines that names
most fields of a put, a message or an event; no line is in two places. A change to the message has
to be made in each, so there should be few.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
_FOLDERS = ("src", "tools", "bench", "examples")


class Kind(NamedTuple):
    """What is looked for: ``least`` of some fields, each by any of its names, within ``lines``.

    There may be ``most`` places.
    """

    name: str
    fields: tuple[tuple[str, ...], ...]
    least: int
    lines: int
    most: int


KINDS = (
    Kind(
        "put",
        (
            ("due", "due_ms", "delay", "delay_ms"),
            ("priority",),
            ("lease", "lease_ms"),
            ("max_attempts",),
            ("expires", "expires_ms", "ttl", "ttl_ms"),
            ("id", "ids"),
            ("body", "bodies"),
            ("key", "keys", "headers", "extra", "extras"),
        ),
        8,
        16,
        42,
    ),
    Kind(
        "message",
        (
            ("id", "ids"),
            ("topic", "topics"),
            ("body", "bodies"),
            ("due_ms",),
            ("attempt", "attempts"),
            ("max_attempts",),
            ("receipt", "receipts"),
            ("lease_until_ms",),
            ("last_error",),
        ),
        9,
        18,
        7,
    ),
    Kind(
        "event",
        (
            ("position", "positions"),
            ("time_ms",),
            ("kind", "kinds"),
            ("topic", "topics"),
            ("id", "ids"),
            ("due_ms",),
            ("attempt", "attempts"),
        ),
        7,
        10,
        7,
    ),
)
_WORD = re.compile(r"[A-Za-z_]\w*")


class Place(NamedTuple):
    """A list of fields: its file, and its first and last line."""

    file: str
    first: int
    last: int


def places(kind: Kind, root: Path = ROOT) -> list[Place]:
    """Return where the fields of a kind are listed, in order of files."""
    paths = (path for folder in _FOLDERS for path in sorted((root / folder).rglob("*.py*")))
    own = Path(__file__).name
    sources = [path for path in paths if path.suffix in (".py", ".pyi") and path.name != own]
    return [place for path in sources for place in _places_in(path, kind, root)]


def _places_in(path: Path, kind: Kind, root: Path) -> Iterator[Place]:
    by_name = {name: at for at, names in enumerate(kind.fields) for name in names}
    lines = [
        {by_name[word] for word in _WORD.findall(line) if word in by_name}
        for line in path.read_text().splitlines()
    ]
    at = 0
    while at < len(lines):
        end = _end_of_list(lines[at : at + kind.lines], kind.least) if lines[at] else 0
        if end:
            yield Place(str(path.relative_to(root)), at + 1, at + end)
        at += end or 1


def _end_of_list(lines: Sequence[set[int]], least: int) -> int:
    """Return after how many lines enough fields were named, 0 where there are fewer."""
    found: set[int] = set()
    for number, names in enumerate(lines, 1):
        found |= names
        if len(found) >= least:
            return number
    return 0


def main() -> None:
    """Print the places of each kind, or of the kinds that are named."""
    for kind in KINDS:
        if len(sys.argv) > 1 and kind.name not in sys.argv[1:]:
            continue
        found = places(kind)
        files = len({place.file for place in found})
        print(f"{kind.name}: {len(found)} places in {files} files")
        for place in found:
            print(f"  {place.file}:{place.first}-{place.last}")


if __name__ == "__main__":
    main()
