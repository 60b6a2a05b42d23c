"""Converts command line arguments to arguments of the queue, which checks them."""

import os
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import BinaryIO

from dwell.errors import InvalidHeaders, InvalidInput
from dwell.given import values
from dwell.message import MAX_BATCH_MESSAGES, MAX_BODY_BYTES

STDIN = "-"


def stdin() -> BinaryIO:
    """Return standard input; raises InvalidInput if it was closed before the start."""
    if sys.stdin is None:
        raise InvalidInput("standard input: is closed, expected one to read from")
    return sys.stdin.buffer


def headers(pairs: Sequence[str]) -> dict[str, str] | None:
    """Return ``name=value`` texts as headers, or None without any."""
    return dict(map(_header, pairs)) or None


def _header(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals or not name:
        raise values.refusal(InvalidHeaders, "header", pair, "name=value")
    return name, value


def body(text: str) -> bytes:
    """Return a body given as an argument, or standard input for ``-``."""
    if text == STDIN:
        # One byte more than is allowed is enough to be refused.
        return stdin().read(MAX_BODY_BYTES + 1)
    return os.fsencode(text)


def chunks(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield ids or receipts in batches; ``-`` alone means the lines of standard input."""
    many = _lines() if list(names) == [STDIN] else iter(names)
    while chunk := list(islice(many, MAX_BATCH_MESSAGES)):
        yield chunk


def _lines() -> Iterator[str]:
    for number, line in enumerate(stdin(), 1):
        try:
            text = line.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise InvalidInput(f"line {number}: is not UTF-8") from None
        if text:
            yield text
