"""The replies of the beanstalk protocol, as bytes."""

from collections.abc import Iterable, Sequence

BAD_FORMAT = b"BAD_FORMAT\r\n"
UNKNOWN_COMMAND = b"UNKNOWN_COMMAND\r\n"
EXPECTED_CRLF = b"EXPECTED_CRLF\r\n"
JOB_TOO_BIG = b"JOB_TOO_BIG\r\n"
DRAINING = b"DRAINING\r\n"
OUT_OF_MEMORY = b"OUT_OF_MEMORY\r\n"
INTERNAL_ERROR = b"INTERNAL_ERROR\r\n"
NOT_FOUND = b"NOT_FOUND\r\n"
NOT_IGNORED = b"NOT_IGNORED\r\n"
DEADLINE_SOON = b"DEADLINE_SOON\r\n"
TIMED_OUT = b"TIMED_OUT\r\n"
DELETED = b"DELETED\r\n"
RELEASED = b"RELEASED\r\n"
BURIED = b"BURIED\r\n"
TOUCHED = b"TOUCHED\r\n"
KICKED = b"KICKED\r\n"
PAUSED = b"PAUSED\r\n"


def inserted(numbers: Sequence[int]) -> bytes:
    """Say the numbers of jobs that were put."""
    return b"INSERTED %d\r\n" * len(numbers) % tuple(numbers)


def reserved_one(number: int, body: bytes) -> bytes:
    """Hand over a job."""
    return b"RESERVED %d %d\r\n%b\r\n" % (number, len(body), body)


def reserved(numbers: Iterable[int], bodies: Sequence[bytes]) -> bytes:
    """Hand over jobs."""
    parts = zip(numbers, map(len, bodies), bodies, strict=True)
    return b"".join([b"RESERVED %d %d\r\n%b\r\n" % part for part in parts])


def found(number: int, body: bytes) -> bytes:
    """Show a job."""
    return b"FOUND %d %d\r\n%b\r\n" % (number, len(body), body)


def using(tube: str) -> bytes:
    """Name the tube that is used."""
    return b"USING %b\r\n" % tube.encode()


def watching(count: int) -> bytes:
    """Say how many tubes are watched."""
    return b"WATCHING %d\r\n" % count


def kicked(count: int) -> bytes:
    """Say how many jobs were kicked."""
    return b"KICKED %d\r\n" % count


def ok(text: str) -> bytes:
    """Send a document."""
    data = text.encode()
    return b"OK %d\r\n%b\r\n" % (len(data), data)
