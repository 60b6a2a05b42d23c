"""Terms: the settings of messages, from the message or else from its topic."""

import numpy as np

from dwell.message import I64, Rows
from dwell.retries import retry_delay_ms
from dwell.store.embedded.table import Table
from dwell.store.embedded.topics import Topics


class Terms:
    """The settings of a table's messages, or their topics' where a message has none."""

    def __init__(self, table: Table, topics: Topics) -> None:
        self._table = table
        self._topics = topics

    def max_attempts(self, rows: Rows) -> I64:
        """Return how often each message may be taken."""
        own = self._table.max_attempts[rows].astype(np.int64)
        return np.where(own > 0, own, self._of_topics(self._topics.max_attempts, rows))

    def lease_ms(self, rows: Rows) -> I64:
        """Return how long each message is leased."""
        own = self._table.lease_ms[rows].astype(np.int64)
        return np.where(own > 0, own, self._of_topics(self._topics.lease_ms, rows))

    def remember_ms(self, rows: Rows) -> I64:
        """Return how long the id of each message is remembered."""
        return self._of_topics(self._topics.remember_ms, rows)

    def release_dues(
        self, rows: Rows, now_ms: int, delay_ms: int | I64 | None, *, counted: bool
    ) -> I64:
        """Return when released messages fall due (see the contract)."""
        if delay_ms is None:
            return now_ms + self._retry_delays(rows)
        delays_ms = np.broadcast_to(np.asarray(delay_ms, np.int64), len(rows))
        if counted:
            return now_ms + delays_ms
        return np.where(delays_ms > 0, now_ms + delays_ms, self._table.due_ms[rows])

    def will_expire(self, rows: Rows, due_ms: I64, *, counted: bool) -> np.ndarray:
        """Tell which messages expire before a due and, if counted, have attempts left."""
        expires_ms = self._table.expires_ms[rows]
        will: np.ndarray = (expires_ms > 0) & (expires_ms <= due_ms)
        if counted and will.any():
            will &= self._table.attempt[rows] < self.max_attempts(rows)
        return will

    def _retry_delays(self, rows: Rows) -> I64:
        topics = map(self._topics.settings_of, self._table.topic[rows].tolist())
        attempts = self._table.attempt[rows].tolist()
        delays = [
            retry_delay_ms(s.retry_delays_ms, attempt)
            for s, attempt in zip(topics, attempts, strict=True)
        ]
        return np.array(delays, dtype=np.int64)

    def _of_topics(self, column: I64, rows: Rows) -> I64:
        """Return the setting of each message's topic."""
        values: I64 = column[self._table.topic[rows].astype(np.intp)]
        return values
