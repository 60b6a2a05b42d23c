"""The airline: it says the plan at once, and what really happens when it becomes known."""

import json
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame

from examples.flights.processes import now_ms

PLAN, CANCELLED, DELAYED = "plan", "cancellations", "delays"
REMINDERS, EVENTS = "reminders", "dwell-events"
_PARTITIONS = 2
_PATIENCE_S = 120.0


class News(NamedTuple):
    """What becomes known of a flight at ``at_ms``: its reminder is due then, or never."""

    at_ms: int
    id: str
    due_ms: int | None


def make_topics(hosts: str) -> None:
    """Make all topics of the job."""
    names = (PLAN, CANCELLED, DELAYED, REMINDERS, EVENTS)
    admin = AdminClient({"bootstrap.servers": hosts})
    made = admin.create_topics([NewTopic(name, _PARTITIONS) for name in names])
    for one in made.values():
        one.result(_PATIENCE_S)


class Airline:
    """Sends the plan, and then the news from a thread of its own."""

    def __init__(self, hosts: str, flights: DataFrame) -> None:
        self._producer = Producer(
            {"bootstrap.servers": hosts, "acks": "all", "enable.idempotence": True, "linger.ms": 20}
        )
        self._flights = flights
        self._telling: threading.Thread | None = None

    def plan(self) -> int:
        """Say when each reminder is due as far as anybody knows; return how many those are."""
        rows = self._flights.select("id", "planned_ms").toLocalIterator()
        count = 0
        for row in rows:
            self._send(PLAN, {"id": row.id, "due_ms": row.planned_ms})
            count += 1
        assert self._producer.flush(_PATIENCE_S) == 0
        return count

    def tell(self) -> None:
        """Begin to say what happens, each at its time."""
        rows = self._flights.where("is_cancelled OR is_late").orderBy("news_ms")
        found = rows.select("news_ms", "id", "is_cancelled", "due_ms").collect()
        news = [News(r.news_ms, r.id, None if r.is_cancelled else r.due_ms) for r in found]
        self._telling = threading.Thread(target=self._tell, args=[news], daemon=True)
        self._telling.start()

    def _tell(self, news: Iterable[News]) -> None:
        for one in news:
            if (left_ms := one.at_ms - now_ms()) > 0:
                self._producer.poll(0)
                time.sleep(left_ms / 1000)
            if one.due_ms is None:
                self._send(CANCELLED, {"id": one.id})
            else:
                self._send(DELAYED, {"id": one.id, "due_ms": one.due_ms})
        assert self._producer.flush(_PATIENCE_S) == 0

    def wait(self) -> None:
        """Return when all is said."""
        assert self._telling is not None
        self._telling.join()

    def _send(self, topic: str, body: dict[str, object]) -> None:
        data, key = json.dumps(body).encode(), str(body["id"]).encode()
        while True:
            try:
                self._producer.produce(topic, data, key)
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return
