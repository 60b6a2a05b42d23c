"""Waiting: connections that wait for jobs, each as a taker of the queue."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from dwell.batch.batch import Batch
from dwell.server.beanstalk.hall import Hall
from dwell.server.beanstalk.session import Session

#: The result of a wait: jobs of some topics, or none at its timeout.
Wait: TypeAlias = asyncio.Future[Batch]


class Waiting:
    """All waiting sessions of one port; ``serve`` is called with the result of each wait."""

    def __init__(
        self,
        hall: Hall,
        serve: Callable[[Session, tuple[str, ...], Wait], None],
        give_back: Callable[[Batch], None],
    ) -> None:
        self._hall = hall
        self._queue = hall.service.queue
        self._serve = serve
        self._give_back = give_back

    def enter(
        self, session: Session, topics: tuple[str, ...], limit: int, wait_ms: int | None
    ) -> None:
        """Make a session wait for at most ``limit`` jobs; ``wait_ms`` None sets no time limit.

        The memory that it holds for each topic counts as in flight; raises ServerBusy.
        """
        in_flight = self._hall.in_flight
        kept_bytes = in_flight.keep_topics(len(topics))
        session.wait = self._queue.ask(topics, limit, wait_ms) if topics else _pause(wait_ms)
        self._hall.waiting.add(session)
        session.wait.add_done_callback(lambda _: in_flight.leave(kept_bytes, 0))
        session.wait.add_done_callback(partial(self._ended, session, topics))

    def leave(self, session: Session) -> None:
        """End the wait of a session."""
        wait, session.wait = session.wait, None
        if wait is not None:
            self._hall.waiting.discard(session)
            wait.cancel()

    def _ended(self, session: Session, topics: tuple[str, ...], wait: Wait) -> None:
        if session.wait is wait:
            session.wait = None
            self._hall.waiting.discard(session)
            self._serve(session, topics, wait)
        elif not wait.cancelled() and wait.exception() is None:
            # It left when this was on its way to it.
            self._give_back(wait.result())


def _pause(wait_ms: int | None) -> Wait:
    """Return a future that is done when the first paused topic resumes: all topics are paused."""
    assert wait_ms is not None, "a pause has an end"
    loop = asyncio.get_running_loop()
    wait: Wait = loop.create_future()
    timer = loop.call_later(wait_ms / 1000, _end, wait)
    wait.add_done_callback(lambda _: timer.cancel())
    return wait


def _end(wait: Wait) -> None:
    if not wait.done():
        wait.set_result(Batch.empty())
