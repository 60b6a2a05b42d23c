# Made by `python -m tools.stubs` from queue/{queue,selecting,typed,verbs}.py and
# queue/schedules/schedules.py: change those.
# ruff: noqa: A002
# mypy: disable-error-code="overload-overlap"
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from os import PathLike
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from dwell.batch.batch import Batch
from dwell.batch.changed import Changed
from dwell.batch.events import EventPage
from dwell.batch.outcome import Outcome
from dwell.batch.page import Cursor, Page
from dwell.batch.puts import Put, PutAnswer, Puts, Row
from dwell.batch.results import Results
from dwell.batch.stats import Stale, Stats, TopicStats
from dwell.batch.sweep import EVERY, Sweep, Wanted
from dwell.given.options import PutManyOptions, PutOptions
from dwell.given.values import Delay, Due
from dwell.message import (
    DEFAULT_PRIORITY,
    I64,
    MAX_CHANGE_MESSAGES,
    U64,
    Message,
    Result,
    State,
    TopicSettings,
)
from dwell.queue import Queue
from dwell.queue.codec import TypedMessage
from dwell.queue.exports.manifest import Manifest
from dwell.queue.exports.report import Imported
from dwell.queue.schedules.past import PastRuns
from dwell.queue.schedules.schedule import Planned, Preview
from dwell.queue.schedules.schedules import Schedules
from dwell.queue.selecting import States, Which
from dwell.queue.tables import OnBad, OnPut
from dwell.queue.then import Then
from dwell.queue.typed import Typed
from dwell.queue.verbs import ManyTaken, Taken, Versions
from dwell.store.base import AckResults
from dwell.threads.bridge import LoopThread

T = TypeVar("T")

