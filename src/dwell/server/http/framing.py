"""Answers as bytes: the head of each, and the pieces of a long one."""

import time
from collections.abc import AsyncGenerator
from email.utils import formatdate
from http import HTTPStatus

from dwell.server.http.answer import Answer

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}

#: The end of a head, and of a body in chunks.
END = b"\r\n\r\n"


def head_of(answer: Answer, now_ms: int, size: bytes, *, keeps: bool) -> bytes:
    """Return the head of an answer.

    ``now_ms`` is the time of the queue, in epoch milliseconds; ``size`` is the header that says how
    long the body is, if there is one; ``keeps`` is whether another request may follow.
    """
    more = "".join([f"{name}: {value}\r\n" for name, value in answer.headers.items()])
    return b"%bdate: %b\r\ndwell-now-ms: %d\r\ncontent-type: %b\r\n%b%b%b\r\n" % (
        _STATUS_LINES[answer.status],
        _date(),
        now_ms,
        answer.form.encode(),
        size,
        more.encode("latin-1"),
        b"" if keeps else b"connection: close\r\n",
    )


async def pieces_of(
    answer: Answer, now_ms: int, *, is_chunked: bool, keeps: bool
) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of an answer that has parts; closes it at the end.

    An answer with neither a length nor chunks ends with the connection.
    """
    assert answer.parts is not None
    try:
        size = b"transfer-encoding: chunked\r\n" if is_chunked else b""
        yield head_of(answer, now_ms, size, keeps=keeps)
        async for part in answer.parts:
            yield b"%x\r\n%b\r\n" % (len(part), part) if is_chunked else part
            # The next part may be long in coming.
            del part
        if is_chunked:
            yield b"0\r\n\r\n"
    finally:
        if answer.close is not None:
            await answer.close()


class _Date:
    """The Date header, made once a second."""

    second = -1
    text = b""


def _date() -> bytes:
    now = int(time.time())
    if now != _Date.second:
        _Date.second, _Date.text = now, formatdate(now, usegmt=True).encode()
    return _Date.text


def begun_end(data: bytes) -> int:
    """Return how many bytes at the end may begin the end of a head; they wait for the rest."""
    return next((size for size in (3, 2, 1) if data.endswith(END[:size])), 0)
