"""Processes for plain handlers: a handler that hangs is killed, a crash ends no other handler.

Each process has a pipe of its own, and whatever happens to it is noticed there: processes that
share a pipe and its lock are all lost when one of them is killed with the lock. Processes are
spawned and not forked, so a handler is a function at the top of a module, and imports or opens all
that it needs.

The pipe carries plain bytes. The process says that it is there, and then of each message
that it has it, and the answer: what the handler has returned, or raised as :func:`_packed` writes
it, behind a byte that says which.
"""

import contextlib
import inspect
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from types import FrameType
from typing import Any, NamedTuple

from dwell.errors import DwellError, InvalidInput
from dwell.message import MAX_ERROR_CHARS
from dwell.queue.then import Then
from dwell.threads.pool import end_child
from dwell.worker.calls import Expired
from dwell.worker.outcome import refuse_many, result_of, told

_CONTEXT = multiprocessing.get_context("spawn")

_HERE, _RETURNED, _RAISED = b"here", b"+", b"-"
#: An exception that needs more is told by its text.
_MAX_ERROR_BYTES = 2**20

#: What a terminal, or who stops a service, sends to all processes of it.
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: How long a process may take to start, and to answer that it has a message, seconds.
_STARTS_S = 300.0
#: How long a process may take to end when its pipe is closed, and when it is killed, seconds.
_ENDS_S, _KILLED_S = 1.0, 10.0
_LOOK_S = 0.005


class HandlerError(Exception):
    """Replaces an exception from another process that is not told by itself; contains its text."""


class NoPlace(DwellError):
    """A handler could not be started, so it has not run."""


class Returned(NamedTuple):
    """The result of a handler to keep, and the message to put."""

    result: bytes | None = None
    then: Then | None = None


class ProcessPool:
    """The processes of a handler, which are started as they are needed, and replaced when they end.

    There are as many as run at the same time; who calls bounds that. What the handler returns
    counts if the pool ``keeps_results``, and if it is a message to put.
    """

    def __init__(self, handler: Callable[[Any], Any], *, keeps_results: bool = False) -> None:
        self._handler, self._keeps_results = handler, keeps_results
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._is_closed = False
        # At its end a program waits for its processes, and these heed no signal.
        self._at_exit = Finalize(None, self.close, exitpriority=0)

    def take(self) -> "tuple[_Process, bool]":
        """Return a process for one call, and whether it was started just now; raises NoPlace."""
        with self._lock:
            if self._is_closed:
                raise NoPlace("the worker has ended")
            if self._idle:
                return self._idle.pop(), False
        process = _Process(self._handler, self._keeps_results)
        with self._lock:
            self._all.add(process)
            is_late = self._is_closed
        if is_late:
            self.drop(process)
            raise NoPlace("the worker has ended")
        return process, True

    def give_back(self, process: "_Process") -> None:
        """Keep a process for further calls."""
        with self._lock:
            if not self._is_closed:
                self._idle.append(process)

    def drop(self, process: "_Process") -> str:
        """Forget a process that has ended, or is to; return how it ended."""
        with self._lock:
            self._all.discard(process)
        return process.ended()

    def close(self) -> None:
        """End all processes."""
        self._at_exit.cancel()
        with self._lock:
            self._is_closed = True
            idle, busy = self._idle, self._all.difference(self._idle)
        for process in busy:
            # Its call notices that, and reads how it ended.
            process.kill()
        for process in idle:
            process.leave()
        for process in idle:
            process.ended()


class ProcessCall:
    """One call of a handler in a process; it runs in a thread, and :meth:`end` ends it."""

    def __init__(self, pool: ProcessPool, what: object, limit_s: float) -> None:
        self._pool, self._what, self._limit_s = pool, what, limit_s
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._is_over = False

    def __call__(self) -> BaseException | Returned:
        """Run the handler, and return what it returned or raised; Expired if it ran too long.

        Returns NoPlace where it has not run, and HandlerError when the process has ended.
        """
        try:
            process = self._begun(pickle.dumps(self._what, pickle.HIGHEST_PROTOCOL))
        except NoPlace as error:
            return error
        try:
            answer = process.heard(self._limit_s or None)
        except TimeoutError:
            process.kill()
            self._pool.drop(process)
            return Expired()
        except (EOFError, OSError):
            ended = self._pool.drop(process)
            return HandlerError(f"the process of the handler ended: {ended}")
        with self._lock:
            self._process = None
            is_over = self._is_over
        if is_over:
            self._pool.drop(process)
        else:
            self._pool.give_back(process)
        return _unpacked(answer)

    def _begun(self, message: bytes) -> "_Process":
        """Return a process that has the message; raises NoPlace.

        One that has ended while it had nothing to do is replaced.
        """
        while True:
            process, is_new = self._pool.take()
            with self._lock:
                self._process = process
                if self._is_over:
                    process.kill()
            try:
                if process.has_begun(message, is_new=is_new):
                    return process
            except TimeoutError:
                process.kill()
                self._pool.drop(process)
                raise NoPlace(
                    f"a process for the handler has not begun after {_STARTS_S:g} s"
                ) from None
            ended = self._pool.drop(process)
            if is_new or self._is_over:
                raise NoPlace(f"a process for the handler ended at its start: {ended}")

    def end(self) -> None:
        """End the process of the call, if it runs; from any thread."""
        with self._lock:
            self._is_over = True
            if self._process is not None:
                self._process.kill()


def check_handler(handler: Callable[[Any], Any]) -> None:
    """Raise InvalidInput for a handler that no other process finds."""
    try:
        pickle.dumps(handler)
    except Exception as error:
        raise InvalidInput(
            f"processes: got the handler {handler!r:.80}, expected a function at the top of a "
            f"module, which other processes can import ({error})"
        ) from None


