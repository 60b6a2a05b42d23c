"""Logs: one line an event on standard error, for people or as JSON for programs.

Fields that a call adds with ``extra={...}`` become fields of the line.
"""

import json
import logging
import re
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

#: The attributes of every record, which are not fields.
_OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
_RESERVED = {"time", "level", "logger", "message", "error"}

# A client's text must neither end a line of ours, nor move the cursor of a terminal.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_PLAIN = re.compile(r"[^\s\"=]+")

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


class TextFormatter(logging.Formatter):
    """Lines for people: time, level, logger, message, then ``name=value`` for each field."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line; a traceback follows on lines of its own."""
        words = [f"{_time(record)} {record.levelname:<7} {record.name}: {record.getMessage()}"]
        words += [f"{name}={_value(value)}" for name, value in _fields(record)]
        line = _UNSAFE.sub(_escape, " ".join(words))
        error = _error(record)
        return f"{line}\n{error}" if error else line


class JsonFormatter(logging.Formatter):
    """Lines for programs: an object with time, level, logger, message and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON; ``error`` holds a traceback."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in _fields(record):
            line[f"{name}_" if name in _RESERVED else name] = value
        if error := _error(record):
            line["error"] = error
        try:
            return msgspec.json.encode(line, enc_hook=str).decode()
        except (msgspec.MsgspecError, UnicodeEncodeError, TypeError, ValueError):
            # A value that JSON cannot say, such as half a surrogate pair, must not lose the line.
            texts = {name: _UNSAFE.sub(_escape, str(value)) for name, value in line.items()}
            return msgspec.json.encode(texts).decode()


def setup(level: str = "info", form: str = "text", stream: TextIO | None = None) -> None:
    """Make all loggers of the process write such lines to standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in vars(record).items() if name not in _OWN)


def _error(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    return "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")


def _value(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
