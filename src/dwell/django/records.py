"""A task of Django as a message: what its body, its result and its last error hold.

The body is JSON with ``task``, ``args`` and ``kwargs``, so that predicates can search it. A result
holds the same and what came of it, as the message is gone by then.
"""

import time
from datetime import UTC, datetime
from traceback import format_exception
from typing import Any, NamedTuple

import msgspec
from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from dwell.django.tasks import TaskError, TaskResult, TaskResultStatus
from dwell.errors import DwellError
from dwell.message import MAX_ERROR_CHARS, Message, State
from dwell.worker.outcome import TIMEOUT

_STATUSES = {
    State.DELAYED: TaskResultStatus.READY,
    State.READY: TaskResultStatus.READY,
    State.LEASED: TaskResultStatus.RUNNING,
    State.DEAD: TaskResultStatus.FAILED,
}


#: The texts in the first line of a last error before the start of the attempt, the worker, and how
#: often the task has raised.
_AT, _BY, _RAISED = " at ", " by ", "; raised "

#: The trace of what a worker says of an attempt that took too long.
_LATE = f"{TimeoutError.__name__}: {TIMEOUT}"


class WorkerLost(DwellError):
    """No worker could say what came of a task: each was killed, or did not end it in time."""


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A task that was enqueued and, in a result, what came of it; times are epoch milliseconds."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    queue_name: str
    priority: int = 0
    run_after_ms: int | None = None
    enqueued_ms: int
    started_ms: int | None = None
    finished_ms: int | None = None
    workers: list[str] = []
    value: Any = None

    def encoded(self) -> bytes:
        """Return it as JSON."""
        return msgspec.json.encode(self)

    def result(self, id_: str, status: TaskResultStatus, **fields: Any) -> TaskResult:
        """Return what Django calls a result, with fields that are not in the record.

        Raises ImportError if the function of the task no longer exists.
        """
        task = import_string(self.task).using(
            priority=self.priority,
            queue_name=self.queue_name,
            run_after=moment(self.run_after_ms),
            backend=self.backend,
        )
        known = {
            "enqueued_at": moment(self.enqueued_ms),
            "started_at": moment(self.started_ms),
            "last_attempted_at": moment(self.started_ms),
            "finished_at": moment(self.finished_ms),
            "errors": [],
            "worker_ids": self.workers,
        }
        made = TaskResult(
            task=task,
            id=id_,
            status=status,
            args=self.args,
            kwargs=self.kwargs,
            backend=self.backend,
            **known | fields,
        )
        object.__setattr__(made, "_return_value", self.value)
        return made


def record_of(data: bytes) -> Record:
    """Return the record of a body or a result; raises msgspec.DecodeError for another body."""
    return msgspec.json.decode(data, type=Record)


def result_of_message(message: Message) -> TaskResult:
    """Return the result of a task that is not done; raises ImportError."""
    record = record_of(message.body)
    # Which worker had an earlier attempt is not kept.
    workers = [""] * message.attempt
    fields: dict[str, Any] = {"worker_ids": workers}
    if message.last_error is not None:
        failure = failure_of(message.last_error)
        fields |= {
            "errors": [failure.error],
            "started_at": moment(failure.started_ms),
            "last_attempted_at": moment(failure.started_ms),
        }
        if message.state is not State.LEASED:
            workers[-1:] = [failure.worker] * len(workers[-1:])
    if message.state is State.DEAD:
        # The clock of the store may be behind the clock of the worker.
        began = fields.get("started_at")
        ended = moment(message.died_ms)
        fields["finished_at"] = ended if began is None or ended is None else max(began, ended)
    return record.result(message.id, _STATUSES[message.state], **fields)


class Failure(NamedTuple):
    """The last error of a message: the exception, when its attempt began, and where.

    ``raised`` is how often the task has raised so far, or taken too long.
    """

    error: TaskError
    started_ms: int | None = None
    worker: str = ""
    raised: int = 0

    @property
    def is_late(self) -> bool:
        """Whether the attempt took too long and did not end; no task raises without a trace."""
        return bool(self.error.traceback.startswith(_LATE))


def failure_text(error: BaseException, started_ms: int, worker: str, raised: int = 1) -> str:
    """Return the last error of a message: one line, and the end of the trace."""
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    began = datetime.fromtimestamp(started_ms / 1000, UTC).isoformat(timespec="milliseconds")
    line = f"{name}{_AT}{began}{_BY}{worker}{_RAISED}{raised}\n"
    trace = "".join(format_exception(error))
    return line + trace[-max(MAX_ERROR_CHARS - len(line), 1) :]


def failure_of(text: str) -> Failure:
    """Return the last error of a message in parts, also if the store has written it."""
    line, _, trace = text.partition("\n")
    name, _, rest = line.partition(_AT)
    began, _, rest = rest.partition(_BY)
    worker, _, raised = rest.rpartition(_RAISED) if _RAISED in rest else (rest, "", "1")
    try:
        started_ms, times = round(datetime.fromisoformat(began).timestamp() * 1000), int(raised)
    except ValueError:
        lost = f"{WorkerLost.__module__}.{WorkerLost.__qualname__}"
        return Failure(TaskError(exception_class_path=lost, traceback=text))
    return Failure(TaskError(exception_class_path=name, traceback=trace), started_ms, worker, times)


def moment(at_ms: int | None) -> datetime | None:
    """Return a time as Django has it: in UTC, or without a zone if the settings say so."""
    if at_ms is None:
        return None
    aware = datetime.fromtimestamp(at_ms / 1000, UTC)
    return aware if settings.USE_TZ else timezone.make_naive(aware)


def now_ms() -> int:
    """Return the time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def epoch_ms(at: datetime) -> int:
    """Return a time of Django in epoch milliseconds, rounded up: no task runs early."""
    aware = timezone.make_aware(at) if timezone.is_naive(at) else at
    return -int(-aware.timestamp() * 1000 // 1)
