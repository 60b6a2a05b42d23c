"""What is given on a command line, as the queue takes it. What is refused, the queue refuses."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import overload

from dwell import values
from dwell.errors import InvalidHeaders, InvalidInput, InvalidTime
from dwell.message import MAX_BATCH_MESSAGES, MAX_BODY_BYTES
from dwell.values import Delay, Due

STDIN = "-"

_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
_DUE_FORMS = "ISO 8601 with a zone, such as 2030-01-31T09:00:00Z, or epoch milliseconds"


@overload
def span(given: Delay) -> Delay: ...
@overload
def span(given: Delay | None) -> Delay | None: ...
def span(given: Delay | None) -> Delay | None:
    """Return a span of time; a number without a unit is seconds."""
    if isinstance(given, str) and _SECONDS.fullmatch(given):
        return float(given)
    return given


def due(given: str | int | None) -> Due | None:
    """Return a point in time from ISO 8601 with a zone or from epoch milliseconds."""
    if not isinstance(given, str):
        return given
    if given.isascii() and given.isdigit():
        return int(given)
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        moment = None
    if moment is None or moment.utcoffset() is None:
        raise values.refusal(InvalidTime, "due", given, _DUE_FORMS)
    return moment


def headers(pairs: Sequence[str]) -> dict[str, str] | None:
    """Return ``name=value`` texts as headers, or None where there are none."""
    return dict(map(_header, pairs)) or None


def _header(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals or not name:
        raise values.refusal(InvalidHeaders, "header", pair, "name=value")
    return name, value


def body(text: str) -> bytes:
    """Return a body that was given as an argument, or standard input where it is ``-``."""
    if text == STDIN:
        # One byte more than is allowed is enough to be refused.
        return sys.stdin.buffer.read(MAX_BODY_BYTES + 1)
    return os.fsencode(text)


def chunks(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield ids or receipts in batches; ``-`` alone means the lines of standard input."""
    many = _lines() if list(names) == [STDIN] else iter(names)
    while chunk := list(islice(many, MAX_BATCH_MESSAGES)):
        yield chunk


def _lines() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            text = line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise InvalidInput(f"line {number}: is not UTF-8") from None
        if text:
            yield text
