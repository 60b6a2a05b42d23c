"""The backend: enqueues tasks of Django as messages, and looks up what came of them."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils.crypto import get_random_string

from dwell.django.opened import opened
from dwell.django.records import Record, epoch_ms, now_ms, record_of, result_of_message
from dwell.django.tasks import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
)
from dwell.errors import AccessDenied, InvalidInput, InvalidTopic, StoreFull, TopicFull
from dwell.given import values
from dwell.given.rows import row_of
from dwell.message import DEFAULT_PRIORITY, Result
from dwell.threads.sync import SyncQueue

#: The options of the backend, with their defaults.
DEFAULTS: dict[str, Any] = {
    "url": None,
    "store": {},
    "prefix": "django.",
    "on_commit": False,
    "database": "default",
    "attempts": 1,
    "retry": None,
    "timeout": None,
    "lease": "60s",
    "keep_results": "1d",
}
_ID_CHARS = 22
_log = logging.getLogger(__name__)

#: How often a task may lose its worker, beyond the attempts that end.
_LOST = 15


class DwellBackend(BaseTaskBackend):
    """A backend of Django's tasks over the store at a URL.

    ``OPTIONS``: ``url`` and ``store`` are the arguments of :func:`dwell.open`; a queue is the topic
    ``prefix`` and its name. With ``on_commit`` a task is put when the transaction of ``database``
    commits. ``attempts`` is how often a task that raises is run, ``retry`` the delays between, and
    ``timeout`` how long it may run. ``lease`` is how long the tasks of a worker that was killed
    stay with it, and ``keep_results`` how long results are kept. Raises ImproperlyConfigured.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        if unknown := set(self.options) - set(DEFAULTS):
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]['OPTIONS']: got {', '.join(sorted(unknown))}, "
                f"expected some of {', '.join(DEFAULTS)}"
            )
        self.settings = DEFAULTS | self.options
        if not isinstance(self.settings["url"], str):
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]['OPTIONS']['url']: got {self.settings['url']!r:.80}, "
                "expected the URL of a store"
            )

    @property
    def queue(self) -> SyncQueue:
        """The open queue of this process; raises StoreError and InvalidUrl."""
        return opened(self.settings["url"], self.settings["store"])

    def topic(self, queue_name: str) -> str:
        """Return the topic of a queue of Django; raises InvalidTopic."""
        return values.topic(f"{self.settings['prefix']}{queue_name}", "queue_name")

    def validate_task(self, task: Task) -> None:
        """Refuse a task that cannot be run here; raises InvalidTask."""
        super().validate_task(task)
        try:
            self.topic(task.queue_name)
        except InvalidTopic as error:
            raise InvalidTask(str(error)) from None

    def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
        """Put a task, or have it put when the transaction commits.

        Raises InvalidTask, TypeError for arguments that JSON lacks, InvalidInput for a task that is
        too large or too far away, TopicFull for a task that its queue refuses or drops, and
        StoreError. When a transaction commits, a task that its queue refuses is logged, as is one
        over a quota, and the others are put; another StoreError is raised.
        """
        self.validate_task(task)
        run_after = task.run_after
        record = Record(
            task=task.module_path,
            args=normalize_json(args),
            kwargs=normalize_json(kwargs),
            backend=self.alias,
            queue_name=task.queue_name,
            priority=task.priority,
            run_after_ms=None if run_after is None else epoch_ms(run_after),
            enqueued_ms=now_ms(),
        )
        id_ = f"{task.queue_name}:{get_random_string(_ID_CHARS)}"
        result = record.result(id_, TaskResultStatus.READY)
        options: dict[str, Any] = {
            "id": id_,
            "priority": DEFAULT_PRIORITY - record.priority,
            "max_attempts": self.settings["attempts"] + _LOST,
        }
        if record.run_after_ms is not None:
            options["due"] = record.run_after_ms
        # Checked now, as a transaction that has committed cannot be rolled back.
        body = values.body(record.encoded(), "task")
        row_of(body, record.enqueued_ms, **options)
        put = partial(self._put, self.topic(task.queue_name), body, result, options)
        if self.settings["on_commit"]:
            late_put = partial(_unless_refused, put, id_)
            transaction.on_commit(late_put, using=self.settings["database"])
        else:
            put()
        return result

    def _put(self, topic: str, body: bytes, result: TaskResult, options: dict[str, Any]) -> None:
        if self.queue.put(topic, body, **options).result is Result.DROPPED:
            raise TopicFull(f"topic {topic!r}: is full and drops what is put")
        task_enqueued.send_robust(type(self), task_result=result)

    def get_result(self, result_id: str) -> TaskResult:
        """Return what came of a task, or what is known so far; raises TaskResultDoesNotExist."""
        queue_name, colon, _ = str(result_id).rpartition(":")
        if not colon:
            raise TaskResultDoesNotExist(result_id)
        try:
            topic = self.topic(queue_name)
            message = self.queue.get(topic, result_id)
            if message is not None:
                return result_of_message(message)
            outcome = self.queue.result(topic, result_id)
        except InvalidInput:
            raise TaskResultDoesNotExist(result_id) from None
        if outcome.result is None:
            raise TaskResultDoesNotExist(result_id)
        return record_of(outcome.result).result(result_id, TaskResultStatus.SUCCESSFUL)


def _unless_refused(put: Callable[[], None], id_: str) -> None:
    """Put a task; if an error was raised, Django would drop the others of the transaction."""
    try:
        put()
    except (TopicFull, StoreFull, AccessDenied, InvalidInput):
        _log.exception("task %s was not put, though its transaction has committed", id_)
