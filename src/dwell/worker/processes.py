"""Processes for plain handlers: a handler that hangs is killed, a crash ends no other handler.

The pool comes from Pebble. Processes are spawned and not forked, so a handler is a function at the
top of a module, and imports or opens all that it needs.
"""

import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from dwell.errors import InvalidInput
from dwell.queue.then import Then
from dwell.worker.outcome import result_of


class ProcessPool:
    """Runs handlers in at most ``size`` processes, which are started as they are needed.

    Raises InvalidInput where Pebble is not installed.
    """

    def __init__(self, size: int) -> None:
        try:
            from pebble import ProcessExpired
            from pebble import ProcessPool as Pool
        except ImportError as error:
            raise InvalidInput(f"processes: needs pip install 'dwell[worker]': {error}") from None
        self.crash: type[BaseException] = ProcessExpired
        self._pool: Any = Pool(size, context=multiprocessing.get_context("spawn"))

    def submit(
        self,
        handler: Callable[[Any], Any],
        what: object,
        limit_s: float,
        *,
        keeps_result: bool = False,
    ) -> "Future[BaseException | Returned]":
        """Run a handler; the result is what it raised or returned.

        What it returned counts if it ``keeps_result``, and if it is a message to put.

        Cancelling the future ends the process; so does the limit, if given, with a TimeoutError. A
        process that ends otherwise raises ``crash``.
        """
        future: Future[BaseException | Returned] = self._pool.schedule(
            _attempt, (handler, what, keeps_result), timeout=limit_s or None
        )
        return future

    def close(self) -> None:
        """End all processes."""
        self._pool.stop()
        self._pool.join()


def check_handler(handler: Callable[[Any], Any]) -> None:
    """Raise InvalidInput for a handler that no other process finds."""
    try:
        pickle.dumps(handler)
    except Exception as error:
        raise InvalidInput(
            f"processes: got the handler {handler!r:.80}, expected a function at the top of a "
            f"module, which other processes can import ({error})"
        ) from None


class HandlerError(Exception):
    """Replaces an exception from another process that cannot be pickled; contains its text."""


class Returned(NamedTuple):
    """What a handler returned: the result to keep, and the message to put."""

    result: bytes | None
    then: Then | None


def _attempt(
    handler: Callable[[Any], Any], what: object, keeps_result: bool
) -> BaseException | Returned:
    try:
        value = handler(what)
        then = value if isinstance(value, Then) else None
        value = value if then is None else then.result
        keeps_result |= then is not None and value is not None
        returned = Returned(result_of(value) if keeps_result else None, then)
        pickle.dumps(returned)
        return returned
    except BaseException as error:
        return _portable(error)


def _portable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return HandlerError(f"{type(error).__name__}: {error}")
    return error
