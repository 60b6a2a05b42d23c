"""Receipts of the job protocol: how many are at hand, and that what is not there is found."""

from dwell.batch.stats import TopicStats
from dwell.message import Message, State
from dwell.server.http import receipts
from dwell.server.http.command import OWNER
from dwell.server.http.receipts import Receipts
from tests.http.test_http_api import calling


def _popped(id_, until_ms):
    return Message(
        topic="t",
        id=id_,
        body=b"",
        due_ms=0,
        state=State.LEASED,
        priority=0,
        attempt=1,
        max_attempts=0,
        lease_ms=0,
        receipt="0" * 32,
        lease_until_ms=until_ms,
    )


def test_those_at_hand_take_so_many_bytes_whatever_their_ids_are(monkeypatch):
    monkeypatch.setattr(receipts, "MOST_BYTES", 100_000)
    kept = Receipts()
    for n in range(1000):
        kept.add(_popped(f"{n:04d}" + "\U0001f600" * 249, 10), 0)
    assert 50 < len(kept) < 80
    assert f"{0:04d}" + "\U0001f600" * 249 not in kept
    assert f"{999:04d}" + "\U0001f600" * 249 in kept


def test_what_is_popped_again_counts_once(monkeypatch):
    monkeypatch.setattr(receipts, "MOST_BYTES", 1_000)
    kept = Receipts()
    for _ in range(1000):
        kept.add(_popped("a", 10), 0)
        kept.add(_popped("b", 10), 0)
        kept.pop("b")
    assert "a" in kept


def test_those_whose_leases_are_over_are_forgotten():
    kept = Receipts()
    for n in range(10):
        kept.add(_popped(str(n), 10 + n), n)
    kept.add(_popped("new", 100), 15)
    assert (len(kept), "5" in kept, "6" in kept) == (5, False, True)


async def test_what_is_not_at_hand_is_found_in_the_store(monkeypatch):
    monkeypatch.setattr(receipts, "MOST_BYTES", 2_000)
    async with calling() as caller:
        ids = [str(n) for n in range(20)]
        for id_ in ids:
            add = {"command": "add", "topic": "t", "id": id_, "body": "x", "TTR": 60}
            assert (await caller.post("/command", add))["success"]
            await caller.post("/command", {"command": "pop", "topic": "t"})
        assert len(caller.server.port.waits.receipts) < 10
        for id_ in ids:
            assert (await caller.post("/command", {"command": "finish", "id": id_}))["success"]


async def test_a_job_whose_id_the_queue_made_is_finished_and_deleted():
    """It is popped as any other, and came back after each TTR."""
    async with calling() as caller:
        for command in ("finish", "delete"):
            await caller.server.queue.put("t", "x")
            popped = await caller.post("/command", {"command": "pop", "topic": "t"})
            if command == "delete":
                await caller.server.queue.release(await caller.server.queue.held(OWNER))
            done = await caller.post("/command", {"command": command, "id": popped["id"]})
            assert done == {"success": True, "id": popped["id"]}
            assert (await caller.server.queue.stats()).topics["t"] == TopicStats()
        made = {"command": "add", "topic": "t", "id": popped["id"], "body": "x"}
        assert "InvalidId" in (await caller.post("/command", made))["error"]
