"""Puts: decides which messages of a batch are new, kept or replaced, and makes their records."""

from collections.abc import Callable, Sequence

import numpy as np

from dwell.batch.blobs import LazyIds, sizes_of
from dwell.batch.calls import plain
from dwell.batch.puts import PutAnswer, Puts
from dwell.errors import IdExists, TopicFull
from dwell.message import I64, U8, U32, U64, Result, Rows, State
from dwell.store.embedded.blobs import interleaved
from dwell.store.embedded.distinct import distinct
from dwell.store.embedded.donecalls import Block
from dwell.store.embedded.finder import Finder, first_places, waves_of
from dwell.store.embedded.journal.record import Meta, Record, RecordKind
from dwell.store.embedded.journal.room import Use
from dwell.store.embedded.machine import Machine
from dwell.store.embedded.recent import Recent
from dwell.store.embedded.table import DONE
from dwell.store.embedded.versions import versions_of
from dwell.store.followups import its_own_id

#: More than a record needs in addition to its columns and blobs: header, topic and padding; it and
#: the columns leave room for a record that ends the results of its ids.
_RECORD_BYTES = 1024
_COLUMN_BYTES = 64


class Putter:
    """Compares puts with the state, and writes the resulting records."""

    def __init__(
        self,
        machine: Machine,
        finder: Finder,
        recent: Recent,
        reserve: Callable[[int, Use], None],
        write: Callable[[Record], None],
    ) -> None:
        self._machine = machine
        self._table = machine.table
        self._finder = finder
        self._recent = recent
        self._reserve = reserve
        self._write = write

    def put(self, puts: Puts, on_conflict: str, now_ms: int) -> PutAnswer:
        """Put messages; puts nothing if it raises IdExists, TopicFull, DiskFull or StoreFailed."""
        if puts.calls is not None:
            done = self._machine.calls.find(puts.calls, now_ms)
            if done is not None:
                return self._put_rest(puts, on_conflict, done, now_ms)
        return self._put(puts, on_conflict, now_ms)

    def check_follow_up(self, puts: Puts, acked: Rows, now_ms: int) -> None:
        """Refuse a message to be put with ``keep`` in the same step as the ack of another.

        Raises TopicFull if it has no room, or would be dropped, and InvalidInput if it has the id
        of the acked one.
        """
        wanted = len(puts)
        if puts.ids is not None:
            hashes = self._finder.hashes(puts.topic, puts.ids)
            rows, found = self._machine.known.find(*hashes)
            if found[0] and rows[0] == acked[0]:
                raise its_own_id(puts)
            wanted = self._count_new(puts.topic, hashes, "keep", now_ms)
        if self._fitting(puts.topic, wanted) < wanted:
            raise self._full(puts.topic, wanted)

    def _put(self, puts: Puts, on_conflict: str, now_ms: int) -> PutAnswer:
        if puts.ids is None or not len(puts):
            return self._put_new(puts, now_ms)
        return self._put_own(puts, on_conflict, now_ms)

    def _put_rest(self, puts: Puts, on_conflict: str, done: Block, now_ms: int) -> PutAnswer:
        """Put the messages that an earlier send of the request did not put."""
        rows, seqs, results = done.rows.astype(np.intp), done.seqs, done.results
        if puts.ids is not None and on_conflict == "keep":
            # A message kept because its id occurs earlier in the request has no record of its own.
            first = first_places(*self._finder.hashes(puts.topic, puts.ids))
            results[(results == 0) & (results[first] > 0)] = Result.KEPT
        left = np.flatnonzero(results == 0)
        if len(left):
            answer = self._put(puts.picked(left), on_conflict, now_ms)
            results[left], seqs[left] = answer.results, answer.numbers
            made = answer.ids.made() if isinstance(answer.ids, LazyIds) else None
            if made is not None:
                rows[left] = made[0]
        ids = LazyIds(rows, seqs, None) if puts.ids is None else LazyIds.of(puts.ids)
        return PutAnswer(ids, results, seqs)

    def _put_new(self, puts: Puts, now_ms: int) -> PutAnswer:
        """Put messages whose ids the queue makes."""
        count = len(puts)
        results: U8 = np.full(count, Result.CREATED, dtype=np.uint8)
        fitting = self._fitting(puts.topic, count)
        if fitting < count:
            results[fitting:] = Result.DROPPED
            puts = puts.picked(np.arange(fitting))
        rows, seqs = self._create(puts, None, now_ms)
        if fitting < count:
            rows = np.concatenate([rows, np.zeros(count - fitting, np.intp)])
            seqs = np.concatenate([seqs, np.zeros(count - fitting, np.uint64)])
        return PutAnswer(LazyIds(rows, seqs, None), results, seqs)

    def _put_own(self, puts: Puts, on_conflict: str, now_ms: int) -> PutAnswer:
        """Put messages with the caller's ids; repeated ids go in waves of their own."""
        assert puts.ids is not None
        ids = puts.ids
        hashes = self._finder.hashes(puts.topic, ids)
        if on_conflict == "keep":
            first = first_places(*hashes)
            if (first < np.arange(len(first))).any():
                return self._put_firsts(puts, first, now_ms)
            waves = [first]
        else:
            waves = waves_of(hashes[0])
        if on_conflict == "error":
            self._refuse_known(puts, hashes, waves)
        results: U8 = np.zeros(len(ids), dtype=np.uint8)
        numbers: U64 = np.zeros(len(ids), dtype=np.uint64)
        fitting = self._count_fitting(puts, hashes, on_conflict, now_ms)
        # Several records may result; reserving room for all of them makes it all or nothing.
        if len(waves) > 1 or on_conflict == "replace":
            self._reserve(most_bytes(puts, 2 * len(waves)), Use.GROW)
        elif self._has_results(puts.topic):
            self._reserve(most_bytes(puts, 1), Use.GROW)
        for wave in waves:
            part = puts if len(waves) == 1 else puts.picked(wave)
            keys = (hashes[0][wave], hashes[1][wave])
            results[wave], numbers[wave] = self._put_distinct(
                part, keys, on_conflict, fitting, now_ms
            )
            fitting -= int((results[wave] == Result.CREATED).sum())
        return PutAnswer(LazyIds.of(ids), results, numbers)

    def _put_firsts(self, puts: Puts, first: I64, now_ms: int) -> PutAnswer:
        """Put the first message of each id; repetitions in the batch see its result."""
        assert puts.ids is not None
        once = np.flatnonzero(first == np.arange(len(first)))
        answer = self._put_own(puts.picked(once), "keep", now_ms)
        results: U8 = np.zeros(len(puts), dtype=np.uint8)
        numbers: U64 = np.zeros(len(puts), dtype=np.uint64)
        results[once], numbers[once] = answer.results, answer.numbers
        again = np.flatnonzero(first < np.arange(len(first)))
        is_dropped = results[first[again]] == Result.DROPPED
        results[again] = np.where(is_dropped, Result.DROPPED, Result.KEPT)
        return PutAnswer(LazyIds.of(puts.ids), results, numbers)

    def _put_distinct(
        self, puts: Puts, hashes: tuple[U64, U32], on_conflict: str, fitting: int, now_ms: int
    ) -> tuple[U8, U64]:
        """Put messages with distinct callers' ids; return the results and numbers."""
        results, rows = self._resolved(puts, hashes, on_conflict, now_ms)
        numbers: U64 = np.zeros(len(puts), dtype=np.uint64)
        new = np.flatnonzero(results == Result.CREATED)
        results[new[fitting:]] = Result.DROPPED
        new = new[:fitting]
        if len(new):
            self._end_results(puts.topic, (hashes[0][new], hashes[1][new]), now_ms)
        if len(new) == len(puts):
            _, numbers = self._create(puts, hashes, now_ms)
        elif len(new):
            keys = (hashes[0][new], hashes[1][new])
            _, numbers[new] = self._create(puts.picked(new), keys, now_ms)
        old = np.flatnonzero(results == Result.REPLACED)
        if len(old):
            self._write_bodies(RecordKind.REPLACE, puts.picked(old), rows[old], now_ms, {})
        return results, numbers

    def _resolved(
        self, puts: Puts, hashes: tuple[U64, U32], on_conflict: str, now_ms: int
    ) -> tuple[U8, Rows]:
        """Return the result for each message, and the rows of replaced messages."""
        known = self._machine.known
        results: U8 = np.full(len(hashes[0]), Result.CREATED, dtype=np.uint8)
        if on_conflict == "keep":
            results[self._are_remembered(puts.topic, hashes, now_ms)] = Result.KEPT
            return results, np.zeros(0, np.intp)
        rows, found = known.find(*hashes)
        found &= self._table.state[rows] != DONE
        results[found] = Result.REPLACED
        if puts.versions is not None:
            is_other = ~found | (versions_of(self._table, rows) != puts.versions)
            results[(puts.versions > 0) & is_other] = Result.UNKNOWN
        results[found & (self._table.state[rows] == State.LEASED)] = Result.LEASED
        return results, rows

    def _create(self, puts: Puts, hashes: tuple[U64, U32] | None, now_ms: int) -> tuple[Rows, U64]:
        count = len(puts)
        if not count:
            return np.zeros(0, np.intp), np.zeros(0, np.uint64)
        first = self._machine.next_seq
        rows = self._table.next_free(count)
        kind = RecordKind.PUT if hashes is None else RecordKind.PUT_OWN
        own: dict[str, np.ndarray] = (
            {} if hashes is None else {"id_hash": hashes[0], "id_check": hashes[1]}
        )
        self._write_bodies(kind, puts, rows, now_ms, own)
        return rows, np.arange(first, first + count, dtype=np.uint64)

    def _write_bodies(
        self, kind: RecordKind, puts: Puts, rows: Rows, now_ms: int, own: dict[str, np.ndarray]
    ) -> None:
        count = len(puts)
        nothing: I64 = np.zeros(count, dtype=np.int64)
        id_bytes = nothing if puts.ids is None else sizes_of(puts.ids)
        extra_bytes = nothing if puts.extras is None else sizes_of(puts.extras)
        columns = {
            **own,
            "rows": rows,
            "due_ms": puts.due_ms,
            "expires_ms": puts.expires_ms,
            "priority": puts.priority,
            "lease_ms": puts.lease_ms,
            "size_bytes": (id_bytes + extra_bytes + sizes_of(puts.bodies)).astype(np.uint32),
            "id_bytes": id_bytes.astype(np.uint16),
            "extra_bytes": extra_bytes.astype(np.uint16),
            "max_attempts": puts.max_attempts,
        }
        if puts.calls is not None:
            columns["calls"] = plain(puts.calls)
        blobs = interleaved((puts.ids, puts.extras, puts.bodies), count)
        meta = Meta(topic=puts.topic, first_seq=self._machine.next_seq)
        self._write(Record(kind, now_ms, columns, meta, blobs))
        self._recent.add(self._table.position[rows], puts.bodies)

    def _refuse_known(
        self, puts: Puts, hashes: tuple[U64, U32], waves: Sequence[np.ndarray]
    ) -> None:
        assert puts.ids is not None
        found = self._exist(hashes)
        if len(waves) > 1:
            found[waves[1][0]] = True
        if found.any():
            first = puts.ids[int(np.argmax(found))].decode(errors="replace")
            count = int(found.sum())
            raise IdExists(
                f"id: {first!r} exists in topic {puts.topic!r} (and {count - 1} more); put nothing"
            )

    def _count_fitting(
        self, puts: Puts, hashes: tuple[U64, U32], on_conflict: str, now_ms: int
    ) -> int:
        """Return how many messages may be created; raises TopicFull if that is too few."""
        if not self._machine.topics.settings(puts.topic).max_pending:
            return len(puts)
        return self._fitting(puts.topic, self._count_new(puts.topic, hashes, on_conflict, now_ms))

    def _count_new(self, topic: str, hashes: tuple[U64, U32], on_conflict: str, now_ms: int) -> int:
        """Return how many ids of a put have no message and, for ``keep``, are not remembered."""
        is_kept = on_conflict == "keep"
        known = self._are_remembered(topic, hashes, now_ms) if is_kept else self._exist(hashes)
        return len(distinct(hashes[0][~known]))

    def _are_remembered(self, topic: str, hashes: tuple[U64, U32], now_ms: int) -> np.ndarray:
        """Tell for each id whether a message has it, or it is still remembered."""
        known = self._machine.known.exist(*hashes, now_ms)
        if self._has_results(topic):
            rows, found = self._machine.known.find(*hashes)
            is_over = found & (self._table.state[rows] == DONE)
            known &= ~(is_over & (self._table.expires_ms[rows] <= now_ms))
        return known

    def _has_results(self, topic: str) -> bool:
        number = self._machine.topics.find(topic)
        return number is not None and self._table.count(number, DONE) > 0

    def _end_results(self, topic: str, hashes: tuple[U64, U32], now_ms: int) -> None:
        """Forget the results of ids that are about to stand for new messages."""
        if self._has_results(topic):
            rows, found = self._machine.known.find(*hashes)
            rows = rows[found & (self._table.state[rows] == DONE)]
            if len(rows):
                self._write(Record(RecordKind.FORGET, now_ms, {"rows": rows}))

    def _exist(self, hashes: tuple[U64, U32]) -> np.ndarray:
        """Tell for each id whether there is a message with it."""
        rows, found = self._machine.known.find(*hashes)
        found &= self._table.state[rows] != DONE
        return found

    def _fitting(self, topic: str, wanted: int) -> int:
        """Return how many of the wanted messages fit in a topic; raises TopicFull."""
        settings = self._machine.topics.settings(topic)
        number = self._machine.topics.find(topic)
        if not settings.max_pending or number is None:
            return wanted
        room = max(settings.max_pending - self._pending(number), 0)
        if wanted > room and settings.on_full == "refuse":
            raise self._full(topic, wanted)
        return min(wanted, room)

    def _pending(self, topic: int) -> int:
        return self._table.count(topic, State.DELAYED, State.READY)

    def _full(self, topic: str, wanted: int) -> TopicFull:
        pending = self._pending(self._machine.topics.number(topic))
        most = self._machine.topics.settings(topic).max_pending
        return TopicFull(
            f"topic {topic!r}: {pending} pending, max_pending is {most}; refused {wanted} messages"
        )


def most_bytes(puts: Puts, records: int) -> int:
    """Return an upper bound of the size of a put's records."""
    return puts.size_bytes + _COLUMN_BYTES * len(puts) + _RECORD_BYTES * records
