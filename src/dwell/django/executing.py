"""Runs one task of Django for a worker, and says what became of it."""

from typing import Any

import msgspec
from django.db import close_old_connections

from dwell.django.backend import DwellBackend
from dwell.django.opened import lend, take_back
from dwell.django.records import Record, failure_of, failure_text, moment, now_ms, record_of
from dwell.django.tasks import (
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from dwell.errors import DwellError
from dwell.message import MAX_BODY_BYTES, Message
from dwell.worker import Bury, Retry, Worker
from dwell.worker.outcome import CountsFailures

_MOST = f"at most {MAX_BODY_BYTES}"


class Executor(CountsFailures):
    """The handler of a worker, for the tasks of one backend."""

    def __init__(self, backend: DwellBackend, worker: Worker, name: str) -> None:
        self._backend = backend
        self._worker = worker
        self._name = name
        #: The start times of the tasks that run, by receipt.
        self._begun: dict[str | None, int] = {}

    def __call__(self, message: Message) -> bytes:
        """Run the task of a message; return its record with the value.

        Raises Retry or Bury if the task raises, and Bury if there is no such task.
        """
        settings = self._backend.settings
        lend(settings["url"], settings["store"], self._worker.sync_queue)
        started_ms = self._begun[message.receipt] = now_ms()
        try:
            return self._run(message, started_ms)
        finally:
            self._begun.pop(message.receipt, None)

    def late_text(self, message: Message, told: str) -> str:
        """Return the last error of a task that took too long, and does not end: it counts."""
        started_ms = self._begun.get(message.receipt, now_ms())
        return failure_text(TimeoutError(told), started_ms, self._name, _raised(message) + 1)

    def failure_of(self, message: Message, error: DwellError) -> Exception:
        """Return the end of a task whose result was refused: a failure that counts, as others."""
        record = msgspec.structs.replace(record_of(message.body), started_ms=now_ms())
        try:
            return self._failure(message, record, error)
        finally:
            close_old_connections()

    def end(self) -> None:
        """Leave the queue of the worker, which has ended."""
        settings = self._backend.settings
        take_back(settings["url"], settings["store"])

    def _run(self, message: Message, started_ms: int) -> bytes:
        try:
            record = record_of(message.body)
            workers = [*[""] * (message.attempt - 1), self._name]
            record = msgspec.structs.replace(record, workers=workers, started_ms=started_ms)
            result = record.result(message.id, TaskResultStatus.RUNNING)
        except Exception as error:
            # The code or the settings have changed since it was put.
            raise Bury(failure_text(error, started_ms, self._name)) from error
        self._check_in_time(message, record)
        self._send(task_started, result)
        close_old_connections()
        try:
            value = normalize_json(_called(result))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # As in Django's own backends, sys.exit() in a task is a failure like any other.
            raise self._failure(message, record, error) from error
        finally:
            close_old_connections()
        return self._done(message, record, value)

    def _check_in_time(self, message: Message, record: Record) -> None:
        """Fail a task that took too long before, and did not end; its earlier run may go on."""
        failure = failure_of(message.last_error or "")
        if failure.is_late and _raised(message) >= self._backend.settings["attempts"]:
            error = TimeoutError(f"no attempt is left: {failure.error.traceback.strip()}")
            raise self._failure(message, record, error, is_last=True) from error

    def _done(self, message: Message, record: Record, value: Any) -> bytes:
        finished_ms = now_ms()
        done = msgspec.structs.replace(record, value=value, finished_ms=finished_ms)
        encoded = done.encoded()
        if len(encoded) > MAX_BODY_BYTES:
            size = f"{len(encoded)} bytes with the arguments"
            error = ValueError(f"value: got {size}, expected {_MOST}")
            raise self._failure(message, record, error)
        self._send(task_finished, done.result(message.id, TaskResultStatus.SUCCESSFUL))
        return encoded

    def _failure(
        self, message: Message, record: Record, error: BaseException, *, is_last: bool = False
    ) -> Retry | Bury:
        """Return what to raise for a task that has failed: for good, or to be run again."""
        raised = _raised(message) + 1
        text = failure_text(error, record.started_ms or 0, self._name, raised)
        if raised < self._backend.settings["attempts"] and not is_last:
            return Retry(reason=text)
        self._send(
            task_finished,
            record.result(
                message.id,
                TaskResultStatus.FAILED,
                errors=[failure_of(text).error],
                finished_at=moment(now_ms()),
            ),
        )
        return Bury(text)

    def _send(self, signal: Any, result: TaskResult) -> None:
        # An error of a receiver is logged; the task has not failed.
        signal.send_robust(type(self._backend), task_result=result)


def _raised(message: Message) -> int:
    """Return how often the task of a message has raised, or taken too long, before this attempt.

    Attempts whose workers were lost do not count; a message that was kicked has none.
    """
    return min(failure_of(message.last_error or "").raised, message.attempt - 1)


def _called(result: TaskResult) -> Any:
    task = result.task
    context = (TaskContext(task_result=result),) if task.takes_context else ()
    return task.call(*context, *result.args, **result.kwargs)
