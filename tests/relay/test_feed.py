"""The queue's own events arrive in a topic of a real Kafka, all of them and in order."""

import asyncio
import json
import signal

import pytest

import dwell
from dwell.clock import RealClock
from dwell.errors import InvalidSettings
from dwell.queue import Queue
from dwell.relay.feed import Feed
from dwell.relay.process import feed_of
from dwell.relay.settings import RelaySettings
from dwell.store.memory import MemoryStore
from tests.relay.kafka import RelayProcess, Topics, relaying
from tests.spark.conftest import ServerProcess
from tests.waiting import until


@pytest.fixture
def server(tmp_path):
    server = ServerProcess(tmp_path)
    yield server
    server.stop()


def events_of(mine: Topics, at_least: int) -> list[dict[str, object]]:
    found = mine.read(mine.goes, at_least)
    events = [json.loads(one.value()) for one in found]
    for one, event in zip(found, events, strict=True):
        assert one.key().decode() == event["id"]
    return events


def happened(url: str) -> list[dict[str, object]]:
    with dwell.open(url) as queue:
        events = queue.events(0, 10_000).events
    return [
        {
            "position": event.position,
            "time_ms": event.time_ms,
            "kind": str(event.kind),
            "topic": event.topic,
            "id": event.id,
            "due_ms": event.due_ms,
            "attempt": event.attempt,
        }
        for event in events
    ]


def live(url: str, count: int) -> None:
    with dwell.open(url) as queue:
        queue.put_many("orders", [b"x"] * count)
        taken = queue.take("orders", count)
        queue.ack(taken[: count // 2])
        queue.release(taken[count // 2 :], "1h")


@pytest.mark.campaign
def test_all_that_happens_arrives_once_and_in_order(server, topics, tmp_path):
    mine = topics(3)
    live(server.url, 300)
    options = ["--events", "--to", mine.sink]
    with relaying(server.url, options, tmp_path / "log") as relay:
        events_of(mine, 900)
        live(server.url, 100)
        found = events_of(mine, 1_200 + 1)
        assert relay.end() == 0
    expected = happened(server.url)
    by_place = {event["position"]: event for event in found}
    assert len(by_place) == len(found)
    assert [event for event in expected if event["topic"] == "orders"] == [
        by_place[place] for place in sorted(by_place) if by_place[place]["topic"] == "orders"
    ]
    for id_ in {event["id"] for event in found}:
        places = [event["position"] for event in found if event["id"] == id_]
        assert places == sorted(places)


def test_a_quiet_queue_stays_quiet(server, topics, tmp_path):
    """That a feed writes its position is an event, which must not make it write again."""
    mine = topics(1)
    with relaying(server.url, ["--events", "--to", mine.sink], tmp_path / "log"):
        live(server.url, 4)
        until(lambda: any(e["topic"] == "relay-events" for e in events_of(mine, 12)))
        count = len(happened(server.url))
        with dwell.open(server.url) as queue:
            # The second comes a look later than the first.
            for number in (1, 2):
                queue.put("orders", b"", id=f"late-{number}")
                until(lambda number=number: f"late-{number}" in _ids(mine))
    assert len(happened(server.url)) <= count + 8


def _ids(mine: Topics) -> set[object]:
    return {event["id"] for event in events_of(mine, 1)}


@pytest.mark.campaign
def test_one_that_is_killed_goes_on_where_it_was(server, topics, tmp_path):
    mine = topics(2)
    options = ["--events", "--to", mine.sink, "--batch", "50"]
    total = 0
    relay = RelayProcess(server.url, options, tmp_path / "log")
    try:
        for _ in range(6):
            live(server.url, 100)
            total += 300
            mine.read(mine.goes, total // 2)
            relay.end(signal.SIGKILL)
            relay = RelayProcess(server.url, options, tmp_path / "log")
        until(
            lambda: len({e["position"] for e in events_of(mine, total)} & orders(server)) == total
        )
    finally:
        relay.end(signal.SIGKILL)
    found = [event["position"] for event in events_of(mine, total)]
    # What each kill repeats is a batch or so, not everything.
    assert len(found) - len(set(found)) <= 6 * 2 * 50


def orders(server: ServerProcess) -> set[object]:
    return {e["position"] for e in happened(server.url) if e["topic"] == "orders"}


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"source": "kafka://h/t"}, "goes with --to alone"),
        ({"topics": ("a",)}, "goes with --to alone"),
        ({"sink": None}, "--from, --to: got neither"),
    ],
)
def test_what_does_not_go_with_events_is_refused(more, match):
    given = {"source": None, "sink": "kafka://h/t", "events": True, **more}
    with pytest.raises(InvalidSettings, match=match):
        RelaySettings(**given)


async def test_events_need_one_topic():
    settings = RelaySettings(source=None, sink="kafka://h", events=True)
    async with dwell.open("memory:") as queue:
        with pytest.raises(InvalidSettings, match="got 0 topics"):
            feed_of(queue, settings)


async def test_events_that_are_gone_are_counted():
    async with Queue(MemoryStore(RealClock(), max_events=4)) as queue:
        sink = Stopping()
        feed = Feed(queue, sink, to="t", hold="h", batch=100)
        await queue.put_many("orders", [b""] * 10)
        await feed.run(sink.stopping)
    assert feed.tally.lost == 6
    assert len(sink.sent) == 4


async def test_a_log_that_lost_its_end_is_told():
    """Its next events would have the positions of those that were sent."""
    async with Queue(MemoryStore(RealClock())) as queue:
        await queue.put("orders", b"")
        place = {"position": 1_000, "history": ""}
        await queue.put("h", place, id="position", delay="1h")
        feed = Feed(queue, Stopping(), to="t", hold="h", batch=100)
        with pytest.raises(InvalidSettings, match="lost its end"):
            await asyncio.wait_for(feed.run(asyncio.Event()), 60)


async def test_a_log_of_another_history_is_told_where_its_events_are_gone_too(redis_url):
    """The engine came back empty, and more events than are kept have happened since."""
    url = f"{redis_url}?prefix=another&max_events=100"
    async with dwell.open(url) as queue:
        await asyncio.gather(*(queue.put_many("orders", [b""] * 9) for _ in range(500)))
        assert (await queue.events(0, 1)).first_position > 10
        place = {"position": 10, "history": "lost"}
        await queue.put("h", place, id="position", delay="1h")
        sink = Stopping()
        feed = Feed(queue, sink, to="t", hold="h", batch=100)
        with pytest.raises(InvalidSettings, match="not those that were sent"):
            await asyncio.wait_for(feed.run(sink.stopping), 60)
    assert not sink.sent


class Stopping:
    """A sink that lets the feed stop once it got something."""

    def __init__(self):
        self.sent, self.stopping = [], asyncio.Event()

    async def open(self):
        """Begin."""

    async def close(self):
        """End."""

    async def send(self, records):
        self.sent += records
        self.stopping.set()
        return [None] * len(records)
