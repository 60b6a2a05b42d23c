"""The store that a server keeps: every verb of the contract, over HTTP."""

import asyncio
import contextlib
import os
import random
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.blobs import LazyIds
from dwell.batch.calls import MOST_FIRST
from dwell.batch.changed import Changed
from dwell.batch.events import EventPage
from dwell.batch.outcome import GONE, Outcome
from dwell.batch.page import Cursor, Page
from dwell.batch.puts import PutAnswer, Puts
from dwell.batch.selection import ALL, Selection
from dwell.batch.stats import Stale, TopicStats
from dwell.batch.sweep import Sweep, Wanted
from dwell.client.answers import (
    STRANGE,
    Bulk,
    Cleared,
    Ended,
    Named,
    OutcomeAnswer,
    Sizes,
    StaleAnswer,
    StoreAnswer,
    Taken,
    Words,
    decoded,
    following,
    page_of,
    reading,
    results_of,
)
from dwell.client.connection import Connection, as_segment, certificate
from dwell.client.counting import Counting
from dwell.clock.clock import elapsed_s
from dwell.clock.servertime import ServerClock
from dwell.errors import DwellError, StoreDamaged, StoreError
from dwell.message import (
    I64,
    MAX_BATCH_MESSAGES,
    U8,
    U64,
    Message,
    Result,
    State,
    TopicSettings,
    receipts_to_text,
)
from dwell.store.base import AckResults, Delays, Errors
from dwell.tasks import end, finished, whole
from dwell.wire import columns
from dwell.wire.callnumber import MOST_REPEATS
from dwell.wire.columns import (
    BatchColumns,
    EventColumns,
    PutAnswerColumns,
    ReceiptColumns,
    ResultColumns,
    SweepColumns,
    answer_of_columns,
    batch_of_columns,
    columns_of_puts,
    columns_of_releases,
    events_of_columns,
    packed_receipts,
    sweep_of_columns,
)

_MSGPACK = "application/msgpack"
_TAKE = "/v1/take"
_encode = msgspec.msgpack.Encoder().encode
_CODES = {str(result): int(result) for result in Result}

#: The environment variable of the token.
TOKEN_NAME = "DWELL_TOKEN"
#: How long to wait for the answer of a cancelled take, in order to release its messages.
_GRACE_S = 5.0

#: How long a server may take beyond the usual to read all of its store.
_CHECK_S = 600.0

#: The pause before ending a wait again that had not started.
_AGAIN_S = 0.02
#: How long one request waits for a result at most.
_MOST_WAIT_MS = 60_000


