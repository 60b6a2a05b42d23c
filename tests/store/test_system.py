"""The calls of the operating system where they are more than one."""

import resource

import pytest

from dwell.store.embedded.system import System


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
