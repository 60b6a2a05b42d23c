"""Forked processes: one that does some work, and one that has its parent's queue."""

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

import dwell
from dwell.message import Result
from dwell.threads.sync import SyncQueue


def in_child(work: Coroutine[Any, Any, None]) -> None:
    """Do it in a process that ends with it, without closing anything."""
    if (child := os.fork()) == 0:
        try:
            asyncio.run(work)
            os._exit(0)
        finally:
            os._exit(1)
    work.close()
    assert os.waitpid(child, 0)[1] == 0


def check_fork_is_told(queue: SyncQueue) -> None:
    """Fork, see that a put of the child is refused for that, and one of the parent is not."""
    child = os.fork()
    if child == 0:
        try:
            queue.put("fork", b"")
        except dwell.StoreError as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert queue.put("fork", b"").result is Result.CREATED
