"""Care: the store, health and readiness, and a copy of everything."""

import asyncio
from importlib.metadata import version

from starlette.background import BackgroundTask
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from dwell.errors import DwellError
from dwell.server.http.call import Call
from dwell.server.http.metrics import CONTENT_TYPE, exposition
from dwell.server.http.schemas import StaleAnswer, StaleRequest, StaleRow, StoreAnswer
from dwell.store.embedded.tar import checkpoint_tar

#: How long the store may take to answer, for the server to be ready.
STORE_ANSWERS_S = 0.5


async def store(call: Call) -> Response:
    """Say which store this is, what time the server has, and whether it takes messages."""
    call.allow(())
    service = call.service
    answer = StoreAnswer(
        service.queue.store.number,
        version("dwell"),
        service.queue.clock.now_ms(),
        service.is_draining,
    )
    return call.answer(answer)


async def healthz(call: Call) -> Response:
    """Answer as long as the process lives."""
    return PlainTextResponse("ok\n")


async def readyz(call: Call) -> Response:
    """Answer 200 while the server does its work: the store answers and takes new messages."""
    if call.service.is_draining or call.waits.is_over:
        return PlainTextResponse("draining\n", 503)
    try:
        call.service.check_puts()
        call.queue.store.check()
        async with asyncio.timeout(STORE_ANSWERS_S):
            # Of no topic in particular: it is a few bytes from wherever the store is.
            await call.queue.settings("default")
    except (DwellError, TimeoutError) as error:
        reason = str(error) or f"the store gave no answer within {STORE_ANSWERS_S} s"
        return PlainTextResponse(f"{type(error).__name__}: {reason}\n", 503)
    return PlainTextResponse("ready\n")


async def find_stale(call: Call) -> Response:
    """Compare the parts of the store, and return what only some of them know; or put it right."""
    call.allow(None)
    ask = await call.body(StaleRequest)
    found = await call.queue.find_stale(repair=ask.repair, limit=ask.limit)
    rows = [StaleRow(one.topic, one.id, one.number, one.problem, one.repaired) for one in found]
    return call.answer(StaleAnswer(rows))


async def metrics(call: Call) -> Response:
    """Return the figures for Prometheus."""
    call.allow(None)
    data = await exposition(call.service, len(call.waits) + len(call.waits.streams))
    return Response(data, media_type=CONTENT_TYPE)


async def backup(call: Call) -> Response:
    """Return a copy of the store as a tar file, which can be opened as a store."""
    call.allow(None)
    tar = await checkpoint_tar(call.queue.store)
    headers = {
        "content-disposition": 'attachment; filename="dwell-backup.tar"',
        "content-length": str(tar.size_bytes),
    }
    return StreamingResponse(
        tar, media_type="application/x-tar", headers=headers, background=BackgroundTask(tar.close)
    )