class _Process:
    """A process that handles one message after another; raises NoPlace if it cannot be started."""

    def __init__(self, handler: Callable[[Any], Any], keeps_results: bool) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        given = (handler, keeps_results, theirs)
        self._process = _CONTEXT.Process(target=_serve, args=given, daemon=True)
        try:
            with _unsignalled():
                self._process.start()
        except Exception as error:
            self._pipe.close()
            raise NoPlace(f"no process could be started: {told(error)}") from error
        finally:
            theirs.close()

    def has_begun(self, message: bytes, *, is_new: bool) -> bool:
        """Give it a message, and tell whether it has it, or has ended before.

        Raises TimeoutError when it does neither.
        """
        try:
            if is_new:
                self.heard(_STARTS_S)
            self._pipe.send_bytes(message)
            return self.heard(_STARTS_S) == _HERE
        except TimeoutError:
            raise
        except (EOFError, OSError):
            return False

    def heard(self, limit_s: float | None) -> bytes:
        """Return what it says next; raises TimeoutError, and EOFError or OSError when it ended."""
        if not self._pipe.poll(limit_s):
            raise TimeoutError
        return self._pipe.recv_bytes()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def leave(self) -> None:
        """End it, as it has nothing to do."""
        self._pipe.close()

    def ended(self) -> str:
        """Wait until it has ended, which it is made to soon, and return how, for people."""
        code = self._code(_ENDS_S)
        if code is None:
            self.kill()
            code = self._code(_KILLED_S)
        self._pipe.close()
        if code is None:
            return "no exit code"
        with contextlib.suppress(ValueError):
            return f"exit code {code} ({signal.Signals(-code).name})"
        return f"exit code {code}"

    def _code(self, seconds: float) -> int | None:
        # Another thread may be about to note the code that the system tells once.
        ends_s = time.monotonic() + seconds
        while (code := self._process.exitcode) is None and time.monotonic() < ends_s:
            time.sleep(_LOOK_S)
        return code


@contextlib.contextmanager
def _unsignalled() -> Iterator[None]:
    """Keep signals from what is started meanwhile until it can see to them, in this thread only."""
    # Python's own helper, which the first process is started with, would let them through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- in the process -----------------------------------------------------------------------------


def _serve(handler: Callable[[Any], Any], keeps_results: bool, pipe: Connection) -> None:
    """Handle messages until the pipe ends."""
    for number in _SIGNALS:
        # Unlike SIG_IGN, this is not for the programs that a handler starts.
        signal.signal(number, _leave_to_the_worker)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    # What it starts in turn is not to keep the pipe open: its end tells of the end of the process.
    os.set_inheritable(pipe.fileno(), False)
    os.register_at_fork(after_in_child=pipe.close)
    pid = os.getpid()
    try:
        pipe.send_bytes(_HERE)
        while True:
            message = pipe.recv_bytes()
            pipe.send_bytes(_HERE)
            pipe.send_bytes(_answer(handler, message, keeps_results, pid))
    except EOFError:
        return
    except OSError:
        # The worker is gone, or the handler has closed the pipe.
        raise SystemExit(1) from None


def _leave_to_the_worker(number: int, frame: FrameType | None) -> None:
    """Do nothing: a signal to the whole group is the worker's, which lets its handlers end."""


def _answer(handler: Callable[[Any], Any], message: bytes, keeps_results: bool, pid: int) -> bytes:
    try:
        value = handler(pickle.loads(message))
        _check_ran(value)
        return _RETURNED + pickle.dumps(_returned(value, keeps_results))
    except BaseException as error:
        return _RAISED + _packed(error)
    finally:
        end_child(pid)


def _returned(value: object, keeps_results: bool) -> Returned:
    then = value if isinstance(value, Then) else None
    value = value if then is None else then.result
    refuse_many(value)
    is_kept = keeps_results or (then is not None and value is not None)
    return Returned(result_of(value) if is_kept else None, then)


def _check_ran(answer: object) -> None:
    """Raise TypeError for what a function returns that hides an asynchronous one, or a generator.

    There is no event loop here, in which the worker runs what its threads return.
    """
    if inspect.isawaitable(answer) or inspect.isgenerator(answer) or inspect.isasyncgen(answer):
        told_as = f"{answer!r:.80}"
        if inspect.iscoroutine(answer):
            answer.close()
        raise TypeError(f"the handler returned {told_as}, of which nothing has run")


def _packed(error: BaseException) -> bytes:
    """Write an exception as its text and, where it can be read again, itself."""
    try:
        itself = pickle.dumps(error)
        pickle.loads(itself)
    except BaseException:
        itself = b""
    if len(itself) > _MAX_ERROR_BYTES:
        itself = b""
    return pickle.dumps((_text(error), itself))


def _text(error: BaseException) -> str:
    try:
        return told(error)[:MAX_ERROR_CHARS]
    except BaseException:
        return type(error).__name__


def _unpacked(answer: bytes) -> BaseException | Returned:
    """Return what a handler has returned or raised.

    What could be read there may be nothing that can be read here. The text of an exception can.
    """
    try:
        found = pickle.loads(answer[1:])
        if answer[:1] == _RETURNED:
            return Returned(*found)
        text, itself = found
    except BaseException as error:
        return HandlerError(f"the answer of the handler's process cannot be read: {told(error)}")
    if itself:
        with contextlib.suppress(BaseException):
            raised = pickle.loads(itself)
            if isinstance(raised, BaseException):
                return raised
    return HandlerError(text)
