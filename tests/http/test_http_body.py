"""Bodies of requests, which come in parts: what they are in the end, and what they take."""

import mmap
import re
from pathlib import Path

import pytest

from dwell.message import MAX_BATCH_MESSAGES
from dwell.server.http.body import _LARGE_BYTES, Body
from dwell.server.http.media import Media
from tests.http.newrows import rows_of


def body_of(data, part_bytes):
    body = Body()
    for at in range(0, len(data), part_bytes):
        body.add(data[at : at + part_bytes])
    assert body.size_bytes == len(data)
    return body.data


@pytest.mark.parametrize("size", [0, 1, 1000, _LARGE_BYTES, _LARGE_BYTES + 1, 6 * _LARGE_BYTES + 7])
@pytest.mark.parametrize("part_bytes", [7_001, 65_536, 1 << 30])
def test_a_body_is_its_parts_one_behind_the_other(size, part_bytes):
    data = bytes(range(251)) * (size // 251 + 1)
    assert bytes(body_of(data[:size], part_bytes)[:]) == data[:size]


def test_lines_of_a_large_body_are_read():
    line = b'{"body":"%b"}\n' % (b"x" * 1000)
    data = body_of(line * 3000, 65_536)
    assert isinstance(data, mmap.mmap)
    rows = rows_of(data, Media.NDJSON)
    assert len(rows) == 3000
    assert bytes(rows[-1].body) == b'"%b"' % (b"x" * 1000)
    assert len(rows_of(data, Media.NDJSON)) == 3000


def test_rows_of_a_large_body_keep_its_bytes():
    row = b'{"body":"%b"}' % (b"y" * 1000)
    rows = rows_of(body_of(b"[" + b",".join([row] * MAX_BATCH_MESSAGES) + b"]", 65_536), Media.JSON)
    assert {bytes(row.body) for row in rows} == {b'"%b"' % (b"y" * 1000)}


def test_a_body_that_grows_takes_its_own_size():
    body, part = Body(), bytes(65_536)
    status = Path("/proc/self/status")
    Path("/proc/self/clear_refs").write_text("5")
    before_kb = int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1])
    for _ in range(64 * 16):
        body.add(part)
        # Others take memory meanwhile, so that none is free where the body ends.
        others = [bytes(500) for _ in range(20)]
    assert len(body.data) == 64 << 20
    most_kb = int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1])
    assert most_kb - before_kb < 80 * 1024
    assert len(others) == 20
