"""Care: the store, health and readiness, and a copy of everything."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from importlib.util import find_spec

from dwell.errors import DwellError
from dwell.server.http.answer import Answer, text
from dwell.server.http.call import Call
from dwell.server.http.schemas.answers import StaleAnswer, StaleRow, StoreAnswer
from dwell.server.http.schemas.requests import StaleRequest
from dwell.version import VERSION

#: How long the store may take to answer, for the server to be ready.
STORE_ANSWERS_S = 0.5

# Imported on the first request for metrics, so that a restarted server is ready sooner.
if find_spec("prometheus_client") is None:
    raise ModuleNotFoundError("it is needed for /metrics", name="prometheus_client")


async def store(call: Call) -> Answer:
    """Return the number of the store, the server's time, and whether it accepts messages."""
    service = call.service
    answer = StoreAnswer(
        service.queue.store.number,
        VERSION,
        service.queue.clock.now_ms(),
        service.is_draining,
        service.queue.store.keeps_calls,
        parts_ids=service.queue.store.parts_ids,
    )
    return call.answer(answer)


async def healthz(call: Call) -> Answer:
    """Answer as long as the process lives."""
    return text("ok\n")


async def readyz(call: Call) -> Answer:
    """Answer 200 while the server does its work: the store answers and takes new messages."""
    if call.service.is_draining or call.waits.is_over:
        return text("draining\n", 503)
    try:
        call.service.check_puts()
        call.queue.store.check()
        async with asyncio.timeout(STORE_ANSWERS_S):
            # Of no topic in particular: it is a few bytes from wherever the store is.
            await call.queue.settings("default")
    except (DwellError, TimeoutError) as error:
        reason = str(error) or f"the store gave no answer within {STORE_ANSWERS_S} s"
        return text(f"{type(error).__name__}: {reason}\n", 503)
    return text("ready\n")


async def find_stale(call: Call) -> Answer:
    """Compare the parts of the store, and return or repair entries that only some of them have."""
    ask = call.body(StaleRequest)
    call.is_audited = ask.repair
    found = await call.queue.find_stale(repair=ask.repair, limit=ask.limit)
    rows = [StaleRow(one.topic, one.id, one.number, one.problem, one.repaired) for one in found]
    call.change = {"repaired": sum(row.repaired for row in rows)}
    return call.answer(StaleAnswer(rows))


async def metrics(call: Call) -> Answer:
    """Return the figures for Prometheus."""
    from dwell.server.http.metrics import CONTENT_TYPE, exposition

    data = await exposition(call.service, len(call.waits) + len(call.waits.streams))
    return Answer(data, CONTENT_TYPE)


async def backup(call: Call) -> Answer:
    """Return a copy of the store as a tar file, which can be opened as a store."""
    from dwell.store.embedded.backup.tar import checkpoint_tar

    tar = await checkpoint_tar(call.queue.store)
    answer = Answer(b"", "application/x-tar")
    answer.parts, answer.close = _while_allowed(call, tar), tar.close
    answer.headers = {
        "content-disposition": 'attachment; filename="dwell-backup.tar"',
        "content-length": str(tar.size_bytes),
    }
    return answer


async def _while_allowed(call: Call, tar: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the parts of an archive; raises AccessDenied once the caller's rights end."""
    async for part in tar:
        call.check_again()
        yield part