class HttpStore(Counting):
    """The store of a server, at ``http://localhost:8410``, ``https://`` or ``http+unix:///a/path``.

    ``token`` is sent with each request; the default is the environment variable ``DWELL_TOKEN``.
    ``timeout`` is how long an answer may take in addition to any requested wait. ``connections`` is
    how many requests run at once, not counting takes that wait. ``ca`` is a file of certificates to
    trust, ``cert`` the client's own certificate, for a server that requires it, with its key unless
    that is in ``key``. A request whose answer is lost is repeated if it is safe to repeat or the
    server recognizes repeats, ``retries`` times at most (9 take 10 s). A request to a server that
    is away or busy is repeated, too.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 30.0,
        connections: int = 64,
        retries: int = 9,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
    ) -> None:
        self.clock: ServerClock = ServerClock()
        self._knows_repeats = self._keeps_results = False
        # To ask the system for each number would cost more than the rest of the header.
        self._draw = random.Random(secrets.randbits(256))
        self._connection = Connection(
            url,
            self.clock,
            token=(os.environ.get(TOKEN_NAME) or None) if token is None else token,
            timeout_s=timeout,
            connections=connections,
            retries=retries,
            ca=ca,
            own=certificate(cert, key),
        )

    async def open(self) -> None:
        """Ask the server which store it has; raises ServerUnreachable or AccessDenied."""
        await self._connection.open()
        try:
            known = await self._get("/v1/store", StoreAnswer)
            self.number, self._knows_repeats = known.number, known.keeps_calls
            self._keeps_results, self.parts_ids = known.keeps_results, known.parts_ids
        except BaseException:
            await self._connection.close()
            raise

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    # --- put and take -------------------------------------------------------------------------

    async def put(self, puts: Puts, on_conflict: str) -> PutAnswer:
        """Add messages."""
        own = None if puts.ids is None else LazyIds.of(puts.ids)
        answer = await self._columns(
            f"{_topic(puts.topic)}/messages?on_conflict={on_conflict}",
            columns_of_puts(puts),
            PutAnswerColumns,
            is_safe=own is not None and on_conflict == "keep",
            number=self._call_number(),
        )
        with reading():
            return answer_of_columns(answer, own)

    async def take_waiting(
        self, topics: Sequence[str], limit: int, lease_ms: int, owner: str, wait_ms: int
    ) -> Batch:
        """Lease messages, waiting at the server for the first one."""
        ask = {
            "topics": list(topics),
            "limit": limit,
            "lease_ms": lease_ms,
            "owner": owner,
            "wait_ms": wait_ms,
            "poll": secrets.token_hex(8) if wait_ms else "",
        }
        return (await self._take(_TAKE, ask, wait_ms)).messages

    async def _take(self, path: str, ask: dict[str, Any], wait_ms: int = 0) -> Page:
        """Take; messages that a cancelled call still takes are released."""
        task = whole(self._ask_to_take(path, ask, wait_ms))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await finished(whole(self._give_back(task, ask.get("poll", ""))))
            raise

    async def _ask_to_take(self, path: str, ask: dict[str, Any], wait_ms: int) -> Page:
        data = await self._connection.call(
            "POST",
            path,
            _encode(ask),
            content=_MSGPACK,
            accept=columns.MEDIA_TYPE,
            wait_s=wait_ms / 1000,
            is_take=path == _TAKE,
            number=self._call_number() if path == _TAKE and "ids" not in ask else 0,
        )
        page = page_of(decoded(data, BatchColumns))
        if page.messages.receipts is None and len(page.messages):
            raise StoreError(f"{STRANGE}: messages that were taken, without receipts")
        self._learn(page.messages)
        return page

    def _learn(self, batch: Batch) -> None:
        """Note which store it is that the server has by now: it may have been restored."""
        if batch.receipts is not None and len(batch):
            self.number = int(batch.receipts[0, 0]) >> 32

    async def _give_back(self, task: "asyncio.Task[Page]", poll: str) -> None:
        """Release the messages of a take that was cancelled; ends its wait for that."""
        ending = asyncio.ensure_future(self._end(poll)) if poll else None
        try:
            await asyncio.wait({task}, timeout=_GRACE_S)
        finally:
            end(task)
            if ending is not None:
                ending.cancel()
        with contextlib.suppress(DwellError, asyncio.CancelledError):
            page = task.result() if task.done() else await task
            await self._let_go([page.messages])

    async def _let_go(self, taken: Sequence[Batch]) -> None:
        for batch in taken:
            if batch.receipts is not None and len(batch):
                await self.release(batch.receipts, 0, None, counted=False)

    async def _end(self, poll: str) -> None:
        """End the wait of a take, even if its request has not arrived yet."""
        with contextlib.suppress(DwellError):
            while not (await self._post(f"/v1/polls/{poll}/end", {}, Ended, is_safe=True)).ended:
                await asyncio.sleep(_AGAIN_S)

    async def take_ids(
        self,
        topic: str,
        ids: Sequence[bytes],
        lease_ms: int,
        owner: str,
        versions: U64 | None = None,
    ) -> Batch:
        """Lease the given messages that are ready."""
        ask = {"topics": [topic], "ids": _texts(ids), "lease_ms": lease_ms, "owner": owner}
        if versions is not None:
            ask["versions"] = versions.tolist()
        return (await self._take(_TAKE, ask)).messages

    async def take_where(
        self, topic: str, which: Selection, limit: int, lease_ms: int, owner: str
    ) -> Batch:
        """Lease ready messages that match, which the server looks for."""
        ask = {**_words_of(which), "lease_ms": lease_ms, "owner": owner}
        taken: list[Batch] = []
        try:
            cursor: Cursor | None = None
            while missing := limit - sum(map(len, taken)):
                part = ask | {"limit": missing, "cursor": str(cursor) if cursor else None}
                page = await self._take(f"{_topic(topic)}/take-where", part)
                taken.append(page.messages)
                cursor = page.cursor
                if cursor is None:
                    break
        except BaseException:
            with contextlib.suppress(DwellError):
                await finished(whole(self._let_go(taken)))
            raise
        return Batch.joined(taken)

    async def peek(self, topic: str, limit: int) -> Batch:
        """Return the ready messages that a take would give first."""
        return (await self._look(f"{_topic(topic)}/peek?limit={limit}")).messages

    async def held(self, owner: str) -> Batch:
        """Return the messages that an owner holds again."""
        page = await self.held_page(owner, None, MAX_BATCH_MESSAGES)
        held = [page.messages]
        while page.cursor is not None:
            page = await self.held_page(owner, page.cursor, MAX_BATCH_MESSAGES)
            held.append(page.messages)
        found = Batch.joined(held)
        order = np.lexsort((found.numbers, found.due_ms))
        # One page is in order, and cutting out each message takes longer than all the rest.
        is_sorted = bool((order[1:] > order[:-1]).all())
        return found if is_sorted else found.picked(order.tolist())

    async def held_page(self, owner: str, cursor: Cursor | None, limit: int) -> Page:
        """Return some of the messages that an owner holds, as many as one answer has."""
        path = f"/v1/held?owner={quote(owner, safe='')}"
        page = await self._look(path if cursor is None else f"{path}&cursor={cursor}")
        self._learn(page.messages)
        return page

    # --- by receipt ---------------------------------------------------------------------------

    async def ack(self, receipts: U64, results: AckResults = None, then: Puts | None = None) -> U8:
        """Forget messages that are done."""
        if results is None and then is None:
            return await self._by_receipt("ack", ReceiptColumns(packed_receipts(receipts)))
        if not self._keeps_results:
            raise StoreError("results: the server is of a version that keeps none; upgrade it")
        how = ReceiptColumns(packed_receipts(receipts))
        how.results = None if results is None else list(results)
        if then is not None:
            how.then, how.then_topic = columns_of_puts(then), then.topic
        return await self._by_receipt("ack", how)

    async def release(
        self,
        receipts: U64,
        delay_ms: Delays,
        error: Errors,
        *,
        counted: bool,
        priority: int | None = None,
    ) -> U8:
        """Give messages back."""
        parts = columns_of_releases(receipts, delay_ms, error, counted, priority)
        return np.concatenate([await self._by_receipt("release", part) for part in parts])

    async def touch(self, receipts: U64, lease_ms: int) -> U8:
        """Extend leases; safe to repeat."""
        how = ReceiptColumns(packed_receipts(receipts), lease_ms=lease_ms)
        return await self._by_receipt("touch", how, is_safe=True)

    async def bury(self, receipts: U64, reason: str | None, *, priority: int | None = None) -> U8:
        """Set messages aside."""
        how = ReceiptColumns(packed_receipts(receipts), error=reason, priority=priority)
        return await self._by_receipt("bury", how)

    async def _by_receipt(self, verb: str, how: ReceiptColumns, *, is_safe: bool = False) -> U8:
        number = 0 if is_safe else self._call_number()
        path = f"/v1/{verb}"
        answer = await self._columns(path, how, ResultColumns, is_safe=is_safe, number=number)
        return results_of(answer.results, len(how.receipts) // 16)

    async def taken_from(self, receipts: U64) -> list[str | None]:
        """Return the topic of the message of each receipt, or None for a stale receipt."""
        ask = {"receipts": receipts_to_text(receipts)}
        found: Taken = await self._post("/v1/taken", ask, Taken, is_safe=True)
        if len(found.each) != len(receipts):
            raise StoreError(f"{STRANGE}: {len(found.each)} topics of {len(receipts)} receipts")
        return found.each

    # --- by id --------------------------------------------------------------------------------

    async def kick(
        self, topic: str, ids: Sequence[bytes], due_ms: I64, versions: U64 | None = None
    ) -> U8:
        """Bring dead messages back."""
        ask = {"ids": _texts(ids), "due_ms": due_ms.tolist()}
        return await self._by_id(topic, "kick", ask, versions)

    async def cancel(self, topic: str, ids: Sequence[bytes], versions: U64 | None = None) -> U8:
        """Delete messages that nobody has taken."""
        return await self._by_id(topic, "cancel", {"ids": _texts(ids)}, versions)

    async def clear(self, topic: str) -> int:
        """Cancel every message of a topic that nobody has taken, a part a request."""
        count, is_complete = 0, False
        while not is_complete:
            done: Cleared = await self._post(f"{_topic(topic)}/clear", {}, Cleared, is_safe=False)
            count, is_complete = count + done.cancelled, done.is_complete
        return count

    async def reschedule(
        self, topic: str, ids: Sequence[bytes], due_ms: I64, versions: U64 | None = None
    ) -> U8:
        """Change when messages fall due."""
        ask = {"ids": _texts(ids), "due_ms": due_ms.tolist()}
        return await self._by_id(topic, "reschedule", ask, versions)

    async def _by_id(self, topic: str, verb: str, ask: dict[str, Any], versions: U64 | None) -> U8:
        if versions is not None:
            ask["versions"] = versions.tolist()
        path, number = f"{_topic(topic)}/{verb}", self._call_number()
        answer = await self._post(path, ask, Words, is_safe=False, number=number)
        with reading():
            codes = bytes(_CODES[word] for word in answer.results)
        return results_of(codes, len(ask["ids"]))

    async def change(
        self, topic: str, verb: str, which: Selection, limit: int, words: Mapping[str, Any]
    ) -> Changed:
        """Apply a verb to messages that match, in as many requests as the server needs.

        A reschedule is one request, as further requests would find the moved messages again.
        """
        wanted = _words_of(which)
        if which.states is not None:
            wanted["states"] = [state.name.lower() for state in which.states]
        ask = {**words, "filter": wanted, "limit": limit}
        done = Changed(0, Counter(), is_complete=False)
        while True:
            found: Bulk = await self._post(f"{_topic(topic)}/{verb}", ask, Bulk, is_safe=False)
            done.matched += found.matched
            with reading():
                done.results.update({Result[w.upper()]: n for w, n in found.results.items()})
            ask |= {"limit": limit - done.matched, "cursor": found.cursor}
            if "pace" in words:
                ask["paced"] = done.matched
            goes_on = verb != "reschedule" or words["dry_run"]
            if found.cursor is None or ask["limit"] <= 0 or not goes_on:
                done.is_complete = found.cursor is None
                return done

    async def get(self, topic: str, ids: Sequence[bytes]) -> list[Message | StoreDamaged | None]:
        """Return messages by id, as many a request as an answer holds."""
        texts, found = _texts(ids), dict[str, Message | StoreDamaged]()
        start: int | None = 0
        while start is not None:
            batch = await self._columns_of(f"{_topic(topic)}/get", {"ids": texts[start:]})
            with reading():
                found |= {message.id: message for message in batch_of_columns(batch)}
                for id_ in [texts[start + at] for at in batch.damaged]:
                    words = f"topic {topic!r}: message {id_!r} cannot be read"
                    found[id_] = StoreDamaged(f"{words}: the server's disk has damaged it")
            start = following(start, batch.next, len(texts))
        return [found.get(id_) for id_ in texts]

    async def results(self, topic: str, ids: Sequence[bytes]) -> Sequence[Outcome | DwellError]:
        """Return what came of messages, with a request for each, whose error is its own."""
        return await asyncio.gather(*(self._result_alone(topic, id_) for id_ in ids))

    async def _result_alone(self, topic: str, id_: bytes) -> Outcome | DwellError:
        try:
            return await self._result(topic, id_, 0)
        except DwellError as error:
            return error

    async def result_waiting(self, topic: str, id_: bytes, wait_ms: int) -> Outcome:
        """Return what came of a message, waiting at the server, part after part."""
        until_s, was_there = elapsed_s() + wait_ms / 1000, False
        while True:
            left_ms = min(max(int((until_s - elapsed_s()) * 1000), 0), _MOST_WAIT_MS)
            outcome = await self._result(topic, id_, left_ms)
            if outcome.state == "unknown":
                return GONE if was_there else outcome
            if outcome.is_over or not left_ms:
                return outcome
            was_there = True
            # A server that stops ends the wait at once.
            await asyncio.sleep(_AGAIN_S)

    async def _result(self, topic: str, id_: bytes, wait_ms: int) -> Outcome:
        path = f"{_topic(topic)}/results/{as_segment(id_.decode())}"
        data = await self._connection.call(
            "GET",
            f"{path}?wait_ms={wait_ms}" if wait_ms else path,
            accept=_MSGPACK,
            wait_s=wait_ms / 1000,
            is_safe=True,
        )
        found: OutcomeAnswer = decoded(data, OutcomeAnswer)
        return Outcome(found.state, found.result, found.error)

    async def named(self, numbers: U64) -> list[tuple[str, str] | None]:
        """Return topic and id of the message of each number."""
        ask = {"numbers": numbers.tolist()}
        found: Named = await self._post("/v1/named", ask, Named, is_safe=True)
        return found.names

    # --- looking ------------------------------------------------------------------------------

    async def scan(self, topic: str, state: State, cursor: Cursor | None, limit: int) -> Page:
        """Return messages of one state, by due."""
        if state is State.GONE:
            return Page(Batch.empty(receipts=False), None)
        path = f"{_topic(topic)}/messages?state={state.name.lower()}&limit={limit}"
        if cursor is not None:
            path += f"&cursor={cursor}"
        return await self._look(path)

    async def find(
        self, topic: str, which: Selection, state: State, cursor: Cursor | None, limit: int
    ) -> Page:
        """Return messages of one state that match, which the server looks for."""
        ask = {**_words_of(which), "state": state.name.lower(), "limit": limit}
        ask["cursor"] = str(cursor) if cursor else None
        return page_of(await self._columns_of(f"{_topic(topic)}/find", ask))

    async def _look(self, path: str) -> Page:
        return page_of(await self._get(path, BatchColumns, accept=columns.MEDIA_TYPE))

    async def sweep(self, wanted: Wanted, start: int, stop: int, limit: int) -> Sweep:
        """Return messages by place."""
        ask = {"start": start, "stop": stop, "limit": limit, **_words(wanted)}
        found = await self._post(
            "/v1/sweep", ask, SweepColumns, is_safe=True, accept=columns.MEDIA_TYPE
        )
        with reading():
            return sweep_of_columns(found)

    async def events(self, position: int, limit: int) -> EventPage:
        """Return events from a position on."""
        path = f"/v1/events?position={position}&limit={limit}"
        found = await self._get(path, EventColumns, accept=columns.MEDIA_TYPE)
        with reading():
            return events_of_columns(found)

    async def sizes(self, topic: str) -> list[TopicStats]:
        """Return the counts of one topic, for each shard of the server's store."""
        found: Sizes = await self._get(f"{_topic(topic)}/sizes", Sizes)
        return found.shards

    async def find_stale(self, *, repair: bool = False, limit: int = 1000) -> list[Stale]:
        """Make the server compare the parts of its store."""
        ask = {"repair": repair, "limit": limit}
        data = await self._connection.call(
            "POST",
            "/v1/find-stale",
            _encode(ask),
            content=_MSGPACK,
            accept=_MSGPACK,
            wait_s=_CHECK_S,
            is_safe=not repair,
        )
        found: StaleAnswer = decoded(data, StaleAnswer)
        return found.stale

    async def configure(self, topic: str, changes: Mapping[str, Any]) -> TopicSettings:
        """Change some of a topic's settings; a repeat could undo what another has set since."""
        data = await self._connection.call(
            "PATCH",
            f"{_topic(topic)}/settings",
            _encode(changes),
            content=_MSGPACK,
            accept=_MSGPACK,
        )
        found: TopicSettings = decoded(data, TopicSettings)
        return found

    async def settings(self, topic: str) -> TopicSettings:
        """Return the settings of a topic."""
        found: TopicSettings = await self._get(f"{_topic(topic)}/settings", TopicSettings)
        return found

    async def tick(self, now_ms: int) -> int | None:
        """Do nothing: the server keeps the time."""
        return None

    async def backup(self, folder: str | Path) -> None:
        """Write a copy of the store into a new folder, which can be opened as a store."""
        # Only a backup imports the embedded store, which takes a while.
        from dwell.store.embedded.backup.tar import unpack_tar

        await unpack_tar(self._connection.chunks("/v1/backup"), Path(folder))

    # --- inside -------------------------------------------------------------------------------

    async def _get(self, path: str, kind: type[Any], *, accept: str = _MSGPACK) -> Any:
        data = await self._connection.call("GET", path, accept=accept, is_safe=True)
        return decoded(data, kind)

    async def _post(
        self,
        path: str,
        ask: object,
        kind: type[Any],
        *,
        is_safe: bool,
        accept: str = _MSGPACK,
        number: int = 0,
    ) -> Any:
        data = await self._connection.call(
            "POST",
            path,
            _encode(ask),
            content=_MSGPACK,
            accept=accept,
            is_safe=is_safe,
            number=number,
        )
        return decoded(data, kind)

    async def _columns_of(self, path: str, ask: object) -> BatchColumns:
        media = columns.MEDIA_TYPE
        found: BatchColumns = await self._post(path, ask, BatchColumns, is_safe=True, accept=media)
        return found

    async def _columns(
        self, path: str, ask: object, kind: type[Any], *, is_safe: bool, number: int = 0
    ) -> Any:
        media = columns.MEDIA_TYPE
        data = await self._connection.call(
            "POST", path, _encode(ask), content=media, accept=media, is_safe=is_safe, number=number
        )
        return decoded(data, kind)

    def _call_number(self) -> int:
        """Return a number for a new request, 0 if the server does not recognize repeats."""
        return self._draw.randrange(1, MOST_FIRST - MOST_REPEATS) if self._knows_repeats else 0


def _words_of(which: Selection) -> dict[str, Any]:
    """Return the conditions of a selection as request fields, without the states."""
    said = msgspec.structs.asdict(which)
    return {n: v for n, v in said.items() if n != "states" and v != getattr(ALL, n)}


def _words(wanted: Wanted) -> dict[str, Any]:
    return msgspec.structs.asdict(wanted) | {
        "states": [state.name.lower() for state in wanted.states]
    }


def _topic(topic: str) -> str:
    return f"/v1/topics/{quote(topic, safe='')}"


def _texts(ids: Sequence[bytes]) -> list[str]:
    return [id_.decode() for id_ in ids]
