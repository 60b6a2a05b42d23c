"""A server that all processes of one test run share: the first starts it, and ends it last."""

import contextlib
import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.waiting import until

#: As long as all other tests of a run may take.
_MOST_S = 3_600


@contextlib.contextmanager
def shared(
    folder: Path, name: str, start: Callable[[], AbstractContextManager[Any]]
) -> Iterator[str]:
    """Yield the ``hosts`` of a server; ``start`` runs one in whichever process comes first."""
    with contextlib.ExitStack() as mine:
        with _state(folder, name) as state:
            is_first = not state
            if is_first:
                state |= {"hosts": mine.enter_context(start()).hosts, "users": 0}
            state["users"] += 1
            hosts = state["hosts"]
        try:
            yield hosts
        finally:
            with _state(folder, name) as state:
                state["users"] -= 1
            if is_first:
                until(lambda: _is_idle(folder, name), "others still use it", _MOST_S)


def _is_idle(folder: Path, name: str) -> bool:
    with _state(folder, name) as state:
        if state["users"]:
            return False
        # Whoever comes now starts another.
        state.clear()
        return True


@contextlib.contextmanager
def _state(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    file = folder / f"{name}.json"
    with (folder / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(file.read_text()) if file.exists() else {}
        yield state
        file.write_text(json.dumps(state))
