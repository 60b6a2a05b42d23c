"""Values as people read them: times, spans, bodies, and texts that are safe on a terminal."""

import re
from datetime import datetime
from math import isclose

from dwell.wire.rows import body_fields

_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_CELL_CHARS = 60
_BASE64 = "base64:"

# Control characters could move the cursor, and marks of direction could make a text read as
# another; a message is a stranger's, so neither reaches the terminal.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_LINES = re.compile(_UNSAFE.pattern.replace(r"\x00-\x1f", r"\x00-\x08\x0b-\x1f"))


def printable(text: str, *, lines: bool = False) -> str:
    """Return a text with its control characters as escapes; ``lines`` keeps tabs and line ends."""
    return (_UNSAFE_LINES if lines else _UNSAFE).sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def cut(text: str) -> str:
    """Return a text as a cell of a table has room for it, with a mark if it goes on."""
    return text if len(text) <= _CELL_CHARS else text[: _CELL_CHARS - 1] + "…"


def body_text(body: bytes, *, lines: bool = False) -> str:
    """Return a body as people read it; a body that is not UTF-8 is marked as base64."""
    fields = body_fields(body)
    if "body" in fields:
        return printable(fields["body"], lines=lines)
    return _BASE64 + fields["body_base64"]


def time_text(ms: int) -> str:
    """Return a point in time as ISO 8601 with milliseconds, in the zone of this machine."""
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(timespec="milliseconds")


def away_text(ms: int, now_ms: int) -> str:
    """Return how far away a point in time is: "in 29m", "2h 5m ago", "now"."""
    away_ms = ms - now_ms
    if abs(away_ms) < 1000:
        return "now"
    return f"in {_rough(away_ms)}" if away_ms > 0 else f"{_rough(-away_ms)} ago"


def _rough(ms: int) -> str:
    minutes, hours = ms // 60_000, ms // 3_600_000
    if minutes == 0:
        return f"{ms // 1000}s"
    if hours == 0:
        return f"{minutes}m"
    if hours < 48:
        return f"{hours}h {minutes % 60}m"
    return f"{hours // 24}d"


def span_text(ms: int) -> str:
    """Return a span as the text that sets it: "1h30m", "250ms"."""
    if ms == 0:
        return "0ms"
    text = ""
    for unit, size_ms in _UNITS_MS:
        count, ms = divmod(ms, size_ms)
        text += f"{count}{unit}" if count else ""
    return text


def rate_text(a_second: float) -> str:
    """Return a rate as the text that sets it: "50", "100/m", "1/5s"."""
    if a_second == int(a_second):
        return f"{a_second:.0f}"
    for unit, size_ms in reversed(_UNITS_MS):
        count = a_second * size_ms / 1000
        if round(count) >= 1 and isclose(count, round(count), rel_tol=1e-12):
            return f"{round(count)}/{unit}"
    span_ms = round(1000 / a_second)
    is_exact = span_ms and isclose(1000 / span_ms, a_second, rel_tol=1e-12)
    return f"1/{span_text(span_ms)}" if is_exact else f"{a_second}"


def size_text(size_bytes: int) -> str:
    """Return a size in bytes, KiB, MiB or GiB."""
    size, unit = float(size_bytes), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


def count_text(count: int, noun: str) -> str:
    """Return a number of things: "1 message", "1,200 messages"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
