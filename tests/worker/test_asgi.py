"""A queue in an application of FastAPI, open for as long as that runs."""

from typing import Annotated

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient

import dwell
import dwell.asgi
from bench.servers import free_port
from dwell.asgi import lifespan, queue_of
from dwell.store.memory import MemoryStore
from dwell.worker import Worker
from tests.spark.conftest import ServerProcess
from tests.waiting import until

Dwell = Annotated[dwell.Queue, Depends(queue_of)]


def application(given):
    app = FastAPI(lifespan=given)

    @app.post("/orders/{name}")
    async def order(name: str, queue: Dwell) -> str:
        return str((await queue.put("orders", b"x", id=name)).result)

    @app.get("/left")
    async def left(queue: Dwell) -> int:
        counts = (await queue.stats()).topics.get("orders")
        return 0 if counts is None else counts.ready + counts.leased

    return app


def test_requests_get_the_queue_of_the_application(tmp_path):
    app = application(lifespan(tmp_path / "store", sync="never"))
    for first in ("created", "kept"):
        with TestClient(app) as client:
            assert client.post("/orders/1").json() == first
            assert client.post("/orders/1").json() == "kept"
    # It is closed with the application, so another process could open it.
    with dwell.open(tmp_path / "store") as queue:
        assert queue.stats().topics["orders"].ready == 1


def test_without_a_lifespan_the_error_says_what_is_missing():
    with pytest.raises(dwell.StoreClosed, match="expected lifespan="):
        TestClient(application(None)).post("/orders/1")


def test_a_worker_runs_with_the_application(tmp_path):
    server, seen = ServerProcess(tmp_path), []
    try:
        worker = Worker(server.url)
        worker.on("orders")(lambda message: seen.append(message.id))
        with TestClient(application(lifespan(server.url, worker=worker))) as client:
            client.post("/orders/1")
            until(lambda: seen == ["1"])
            until(lambda: client.get("/left").json() == 0)
    finally:
        server.stop()


@pytest.mark.parametrize("place", ["memory:", "folder", "file:"])
def test_a_worker_of_the_same_url_shares_the_queue(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    url = "file:" + str(tmp_path / "store") if place == "file:" else place
    worker, seen = Worker("./folder" if place == "folder" else url), []
    worker.on("orders")(lambda message: seen.append(message.id))
    with TestClient(application(lifespan(url, worker=worker))) as client:
        client.post("/orders/1")
        until(lambda: seen == ["1"])
        until(lambda: client.get("/left").json() == 0)


async def test_a_worker_serves_twice_also_when_the_application_ends_at_once():
    worker = Worker("memory:")
    worker.on("orders")(lambda message: None)
    app = application(lifespan("memory:", worker=worker))
    for _ in range(2):
        async with app.router.lifespan_context(app):
            pass


def test_what_ends_a_worker_at_its_start_ends_the_start_of_the_application(tmp_path):
    started = []

    def start(worker):
        with TestClient(application(lifespan("memory:", worker=worker))):
            started.append(worker)

    with pytest.raises(dwell.InvalidInput, match="on: got no handler"):
        start(Worker("memory:"))
    with dwell.open(tmp_path / "held"):
        worker = Worker(tmp_path / "held")
        worker.on("orders")(lambda message: None)
        with pytest.raises(dwell.StoreLocked):
            start(worker)
    worker = Worker("nowhere://x")
    worker.on("orders")(lambda message: None)
    with pytest.raises(dwell.InvalidUrl):
        start(worker)
    assert not started


class Failing(MemoryStore):
    """A store that fails for good with the first message."""

    async def take(self, topics, limit, lease_ms, owner):
        if taken := await super().take(topics, limit, lease_ms, owner):
            raise dwell.StoreFailed("fsync failed")
        return taken


def test_who_asks_for_the_queue_is_told_what_has_ended_the_worker(caplog):
    worker = Worker(dwell.Queue(Failing(dwell.RealClock())))
    worker.on("t")(lambda message: None)

    told = []

    def is_told(client):
        try:
            client.get("/left")
        except dwell.StoreClosed as error:
            return "the worker of the application has ended: StoreFailed" in str(error)
        return False

    def use():
        with TestClient(application(lifespan("memory:", worker=worker))) as client:
            assert client.get("/left").json() == 0
            worker.sync_queue.put("t", b"")
            until(lambda: is_told(client))
            told.append(caplog.text)

    with pytest.raises(dwell.StoreFailed, match="fsync failed"):
        use()
    # What the application ends with would hide that it was told before.
    assert "the worker of the application has ended" in told[0]


def test_an_application_starts_without_the_server_of_its_worker(tmp_path, monkeypatch):
    monkeypatch.setattr(dwell.asgi, "_START_SECONDS", 0.1)
    worker = Worker(f"http://127.0.0.1:{free_port()}")
    worker.on("t")(lambda message: None)
    with TestClient(application(lifespan("memory:", worker=worker))) as client:
        assert client.get("/left").json() == 0
