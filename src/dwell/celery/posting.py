"""Puts parcels, each once, with one call a topic; the topics do not wait for each other."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from dwell.batch.puts import Put
from dwell.celery.envelope import MOST_TURNS, Parcel, is_used_once, publish_of
from dwell.errors import (
    AccessDenied,
    DwellError,
    IdExists,
    InvalidBody,
    InvalidInput,
    StoreFull,
    TopicFull,
)
from dwell.message import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, Message, Result
from dwell.queue import Queue
from dwell.slices import places, slices

#: The bytes of a message in a batch, without its body.
_EXTRA_BYTES = 512


async def post(queue: Queue, parcels: Sequence[Parcel], max_attempts: int) -> list[tuple[str, str]]:
    """Put parcels; an error of one topic leaves the parcels of others alone.

    Returns topics and what to log of them: that they dropped a message, as they are full, or
    refused a copy that is not needed, as it is another application's, or other queues took theirs.
    Other errors are raised in the end: InvalidInput, TopicFull, AccessDenied and StoreError.
    """
    by_topic: dict[str, list[Parcel]] = {}
    for parcel in parcels:
        by_topic.setdefault(parcel.topic, []).append(parcel)
    posting = (_post(queue, own, max_attempts) for own in by_topic.values())
    errors = dict(zip(by_topic, await asyncio.gather(*posting), strict=True))
    for topic, own in by_topic.items():
        for parcel in own:
            if parcel.copies is not None and errors[topic] is None and not parcel.is_dropped:
                parcel.copies.is_taken = True
    refused = [(topic, error) for topic, error in errors.items() if error is not None]
    for topic, error in refused:
        if not _is_queues_own(error) or any(map(_is_missed, by_topic[topic])):
            raise error
    dropping = [topic for topic, own in by_topic.items() if any(one.is_dropped for one in own)]
    return [
        *((topic, f"left out by an exchange: {error}") for topic, error in refused),
        *((topic, "the topic is full, and drops messages") for topic in dropping),
    ]


def _is_queues_own(error: DwellError) -> bool:
    """Tell whether an error concerns one queue alone; a body is the same for all of them."""
    kinds = AccessDenied | TopicFull | StoreFull | InvalidInput
    return isinstance(error, kinds) and not isinstance(error, InvalidBody)


def _is_missed(parcel: Parcel) -> bool:
    copies = parcel.copies
    return copies is None or (copies.is_needed and not copies.is_taken)


async def _post(queue: Queue, parcels: list[Parcel], max_attempts: int) -> DwellError | None:
    """Put parcels of one topic; return the error that ended it, if any.

    An existing id belongs to an earlier message of the same task, such as a task that is retried
    before it is acked: then the next id of the task is used, or the queue makes the id. Or it is
    the same message, if this client or kombu has repeated a put whose answer was lost. An id that
    is remembered of a message that was acked is used again, unless it was the same message.
    """
    left = parcels
    for turn in range(MOST_TURNS):
        kept: list[Parcel] = []
        try:
            for group in _groups(left):
                kept += await _others(queue, await _put(queue, group, max_attempts), max_attempts)
        except DwellError as error:
            return error
        left = kept
        for parcel in left:
            parcel.turn += 1
            if turn == MOST_TURNS - 2:
                parcel.task = ""
    return None


def _groups(parcels: Sequence[Parcel]) -> list[list[Parcel]]:
    """Return parcels of one topic in parts, all with ids or none, as many as one call may have."""
    groups: dict[bool, list[Parcel]] = {}
    for parcel in parcels:
        groups.setdefault(bool(parcel.task), []).append(parcel)
    found: list[list[Parcel]] = []
    for group in groups.values():
        sizes = [len(parcel.body) + _EXTRA_BYTES for parcel in group]
        for place in places(sizes, MAX_BATCH_BYTES // 2):
            found += slices(group[place], MAX_BATCH_MESSAGES)
    return found


async def _others(queue: Queue, kept: Sequence[Parcel], max_attempts: int) -> list[Parcel]:
    """Return the parcels of one topic whose ids other messages have.

    Those whose ids are only remembered are put.
    """
    if not kept:
        return []
    ids = [str(parcel.id) for parcel in kept]
    try:
        found = await queue.get(kept[0].topic, ids)
    except AccessDenied:
        # A second message is better than none.
        return list(kept)
    pairs = list(zip(kept, found, strict=True))
    gone = [parcel for parcel, there in pairs if there is None]
    renewed = await asyncio.gather(*(_renewed(queue, parcel, max_attempts) for parcel in gone))
    others = [parcel for parcel, there in pairs if there is not None and _is_other(parcel, there)]
    return others + [parcel for parcel, is_put in zip(gone, renewed, strict=True) if not is_put]


def _is_other(parcel: Parcel, there: Message) -> bool:
    return not parcel.publish or publish_of(there) != parcel.publish


async def _renewed(queue: Queue, parcel: Parcel, max_attempts: int) -> bool:
    """Put a parcel whose id is remembered of an acked message, unless that was the same one.

    Returns False if another message has the id by now.
    """
    topic, id_ = parcel.topic, str(parcel.id)
    if is_used_once(id_):
        is_done = parcel.is_repeat
    else:
        outcome = await queue.result(topic, id_)
        is_done = bool(parcel.publish) and outcome.result == parcel.publish.encode()
    if is_done:
        return True
    try:
        await _put_one(queue, parcel, max_attempts, "error")
    except IdExists:
        there = await queue.get(topic, id_)
        return there is not None and not _is_other(parcel, there)
    return True


async def _put(queue: Queue, group: Sequence[Parcel], max_attempts: int) -> list[Parcel]:
    """Put parcels of one topic; return those whose ids exist."""
    first = group[0]
    if len(group) == 1:
        put = await _put_one(queue, first, max_attempts, "keep")
        return [first] if put.result is Result.KEPT else []
    columns: dict[str, Any] = {
        "due": [parcel.due_ms for parcel in group],
        "expires": [parcel.expires_ms for parcel in group],
        "priority": [parcel.priority for parcel in group],
    }
    if first.task:
        columns["ids"] = [parcel.id for parcel in group]
    answer = await queue.put_many(
        first.topic, [parcel.body for parcel in group], max_attempts=max_attempts, **columns
    )
    for place in np.flatnonzero(answer.results == Result.DROPPED).tolist():
        group[place].is_dropped = True
    kept = np.flatnonzero(answer.results == Result.KEPT).tolist()
    return [group[place] for place in kept]


async def _put_one(queue: Queue, parcel: Parcel, max_attempts: int, on_conflict: str) -> Put:
    words: dict[str, Any] = {"due": parcel.due_ms, "expires": parcel.expires_ms, "id": parcel.id}
    given = {name: value for name, value in words.items() if value is not None}
    put = await queue.put(
        parcel.topic,
        parcel.body,
        priority=parcel.priority,
        max_attempts=max_attempts,
        on_conflict=on_conflict,
        **given,
    )
    parcel.is_dropped = put.result is Result.DROPPED
    return put
