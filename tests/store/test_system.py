"""The calls of the operating system where they are more than one."""

import errno
import os
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwell.store.embedded.disk import Disk
from dwell.store.embedded.system import System
from dwell.testing.cached import CachedFile


def test_a_large_file_is_removed(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(100 * 1024 * 1024 + 1)
    System().remove(path)
    assert list(tmp_path.iterdir()) == []


def test_a_large_file_is_removed_when_no_file_can_be_opened(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, allowed[1]))
    try:
        System().remove(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        System().remove(tmp_path / "none")


_SIZE = 64 * 4096


@given(
    writes=st.lists(st.tuples(st.integers(0, _SIZE - 1), st.binary(min_size=1, max_size=9000))),
    start=st.integers(0, _SIZE),
    end=st.integers(0, _SIZE),
)
def test_what_lies_between_the_parts_that_were_written_is_zeros(writes, start, end):
    file = CachedFile()
    os.ftruncate(file.fd, _SIZE)
    for offset, data in writes:
        os.pwrite(file.fd, data[: _SIZE - offset], offset)
    rest = bytearray(os.pread(file.fd, max(end - start, 0), start))
    places = [start]
    for first, after in System().written(file.fd, start, end):
        places += first, after
        rest[first - start : after - start] = bytes(after - first)
    assert not any(rest)
    # One after another, and no part is empty.
    assert places == sorted(places)
    assert len(set(places[1:])) == len(places) - 1
    assert places[-1] <= max(start, end)


def test_of_a_file_that_was_taken_in_full_only_what_was_written_is_read(tmp_path):
    disk = Disk()
    fd = disk.create(tmp_path / "file", 1 << 20)
    assert list(disk.written(fd, 0, 1 << 20)) == []
    disk.write(fd, [b"x"], 300_000)
    ((first, after),) = disk.written(fd, 5, 1 << 20)
    assert first <= 300_000 < after <= first + 65_536
    disk.close(fd)


def test_where_nobody_knows_what_was_written_all_of_it_may_be(tmp_path, monkeypatch):
    def seek(*_):
        raise OSError(errno.EINVAL, "not known here")

    fd = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(os, "lseek", seek)
    assert list(System().written(fd, 5, 100)) == [(5, 100)]
    os.close(fd)
