"""The queue of a worker that runs, which handlers put to."""

import asyncio
import threading

import pytest

import dwell
from dwell.worker import Worker
from tests.waiting import until_async
from tests.worker.serving import queue_of, serving


@pytest.mark.parametrize("place", ["memory:", "folder"])
async def test_handlers_put_to_the_queue_that_they_are_fed_from(tmp_path, place):
    worker = Worker(place if place == "memory:" else tmp_path / "queue")
    seen = []

    @worker.on("plain")
    def plain(message):
        worker.sync_queue.put("second", message.body, id="from-plain")

    @worker.on("second")
    async def second(message):
        await worker.queue.put("third", message.body)

    @worker.on("third")
    async def third(message):
        seen.append(message.body)

    async with serving(worker):
        queue = await queue_of(worker)
        await queue.put("plain", "hello")
        await until_async(lambda: seen == [b"hello"])


def test_a_worker_that_does_not_run_has_no_queue():
    worker = Worker("memory:")
    for name in ("queue", "sync_queue"):
        with pytest.raises(dwell.StoreClosed, match="the worker does not run"):
            getattr(worker, name)


async def test_a_thread_that_outlives_its_worker_is_told(tmp_path):
    """Its calls fail, and none of them hangs."""
    worker = Worker("memory:", grace="10ms")
    begun, ended, told = threading.Event(), threading.Event(), []

    @worker.on("t")
    def slow(message):
        queue = worker.sync_queue
        begun.set()
        ended.wait(20)
        try:
            queue.put("t", b"")
        except dwell.StoreClosed as error:
            told.append(error)

    async with serving(worker) as task:
        queue = await queue_of(worker)
        await queue.put("t", b"")
        await until_async(begun.is_set)
        worker.stop()
        await task
    ended.set()
    await until_async(lambda: told)


async def test_a_blocking_call_in_the_loop_is_refused():
    worker = Worker("memory:")
    failed = asyncio.get_running_loop().create_future()

    @worker.on("t")
    async def wrong(message):
        try:
            worker.sync_queue.put("t", b"")
        except RuntimeError as error:
            failed.set_result(error)

    async with serving(worker):
        queue = await queue_of(worker)
        await queue.put("t", b"")
        assert "blocking call" in str(await failed)


async def test_a_worker_opens_its_store_with_options(tmp_path):
    """The command line reaches the folder of a worker by its socket."""
    folder = tmp_path / "queue"
    worker = Worker(dwell.open(folder, admin_socket=True), app="letters")
    seen = []
    worker.on("letters")(lambda message: seen.append(message.body))
    assert not worker.is_shareable
    assert worker.described == "serving letters (8 at once) at its queue"
    for text in (b"first", b"again"):
        async with serving(worker):
            await queue_of(worker)
            async with dwell.open(f"http+unix://{folder}/admin.sock") as queue:
                await queue.put("letters", text)
            await until_async(lambda text=text: text in seen)
        assert not (folder / "admin.sock").exists()
        worker = Worker(worker.source)
        worker.on("letters")(lambda message: seen.append(message.body))
