"""The verbs on existing messages: by receipt (for its taker) and by id (for everybody).

One in, one answer out; many in, many out. Single calls from many coroutines are gathered.
"""

from collections.abc import Awaitable, Sequence
from itertools import chain
from typing import Any, TypeAlias, overload

import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.outcome import Outcome
from dwell.batch.page import Cursor
from dwell.batch.puts import Puts, check_extra_size
from dwell.batch.results import Results
from dwell.errors import (
    ForeignReceipt,
    InvalidInput,
    InvalidTime,
    StoreClosed,
    StoreDamaged,
)
from dwell.given import columns, values
from dwell.given.receipts import given_receipts, joined_receipts, receipt_bytes
from dwell.given.rows import row_of
from dwell.given.values import Delay, Due
from dwell.message import I64, U8, U64, Message, Result, State
from dwell.queue.bulk import REFUSALS, told_each, told_parts
from dwell.queue.calling import numbered
from dwell.queue.gather import Gatherer
from dwell.queue.home import Home
from dwell.queue.then import Then
from dwell.queue.turns import Turns
from dwell.queue.watchers import Watchers
from dwell.store.base import AckResults, Errors, RemoteStore, Store

#: The argument of a verb by receipt: a taken message or its receipt, or many of them.
Taken: TypeAlias = Message | str
ManyTaken: TypeAlias = Batch | Sequence[Message] | Sequence[str] | U64

#: The versions that messages must have, as a page or a sweep returned them.
Versions: TypeAlias = Sequence[int] | U64

#: How messages are released: after the topic's own delay or not, counted or not, and the priority.
#: Each message has its receipt, its delay and its error.
_Release: TypeAlias = tuple[bool, bool, int | None]
_Released: TypeAlias = tuple[bytes, int, str | None]
_Bury: TypeAlias = tuple[str | None, int | None]