class SyncQueue:
    def __init__(self, queue: Queue, thread: LoopThread | None = None) -> None: ...
    def open(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    @property
    def schedules(self) -> SyncSchedules: ...
    def topic(self, name: str, kind: type[T]) -> SyncTyped[T]: ...
    def put(
        self, topic: str, body: object, *, on_conflict: str = "keep", **options: Unpack[PutOptions]
    ) -> Put: ...
    def put_many(
        self,
        topic: str,
        bodies: Sequence[object],
        *,
        on_conflict: str = "keep",
        **options: Unpack[PutManyOptions],
    ) -> PutAnswer: ...
    def put_table(
        self,
        topic: str,
        table: object,
        *,
        on_conflict: str = "keep",
        on_bad: OnBad | None = None,
        on_put: OnPut | None = None,
    ) -> Counter[Result]: ...
    def put_export(
        self,
        folder: str | PathLike[str],
        *,
        dead: str = "keep",
        settings: bool = False,
        on_bad: OnBad | None = None,
        tell: Callable[[Imported], None] | None = None,
    ) -> Imported: ...
    def put_puts(self, puts: Puts, on_conflict: str = "keep") -> PutAnswer: ...
    def put_rows(
        self,
        topic: str,
        rows: Sequence[Row],
        on_conflict: str = "keep",
        counted_ms: int | None = None,
    ) -> Sequence[Put]: ...
    def take(
        self,
        topics: str | Sequence[str],
        limit: int = 1,
        *,
        lease: Delay | None = None,
        owner: str = "",
        wait: Delay = 0,
    ) -> Batch: ...
    def take_ids(
        self,
        topic: str,
        ids: str | Sequence[str],
        *,
        lease: Delay | None = None,
        owner: str = "",
        versions: Versions | None = None,
    ) -> Batch: ...
    def peek(self, topic: str, limit: int = 1) -> Batch: ...
    def held(self, owner: str) -> Batch: ...
    def named(self, numbers: Sequence[int] | U64) -> list[tuple[str, str] | None]: ...
    def count_urgent(self, topic: str, priority: int = DEFAULT_PRIORITY) -> int: ...
    def taken_from(self, what: ManyTaken) -> list[str | None]: ...
    def scan(
        self, topic: str, state: State | str, *, cursor: Cursor | None = None, limit: int = 1000
    ) -> Page: ...
    def clear(self, topic: str) -> int: ...
    def delete_topic(self, topic: str) -> int: ...
    def sweep(
        self, wanted: Wanted = EVERY, *, start: int = 0, stop: int = 2**63 - 1, limit: int = 1000
    ) -> Sweep: ...
    def export(
        self,
        folder: str | PathLike[str],
        topics: str | Sequence[str] = (),
        *,
        tell: Callable[[int], None] | None = None,
    ) -> Manifest: ...
    def events(self, position: int = 0, limit: int = 1000) -> EventPage: ...
    def stats(self) -> Stats: ...
    def sizes(self, topic: str) -> list[TopicStats]: ...
    def find_stale(self, *, repair: bool = False, limit: int = 1000) -> list[Stale]: ...
    def configure(self, topic: str, **changes: Any) -> TopicSettings: ...
    def settings(self, topic: str) -> TopicSettings: ...
    def find(
        self, topic: str, which: Which, *, state: States | None = None, limit: int = 1000
    ) -> Batch: ...
    def pages(
        self,
        topic: str,
        state: States | None = None,
        *,
        which: Which | None = None,
        limit: int = 1000,
    ) -> Iterator[Batch]: ...
    def take_where(
        self,
        topic: str,
        which: Which,
        limit: int = 1,
        *,
        lease: Delay | None = None,
        owner: str = "",
    ) -> Batch: ...
    def cancel_where(
        self, topic: str, which: Which, *, limit: int = MAX_CHANGE_MESSAGES, dry_run: bool = False
    ) -> Changed: ...
    def reschedule_where(
        self,
        topic: str,
        which: Which,
        *,
        delay: Delay | None = None,
        due: Due | None = None,
        shift: Delay | None = None,
        limit: int = MAX_CHANGE_MESSAGES,
        dry_run: bool = False,
    ) -> Changed: ...
    def kick_where(
        self,
        topic: str,
        which: Which,
        *,
        delay: Delay = 0,
        pace: int | None = None,
        limit: int = MAX_CHANGE_MESSAGES,
        dry_run: bool = False,
    ) -> Changed: ...
    @overload
    def ack(self, what: Taken, *, result: object = None, then: Then | None = None) -> Result: ...
    @overload
    def ack(self, what: ManyTaken, *, results: Sequence[object] | None = None) -> Results: ...
    def ack_puts(self, receipts: U64, results: AckResults, then: Puts) -> Results: ...
    @overload
    def release(
        self,
        what: Taken,
        delay: Delay = 0,
        *,
        retry: bool = False,
        error: str | None = None,
        counted: bool = True,
        priority: int | None = None,
    ) -> Result: ...
    @overload
    def release(
        self,
        what: ManyTaken,
        delay: Delay | Sequence[Delay] | I64 = 0,
        *,
        retry: bool = False,
        error: str | Sequence[str | None] | None = None,
        counted: bool = True,
        priority: int | None = None,
    ) -> Results: ...
    @overload
    def touch(self, what: Taken, lease: Delay | None = None) -> Result: ...
    @overload
    def touch(self, what: ManyTaken, lease: Delay | None = None) -> Results: ...
    @overload
    def bury(
        self, what: Taken, reason: str | None = None, *, priority: int | None = None
    ) -> Result: ...
    @overload
    def bury(
        self, what: ManyTaken, reason: str | None = None, *, priority: int | None = None
    ) -> Results: ...
    @overload
    def cancel(self, topic: str, ids: str, *, versions: Versions | None = None) -> Result: ...
    @overload
    def cancel(
        self, topic: str, ids: Sequence[str], *, versions: Versions | None = None
    ) -> Results: ...
    @overload
    def reschedule(
        self,
        topic: str,
        ids: str,
        *,
        delay: Delay | None = None,
        due: Due | None = None,
        versions: Versions | None = None,
    ) -> Result: ...
    @overload
    def reschedule(
        self,
        topic: str,
        ids: Sequence[str],
        *,
        delay: Delay | Sequence[Delay] | None = None,
        due: Due | Sequence[Due] | I64 | None = None,
        versions: Versions | None = None,
    ) -> Results: ...
    @overload
    def kick(
        self,
        topic: str,
        ids: str,
        *,
        delay: Delay | None = None,
        due: Due | None = None,
        versions: Versions | None = None,
    ) -> Result: ...
    @overload
    def kick(
        self,
        topic: str,
        ids: Sequence[str] | None = None,
        *,
        limit: int = 1000,
        delay: Delay | Sequence[Delay] | None = None,
        due: Due | Sequence[Due] | I64 | None = None,
        versions: Versions | None = None,
    ) -> Results: ...
    @overload
    def get(self, topic: str, ids: str) -> Message | None: ...
    @overload
    def get(self, topic: str, ids: Sequence[str]) -> list[Message | None]: ...
    def result(self, topic: str, id: str, *, wait: Delay = 0) -> Outcome: ...

class SyncSchedules:
    def __init__(self, schedules: Schedules, run: Callable[..., Any]) -> None: ...
    def put(
        self,
        name: str,
        topic: str,
        body: object,
        *,
        cron: str | None = None,
        dialect: str = "crontab",
        every: Delay | None = None,
        rrule: str | None = None,
        zone: str = "UTC",
        start: Due | None = None,
        end: Due | None = None,
        days_off: Iterable[str | date] = (),
        when_off: str = "skip",
        jitter: Delay = 0,
        misfire: str = "once",
        overlap: str = "queue",
        grace: Delay = "1m",
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        priority: int = DEFAULT_PRIORITY,
        lease: Delay | None = None,
        max_attempts: int | None = None,
        ttl: Delay | None = None,
        app: str = "",
    ) -> Result: ...
    def change(self, name: str, **words: Any) -> Result: ...
    def get(self, name: str) -> Planned | None: ...
    def each(self, app: str | None = None) -> Iterator[Planned]: ...
    def next(self, name: str, count: int = 5) -> list[datetime]: ...
    def preview(self, count: int = 5, **when: Any) -> Preview: ...
    def runs(self, name: str, count: int = 20, *, within: Delay = "10s") -> PastRuns: ...
    def pause(self, name: str) -> Result: ...
    def resume(self, name: str) -> Result: ...
    def run(self, name: str | Planned) -> Put: ...
    def remove(self, name: str) -> Result: ...
    def fire(self) -> None: ...

class SyncTyped(Generic[T]):
    def __init__(self, typed: Typed[T], queue: SyncQueue) -> None: ...
    def put(self, value: T, **words: Any) -> Put: ...
    def put_many(self, given: Sequence[T], **words: Any) -> PutAnswer: ...
    def take(
        self, limit: int = 1, *, lease: Delay | None = None, owner: str = "", wait: Delay = 0
    ) -> list[TypedMessage[T]]: ...
    def fitting(self, batch: Batch) -> list[TypedMessage[T]]: ...
    def get(self, id: str) -> TypedMessage[T] | None: ...
