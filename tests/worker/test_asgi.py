"""A queue in an application of FastAPI, open for as long as that runs."""

from typing import Annotated

import pytest
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient

import dwell
from dwell.asgi import lifespan, queue_of
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