class Verbs:
    """The verbs of :class:`dwell.Queue` that act on existing messages."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_open = False
        self._home: Home | None = None
        self._turns = turns = Turns()
        alone, of_receipt, of_id = REFUSALS, store.away_of_receipt, store.away_of_id

        def of_first(item: tuple[bytes, object] | _Released) -> int:
            return of_receipt(item[0])

        def of_first_id(item: tuple[bytes, int]) -> int:
            return of_id(item[0])

        self._acks: Gatherer[None, bytes, Result] = Gatherer(self._ack, turns, alone, of_receipt)
        self._dones: Gatherer[None, tuple[bytes, bytes], Result] = Gatherer(
            self._done, turns, alone, of_first
        )
        self._releases: Gatherer[_Release, _Released, Result] = Gatherer(
            self._release, turns, alone, of_first
        )
        self._touches: Gatherer[int, bytes, Result] = Gatherer(
            self._touch, turns, alone, of_receipt
        )
        self._burials: Gatherer[_Bury, bytes, Result] = Gatherer(
            self._bury, turns, alone, of_receipt
        )
        self._cancels: Gatherer[str, bytes, Result] = Gatherer(self._cancel, turns, alone, of_id)
        self._moves: Gatherer[str, tuple[bytes, int], Result] = Gatherer(
            self._move, turns, alone, of_first_id
        )
        self._kicks: Gatherer[str, tuple[bytes, int], Result] = Gatherer(
            self._kick, turns, alone, of_first_id
        )
        self._gets: Gatherer[str, bytes, Message | None] = Gatherer(self._get, turns)
        self._bulk_acks: Gatherer[None, U64, Results] = Gatherer(self._ack_bulk, turns, alone)
        self._bulk_cancels: Gatherer[str, Sequence[bytes], Results] = Gatherer(
            self._cancel_bulk, turns, alone
        )
        self._watchers = Watchers(store, turns)
        self._bulk_moves: Gatherer[str, tuple[Sequence[bytes], I64], Results] = Gatherer(
            self._move_bulk, turns, alone
        )

    # --- by receipt ---------------------------------------------------------------------------

    @overload
    async def ack(  # type: ignore[overload-overlap]
        self, what: Taken, *, result: object = None, then: Then | None = None
    ) -> Result: ...
    @overload
    async def ack(self, what: ManyTaken, *, results: Sequence[object] | None = None) -> Results: ...
    async def ack(
        self,
        what: Taken | ManyTaken,
        *,
        result: object = None,
        results: Sequence[object] | None = None,
        then: Then | None = None,
    ) -> Result | Results:
        """Report messages as done, and remove them: ``acked`` or ``stale``.

        ``what`` is a taken message or its receipt (a single answer), or a batch or a sequence of
        them (an answer for each). The ``result`` of a single message, or ``results`` with a value
        or None for each of many, is kept for the topic's ``remember_ms``, so that :meth:`result`
        returns it; it is bytes, text, or any value that JSON can encode, of 1 MiB at most.

        ``then`` is a message to be put in the same step as the ack of a single one, exactly if the
        ack counts: ``then=Then("next", body, delay="1h")``. An id that exists is kept, and that of
        the message itself, in its topic, raises InvalidInput. If its topic is full and refuses it,
        TopicFull is raised and nothing is done; on a Redis with several shards an id or key of
        another shard raises InvalidInput. Raises InvalidReceipt, ForeignReceipt, BatchTooLarge, and
        InvalidBody for a result.
        """
        if isinstance(what, Message | str):
            if results is not None:
                raise InvalidInput("results: got one message, expected result")
            if then is not None:
                return await self._ack_then(what, result, then)
            if result is None:
                return await self._acks.call(None, self._receipt(what))
            data = values.body(result, "result")
            return await self._dones.call(None, (self._receipt(what), data), len(data))
        if result is not None:
            raise InvalidInput("result: got many messages, expected results, one for each")
        if then is not None:
            raise InvalidInput("then: got many messages, expected one")
        self.check_open()
        receipts = given_receipts(what)
        own = None if results is None else columns.results(results, len(receipts))
        if not len(receipts):
            return _nothing()
        if own is None:
            return await self._bulk_acks.call(None, receipts, count=len(receipts))
        calls: dict[str, Any] = numbered(len(receipts))
        return Results(await self._store.ack(receipts, own, **calls))

    async def _ack_then(self, what: Taken, result: object, then: Then) -> Result:
        """Ack a message, and put another in the same step."""
        if not isinstance(then, Then):
            raise values.refusal(InvalidInput, "then", then, "a Then")
        receipts = joined_receipts([self._receipt(what)])
        result = then.result if result is None else result
        results = None if result is None else [values.body(result, "result")]
        topic, body = values.topic(then.topic, "then.topic"), values.body(then.body, "then.body")
        self.check_open()
        is_level = then.options.get("delay_level") is not None
        levels_ms = await self._levels_ms(topic) if is_level else ()
        now_ms = self._store.clock.now_ms()
        row = row_of(body, now_ms, levels_ms, "then.{}".format, **then.options)
        check_extra_size(len(row.extra))
        puts = Puts.of_rows(topic, [row])
        return (await self.ack_puts(receipts, results, puts))[0]

    async def ack_puts(self, receipts: U64, results: AckResults, then: Puts) -> Results:
        """Ack one message and put another, whose values were checked already."""
        self.check_open()
        return Results(await self._store.ack(receipts, results, then, **numbered(1)))

    @overload
    async def release(  # type: ignore[overload-overlap]
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
    async def release(
        self,
        what: ManyTaken,
        delay: Delay | Sequence[Delay] | I64 = 0,
        *,
        retry: bool = False,
        error: str | Sequence[str | None] | None = None,
        counted: bool = True,
        priority: int | None = None,
    ) -> Results: ...
    async def release(
        self,
        what: Taken | ManyTaken,
        delay: Delay | Sequence[Delay] | I64 = 0,
        *,
        retry: bool = False,
        error: str | Sequence[str | None] | None = None,
        counted: bool = True,
        priority: int | None = None,
    ) -> Result | Results:
        """Requeue messages, due after ``delay``: ``released``, ``buried`` or ``stale``.

        In a batch, each message may have its own delay and error. ``retry`` uses the topic's retry
        delay for the attempt instead. A message whose attempts are used up is buried, unless
        ``counted`` is False: then the attempt does not count, and without a delay the message
        returns to its old place, unchanged. ``error`` becomes its ``last_error``, cut to 1000
        characters, and ``priority`` its priority.
        """
        own = None if priority is None else values.priority(priority)
        how = (values.flag(retry, "retry"), values.flag(counted, "counted"), own)
        if isinstance(what, Message | str):
            delay_ms = values.delay_ms(delay)
            _check_retry(delay_ms, retry)
            text = values.error_text(error)
            return await self._releases.call(how, (self._receipt(what), delay_ms, text))
        receipts = self._receipts(what)
        delays_ms = columns.delays(delay, len(receipts))
        _check_retry(delays_ms, retry)
        errors = columns.errors(error, len(receipts))
        if not len(receipts):
            return _nothing()
        calls = numbered(len(receipts))
        return Results(await self._release_all(receipts, delays_ms, errors, how, **calls))

    @overload
    async def touch(self, what: Taken, lease: Delay | None = None) -> Result: ...  # type: ignore[overload-overlap]
    @overload
    async def touch(self, what: ManyTaken, lease: Delay | None = None) -> Results: ...
    async def touch(self, what: Taken | ManyTaken, lease: Delay | None = None) -> Result | Results:
        """Extend leases to end ``lease`` from now: ``touched`` or ``stale``.

        Without ``lease``, the message's own lease or its topic's is used, not the lease of the
        take.
        """
        lease_ms = values.lease_ms(lease)
        if isinstance(what, Message | str):
            return await self._touches.call(lease_ms, self._receipt(what))
        receipts = self._receipts(what)
        return Results(await self._store.touch(receipts, lease_ms)) if len(receipts) else _nothing()

    @overload
    async def bury(  # type: ignore[overload-overlap]
        self, what: Taken, reason: str | None = None, *, priority: int | None = None
    ) -> Result: ...
    @overload
    async def bury(
        self, what: ManyTaken, reason: str | None = None, *, priority: int | None = None
    ) -> Results: ...
    async def bury(
        self, what: Taken | ManyTaken, reason: str | None = None, *, priority: int | None = None
    ) -> Result | Results:
        """Set messages aside as dead, until they are kicked or cancelled: ``buried`` or ``stale``.

        ``reason`` becomes their ``last_error``, cut to 1000 characters, and ``priority`` their
        priority.
        """
        own = None if priority is None else values.priority(priority)
        how = (values.error_text(reason, "reason"), own)
        if isinstance(what, Message | str):
            return await self._burials.call(how, self._receipt(what))
        receipts = self._receipts(what)
        return (
            Results(await self._bury_all(receipts, how, **numbered(len(receipts))))
            if len(receipts)
            else _nothing()
        )

    # --- by id --------------------------------------------------------------------------------

    @overload
    async def cancel(  # type: ignore[overload-overlap]
        self, topic: str, ids: str, *, versions: Versions | None = None
    ) -> Result: ...
    @overload
    async def cancel(
        self, topic: str, ids: Sequence[str], *, versions: Versions | None = None
    ) -> Results: ...
    async def cancel(
        self, topic: str, ids: str | Sequence[str], *, versions: Versions | None = None
    ) -> Result | Results:
        """Remove messages that are not leased: ``cancelled``, ``leased`` or ``unknown``.

        With the ``versions`` of a page or a sweep, messages that have changed since are left
        unchanged: ``unknown``, or ``leased``.
        """
        topic = values.topic(topic)
        if isinstance(ids, str):
            if versions is None:
                return await self._cancels.call(topic, values.any_id(ids))
            return (await self.cancel(topic, [ids], versions=versions))[0]
        many = self._ids(ids)
        if not many:
            return _nothing()
        if versions is None:
            return await self._bulk_cancels.call(topic, many, count=len(many))
        seen = columns.versions(versions, len(many))
        return Results(await self._store.cancel(topic, many, seen, **numbered(len(many))))

    @overload
    async def reschedule(  # type: ignore[overload-overlap]
        self,
        topic: str,
        ids: str,
        *,
        delay: Delay | None = None,
        due: Due | None = None,
        versions: Versions | None = None,
    ) -> Result: ...
    @overload
    async def reschedule(
        self,
        topic: str,
        ids: Sequence[str],
        *,
        delay: Delay | Sequence[Delay] | None = None,
        due: Due | Sequence[Due] | I64 | None = None,
        versions: Versions | None = None,
    ) -> Results: ...
    async def reschedule(
        self,
        topic: str,
        ids: str | Sequence[str],
        *,
        delay: Delay | Sequence[Delay] | None = None,
        due: Due | Sequence[Due] | I64 | None = None,
        versions: Versions | None = None,
    ) -> Result | Results:
        """Change when messages fall due: ``moved``, ``leased`` or ``unknown`` (also when dead).

        Either ``delay`` or ``due`` is required, as a single value or a value for each id.
        ``versions`` are as for :meth:`cancel`.
        """
        topic = values.topic(topic)
        if delay is None and due is None:
            raise InvalidTime("due: got neither delay nor due, expected one of them")
        if isinstance(ids, str):
            due_ms = self._dues(delay, due, 1)
            if versions is None:
                return await self._moves.call(topic, (values.any_id(ids), int(due_ms[0])))
            return (await self.reschedule(topic, [ids], due=due_ms, versions=versions))[0]
        many = self._ids(ids)
        column = self._dues(delay, due, len(many))
        if not many:
            return _nothing()
        if versions is None:
            return await self._bulk_moves.call(topic, (many, column), count=len(many))
        seen = columns.versions(versions, len(many))
        return Results(
            await self._store.reschedule(topic, many, column, seen, **numbered(len(many)))
        )

    @overload
    async def kick(  # type: ignore[overload-overlap]
        self,
        topic: str,
        ids: str,
        *,
        delay: Delay | None = None,
        due: Due | None = None,
        versions: Versions | None = None,
    ) -> Result: ...
    @overload
    async def kick(
        self,
        topic: str,
        ids: Sequence[str] | None = None,
        *,
        limit: int = 1000,
        delay: Delay | Sequence[Delay] | None = None,
        due: Due | Sequence[Due] | I64 | None = None,
        versions: Versions | None = None,
    ) -> Results: ...
    async def kick(
        self,
        topic: str,
        ids: str | Sequence[str] | None = None,
        *,
        limit: int = 1000,
        delay: Delay | Sequence[Delay] | None = None,
        due: Due | Sequence[Due] | I64 | None = None,
        versions: Versions | None = None,
    ) -> Result | Results:
        """Bring dead messages back with 0 attempts: ``kicked`` or ``unknown``.

        They are due now, or at ``delay`` or ``due``, a single value or a value for each id. Without
        ``ids`` the messages with the earliest dues are brought back, at most ``limit``.
        ``versions`` are as for :meth:`cancel`.
        """
        topic = values.topic(topic)
        if delay is None and due is None:
            delay = 0
        if isinstance(ids, str):
            due_ms = self._dues(delay, due, 1)
            if versions is None:
                return await self._kicks.call(topic, (values.any_id(ids), int(due_ms[0])))
            return (await self.kick(topic, [ids], due=due_ms, versions=versions))[0]
        if ids is None:
            if versions is not None:
                raise InvalidInput("versions: got them without ids, expected both")
            due_ms = self._dues(delay, due, 1)
            return await self._kick_first(topic, values.limit(limit), int(due_ms[0]))
        many = self._ids(ids)
        column = self._dues(delay, due, len(many))
        if not many:
            return _nothing()
        seen = None if versions is None else columns.versions(versions, len(many))
        return Results(await self._store.kick(topic, many, column, seen, **numbered(len(many))))

    @overload
    async def get(self, topic: str, ids: str) -> Message | None: ...  # type: ignore[overload-overlap]
    @overload
    async def get(self, topic: str, ids: Sequence[str]) -> list[Message | None]: ...
    async def get(
        self, topic: str, ids: str | Sequence[str]
    ) -> Message | list[Message | None] | None:
        """Return messages by id, without receipts; None for an unknown id.

        A message that is damaged on disk raises StoreDamaged if it is the only id; among several
        ids it is None, too.
        """
        topic = values.topic(topic)
        if isinstance(ids, str):
            return await self._gets.call(topic, values.any_id(ids))
        many = self._ids(ids)
        found = await self._store.get(topic, many) if many else []
        return [None if isinstance(one, StoreDamaged) else one for one in found]

    async def result(self, topic: str, id: str, *, wait: Delay = 0) -> Outcome:  # noqa: A002 - the word
        """Return what came of a message: where it is, or its result or the reason of its death.

        ``wait`` is how long to wait until the message is done, dead or gone; if that time ends
        first, the outcome says where the message is. An unknown id is answered at once. An id that
        is remembered of an earlier message is ``done`` when a newer one was cancelled. Raises
        StoreDamaged when the result cannot be read.
        """
        topic, own = values.topic(topic), values.any_id(id)
        self.check_open()
        wait_ms = values.delay_ms(wait, "wait") if wait else 0
        return await self._watchers.result(topic, own, wait_ms)

    async def _levels_ms(self, topic: str) -> Sequence[int]:
        return (await self._store.settings(topic)).delay_levels_ms

    # --- arguments -----------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise StoreClosed unless the queue is open, and RuntimeError in another event loop."""
        if not self._is_open or self._home is None:
            raise StoreClosed("the queue is not open")
        self._home.check()

    def _receipt(self, what: Taken) -> bytes:
        data = receipt_bytes(what)
        number = self._number
        if number and int.from_bytes(data[:4], "big") != number:
            raise ForeignReceipt("receipt: was made by another store")
        return data

    def _receipts(self, what: ManyTaken) -> U64:
        self.check_open()
        receipts = given_receipts(what)
        number = self._number
        if number and np.any(receipts[:, 0] >> np.uint64(32) != number):
            raise ForeignReceipt("receipts: some were made by another store")
        return receipts

    @property
    def _number(self) -> int:
        """The number of the store, 0 for a remote store, which may have been replaced."""
        return 0 if isinstance(self._store, RemoteStore) else self._store.number

    def _ids(self, ids: Sequence[str]) -> Sequence[bytes]:
        self.check_open()
        return columns.any_ids(ids)

    def _dues(self, delay: object, due: object, size: int) -> I64:
        """Return when messages are to fall due; with a delay of 0 they are due in the answer."""
        clock = self._store.clock
        now_ms = clock.now_ms()
        due_ms = columns.dues(delay, due, None, size, now_ms)
        return due_ms if delay is None else np.where(due_ms > now_ms, due_ms, clock.least_ms())

    async def _kick_first(self, topic: str, limit: int, due_ms: int) -> Results:
        """Kick the first dead messages, page by page as an answer holds a limited size."""
        self.check_open()
        codes = [np.empty(0, dtype=np.uint8)]
        cursor: Cursor | None = None
        while limit:
            page = await self._store.scan(topic, State.DEAD, cursor, limit)
            if many := [id_.encode() for id_ in page.messages.ids]:
                # A page of an older server has no versions.
                seen = page.versions if len(page.versions) else None
                dues_ms = np.full(len(many), due_ms, np.int64)
                codes.append(await self._store.kick(topic, many, dues_ms, seen))
            limit, cursor = limit - len(many), page.cursor
            if cursor is None:
                break
        return Results(np.concatenate(codes))

    # --- gathered batches ---------------------------------------------------------------------

    # ``calls`` are the call numbers of their messages, for a store that keeps them.

    async def _ack(self, key: None, items: Sequence[bytes], **calls: Any) -> list[Result]:
        return await told_each(self._store.ack(joined_receipts(items), **calls))

    async def _done(
        self, key: None, items: Sequence[tuple[bytes, bytes]], **calls: Any
    ) -> list[Result]:
        receipts, results = zip(*items, strict=True)
        return await told_each(self._store.ack(joined_receipts(receipts), results, **calls))

    async def _ack_bulk(self, key: None, many: Sequence[U64], **calls: Any) -> list[Results]:
        return await told_parts(self._store.ack(np.concatenate(many), **calls), many)

    async def _cancel_bulk(
        self, topic: str, many: Sequence[Sequence[bytes]], **calls: Any
    ) -> list[Results]:
        ids = list(chain.from_iterable(many))
        return await told_parts(self._store.cancel(topic, ids, **calls), many)

    async def _move_bulk(
        self, topic: str, many: Sequence[tuple[Sequence[bytes], I64]], **calls: Any
    ) -> list[Results]:
        ids = list(chain.from_iterable(ids for ids, _ in many))
        due_ms = np.concatenate([due_ms for _, due_ms in many])
        asked = self._store.reschedule(topic, ids, due_ms, **calls)
        return await told_parts(asked, [ids for ids, _ in many])

    async def _release(
        self, how: _Release, items: Sequence[_Released], **calls: Any
    ) -> list[Result]:
        receipts, delays_ms, errors = zip(*items, strict=True)
        many = joined_receipts(receipts), np.array(delays_ms, dtype=np.int64)
        # As a rule it is the same for all: nothing.
        error = errors[0] if len(set(errors)) == 1 else errors
        return await told_each(self._release_all(*many, error, how, **calls))

    def _release_all(
        self, receipts: U64, delays_ms: int | I64, errors: Errors, how: _Release, **calls: Any
    ) -> Awaitable[U8]:
        retry, counted, priority = how
        delay_ms = None if retry else delays_ms
        return self._store.release(
            receipts, delay_ms, errors, counted=counted, priority=priority, **calls
        )

    async def _touch(self, lease_ms: int, items: Sequence[bytes]) -> list[Result]:
        return await told_each(self._store.touch(joined_receipts(items), lease_ms))

    async def _bury(self, how: _Bury, items: Sequence[bytes], **calls: Any) -> list[Result]:
        return await told_each(self._bury_all(joined_receipts(items), how, **calls))

    def _bury_all(self, receipts: U64, how: _Bury, **calls: Any) -> Awaitable[U8]:
        reason, priority = how
        return self._store.bury(receipts, reason, priority=priority, **calls)

    async def _cancel(self, topic: str, items: Sequence[bytes], **calls: Any) -> list[Result]:
        return await told_each(self._store.cancel(topic, items, **calls))

    async def _move(
        self, topic: str, items: Sequence[tuple[bytes, int]], **calls: Any
    ) -> list[Result]:
        return await told_each(self._store.reschedule(topic, *_ids_and_dues(items), **calls))

    async def _kick(
        self, topic: str, items: Sequence[tuple[bytes, int]], **calls: Any
    ) -> list[Result]:
        return await told_each(self._store.kick(topic, *_ids_and_dues(items), **calls))

    async def _get(
        self, topic: str, items: Sequence[bytes]
    ) -> Sequence[Message | StoreDamaged | None]:
        return await self._store.get(topic, items)


def _check_retry(delay_ms: int | I64, retry: bool) -> None:
    if retry and np.any(delay_ms):
        raise InvalidTime("delay: got delay and retry together, expected one of them")


def _ids_and_dues(items: Sequence[tuple[bytes, int]]) -> tuple[list[bytes], I64]:
    return [id_ for id_, _ in items], np.array([due for _, due in items], dtype=np.int64)


def _nothing() -> Results:
    return Results(np.empty(0, dtype=np.uint8))
