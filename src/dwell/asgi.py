"""FastAPI and Starlette: a queue that opens and closes with the application.

::

    app = FastAPI(lifespan=lifespan("http://127.0.0.1:8080"))
    Dwell = Annotated[Queue, Depends(queue_of)]

    @app.post("/orders")
    async def order(queue: Dwell) -> str:
        return (await queue.put("unpaid", b"order", delay="30m")).id
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.requests import HTTPConnection

from dwell.errors import StoreClosed
from dwell.handle import open as open_queue
from dwell.queue import Queue
from dwell.worker import Worker

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def lifespan(
    url: str | os.PathLike[str], *, worker: Worker | None = None, **options: Any
) -> Lifespan:
    """Return a lifespan that opens the store at a URL; :func:`dwell.open` has the ``options``.

    A ``worker`` handles messages in the same process, and stops gracefully with it.
    """

    @contextlib.asynccontextmanager
    async def opened(app: Any) -> AsyncIterator[None]:
        async with open_queue(url, **options) as queue:
            app.state.dwell = queue
            try:
                async with _working(worker):
                    yield
            finally:
                app.state.dwell = None

    return opened


def queue_of(connection: HTTPConnection) -> Queue:
    """Return the queue of the application that a request came to; raises StoreClosed."""
    queue = getattr(connection.app.state, "dwell", None)
    if queue is None:
        raise StoreClosed(
            "the application has no queue, expected lifespan=dwell.asgi.lifespan(...)"
        )
    found: Queue = queue
    return found


@contextlib.asynccontextmanager
async def _working(worker: Worker | None) -> AsyncIterator[None]:
    if worker is None:
        yield
        return
    serving = asyncio.create_task(worker.serve())
    try:
        yield
    finally:
        worker.stop()
        await serving
