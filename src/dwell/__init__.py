"""A durable delay queue: hand it a message and a time; it hands the message back when that comes.

::

    async with dwell.open("./data") as queue:
        await queue.put("emails", {"to": "ann@example.org"}, delay="30m")
        batch = await queue.take("emails", 100, wait="1h")
        await queue.ack(batch)

``with dwell.open(...)`` gives the same queue to code that is not asynchronous.
"""

from dwell.batch.batch import Batch
from dwell.batch.changed import Changed
from dwell.batch.events import Event, EventPage
from dwell.batch.outcome import Outcome
from dwell.batch.page import Cursor, Page
from dwell.batch.puts import Put, PutAnswer
from dwell.batch.results import Results
from dwell.batch.selection import Selection
from dwell.batch.stats import Holder, Stale, Stats, TopicStats
from dwell.batch.sweep import Sweep, Wanted
from dwell.clock import Clock, RealClock, SimulatedClock
from dwell.errors import (
    AccessDenied,
    BatchTooLarge,
    DiskFull,
    DwellError,
    Forbidden,
    ForeignReceipt,
    IdExists,
    InvalidAttempts,
    InvalidBody,
    InvalidHeaders,
    InvalidId,
    InvalidInput,
    InvalidKey,
    InvalidLimit,
    InvalidPriority,
    InvalidQuery,
    InvalidReceipt,
    InvalidSchedule,
    InvalidSettings,
    InvalidTime,
    InvalidTopic,
    InvalidUrl,
    NotAStore,
    ServerBusy,
    ServerDraining,
    ServerUnreachable,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreLocked,
    StoreTooNew,
    TopicFull,
    Unauthorized,
)
from dwell.given.growth import exponential
from dwell.given.selecting import select
from dwell.handle import Handle, open  # noqa: A004 - read as dwell.open
from dwell.message import Kind, Message, Result, State, TopicSettings
from dwell.queue import Queue
from dwell.queue.codec import TypedMessage
from dwell.queue.schedules.schedule import Planned, Schedule
from dwell.queue.then import Then
from dwell.threads.sync import SyncQueue

__all__ = [
    "AccessDenied",
    "Batch",
    "BatchTooLarge",
    "Changed",
    "Clock",
    "Cursor",
    "DiskFull",
    "DwellError",
    "Event",
    "EventPage",
    "Forbidden",
    "ForeignReceipt",
    "Handle",
    "Holder",
    "IdExists",
    "InvalidAttempts",
    "InvalidBody",
    "InvalidHeaders",
    "InvalidId",
    "InvalidInput",
    "InvalidKey",
    "InvalidLimit",
    "InvalidPriority",
    "InvalidQuery",
    "InvalidReceipt",
    "InvalidSchedule",
    "InvalidSettings",
    "InvalidTime",
    "InvalidTopic",
    "InvalidUrl",
    "Kind",
    "Message",
    "NotAStore",
    "Outcome",
    "Page",
    "Planned",
    "Put",
    "PutAnswer",
    "Queue",
    "RealClock",
    "Result",
    "Results",
    "Schedule",
    "Selection",
    "ServerBusy",
    "ServerDraining",
    "ServerUnreachable",
    "SimulatedClock",
    "Stale",
    "State",
    "Stats",
    "StoreClosed",
    "StoreDamaged",
    "StoreError",
    "StoreFailed",
    "StoreFull",
    "StoreLocked",
    "StoreTooNew",
    "Sweep",
    "SyncQueue",
    "Then",
    "TopicFull",
    "TopicSettings",
    "TopicStats",
    "TypedMessage",
    "Unauthorized",
    "Wanted",
    "exponential",
    "open",
    "select",
]
