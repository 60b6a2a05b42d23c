"""Revocations in the store: tasks that no worker has are cancelled by their ids.

Celery only tells the workers that run, and each forgets in time; they still hear of it, for
the tasks that they hold.
"""

import asyncio
import logging
from collections.abc import Sequence, Set
from typing import Any

from celery import current_app
from celery.app.task import Context
from kombu.utils.json import loads

from dwell.celery.directory import Directory
from dwell.celery.envelope import MOST_TURNS, message_id, task_of
from dwell.celery.names import topic_of
from dwell.errors import AccessDenied, InvalidId, InvalidTopic
from dwell.given import values
from dwell.message import MAX_BATCH_MESSAGES, Message, Result
from dwell.queue import Queue
from dwell.slices import slices

_log = logging.getLogger(__name__)


def revoked_tasks(message: dict[str, Any]) -> list[str]:
    """Return the ids of the tasks that a message of Celery's remote control revokes everywhere."""
    body = message["body"]
    # As a rule it is another command, or an event.
    if not isinstance(body, str) or '"revoke"' not in body:
        return []
    try:
        command = loads(body)
    except ValueError:
        return []
    if not isinstance(command, dict) or command.get("method") != "revoke":
        return []
    if command.get("destination") or command.get("pattern"):
        return []
    found = (command.get("arguments") or {}).get("task_id") or []
    return [found] if isinstance(found, str) else [str(task) for task in found]


async def cancel_tasks(queue: Queue, tasks: Sequence[str]) -> list[Message]:
    """Cancel the messages of tasks in the queues that do not expire; return those cancelled.

    Queues that this process has no right to are left out.
    """
    ids = [message_id(task, turn) for task in tasks for turn in range(MOST_TURNS)]
    # One that no message can have is a task's whose messages have ids of the queue's own.
    ids = list(filter(_can_be_an_id, ids))
    names = await Directory(queue).names()
    chosen = frozenset(tasks)
    parts = [
        (topic_of(name), chosen, part) for name in names for part in slices(ids, MAX_BATCH_MESSAGES)
    ]
    found = await asyncio.gather(*(_cancelled(queue, *part) for part in parts))
    return [message for part in found for message in part]


def _can_be_an_id(text: str) -> bool:
    try:
        values.any_id(text)
    except InvalidId:
        return False
    return True


async def _cancelled(
    queue: Queue, topic: str, tasks: Set[str], ids: Sequence[str]
) -> list[Message]:
    try:
        found = [message for message in await queue.get(topic, ids) if message is not None]
    except (InvalidTopic, AccessDenied):
        # It is a queue of others, or an older version let in a name that is too long for a topic.
        return []
    # An id that is made for a later message of a task may be the id of another task.
    there = [message for message in found if task_of(message) in tasks]
    if not there:
        return []
    results = await queue.cancel(topic, [message.id for message in there])
    pairs = zip(there, results, strict=True)
    return [message for message, result in pairs if result is Result.CANCELLED]


def tell_results(messages: Sequence[Message]) -> None:
    """Tell the result backend of the current app that tasks were revoked.

    A worker that gets a revoked task does so; these tasks no worker gets.
    """
    for message in messages:
        try:
            _tell_result(loads(message.body))
        except Exception as error:
            # The task is cancelled all the same.
            _log.warning("could not store that task %s is revoked: %s", message.id, error)


def _tell_result(found: dict[str, Any]) -> None:
    headers, properties = found["headers"], found["properties"]
    if "id" not in headers:
        return
    names = {"reply_to": properties.get("reply_to"), "correlation_id": headers["id"]}
    request = Context(headers, **names)
    if not headers.get("ignore_result"):
        current_app.backend.mark_as_revoked(headers["id"], "revoked", request=request)
