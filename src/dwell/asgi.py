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
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.requests import HTTPConnection

from dwell.errors import StoreClosed
from dwell.handle import Handle
from dwell.handle import open as open_queue
from dwell.queue import Queue
from dwell.tasks import finished
from dwell.worker import Worker

_log = logging.getLogger(__name__)

#: How long the start of an application waits for its worker to take messages.
_START_SECONDS = 5.0

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def lifespan(
    url: str | os.PathLike[str], *, worker: Worker | None = None, **options: Any
) -> Lifespan:
    """Return a lifespan that opens the store at a URL; :func:`dwell.open` has the ``options``.

    A ``worker`` handles messages in the same process, and stops gracefully with it. If it was made
    with the same URL, it uses the queue of the application. An error of the worker at its start
    ends the start of the application; it waits for a server that does not answer in the background.
    A later error is logged at once, :func:`queue_of` raises StoreClosed from then on, and the
    lifespan raises the error when the application ends.
    """

    @contextlib.asynccontextmanager
    async def opened(app: Any) -> AsyncIterator[None]:
        async with open_queue(url, **options) as queue:
            app.state.dwell, app.state.dwell_ended = queue, None
            try:
                if worker is None:
                    yield
                    return
                shared = queue if _is_at(worker, url) else None
                async with _working(worker, shared, app.state):
                    yield
            finally:
                app.state.dwell = None

    return opened


def queue_of(connection: HTTPConnection) -> Queue:
    """Return the queue of the application that a request came to.

    Raises StoreClosed without one, and after an error has ended the worker of the application.
    """
    state = connection.app.state
    queue, ended = getattr(state, "dwell", None), getattr(state, "dwell_ended", None)
    if ended is not None:
        raise StoreClosed(f"the worker of the application has ended: {ended!r:.200}") from ended
    if queue is None:
        raise StoreClosed(
            "the application has no queue, expected lifespan=dwell.asgi.lifespan(...)"
        )
    found: Queue = queue
    return found


@contextlib.asynccontextmanager
async def _working(worker: Worker, queue: Queue | None, state: Any) -> AsyncIterator[None]:
    """Run a worker; raises the error that ends it, before the block if it ends at its start."""
    serving = asyncio.create_task(_served(worker, queue))
    taking = asyncio.create_task(worker.taking())
    try:
        await asyncio.wait(
            [serving, taking], timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
    except asyncio.CancelledError:
        serving.cancel()
        raise
    finally:
        taking.cancel()
    if serving.done():
        _raise(serving.result())
    elif not taking.done():
        _log.warning("the worker takes nothing yet, the application starts all the same")
    serving.add_done_callback(lambda task: _note_end(task, state))
    try:
        yield
    finally:
        worker.stop()
        error = await finished(serving, serving.cancel)
    _raise(error)


async def _served(worker: Worker, queue: Queue | None) -> BaseException | None:
    """Return what a worker ends with, as SystemExit from a task would end the loop at once."""
    try:
        await worker.serve(queue=queue)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return error
    return None


def _note_end(serving: "asyncio.Task[BaseException | None]", state: Any) -> None:
    error = None if serving.cancelled() else serving.result()
    if error is not None:
        _log.critical("the worker of the application has ended", exc_info=error)
        state.dwell_ended = error


def _raise(error: BaseException | None) -> None:
    if error is not None:
        raise error


def _is_at(worker: Worker, url: str | os.PathLike[str]) -> bool:
    """Tell whether a worker was made with a URL, or with another one of the same folder."""
    source = worker.source
    return not isinstance(source, Queue | Handle) and _place(source) == _place(url)


def _place(url: str | os.PathLike[str]) -> str:
    text = os.fspath(url)
    if isinstance(url, str) and ":" in text and not text.startswith("file:"):
        return text
    return os.path.realpath(text.removeprefix("file:").removeprefix("//"))
