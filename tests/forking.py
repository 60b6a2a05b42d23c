"""What a forked process is told by a queue that its parent has open."""

import os

import dwell
from dwell.message import Result
from dwell.threads.sync import SyncQueue


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
