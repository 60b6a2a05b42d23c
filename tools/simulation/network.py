"""The network between clients and the queue: requests and replies are lost, doubled and late."""

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from dwell.queue import Queue
from tools.simulation.loop import SimulatedLoop

#: What a server does for a request.
Request = Callable[[Queue], Awaitable[Any]]


class Lost(Exception):
    """No reply came in time, or the server was not there."""


class Server(Protocol):
    """Who takes requests."""

    def serve(
        self, request: Request, tell: Callable[[Any], None], longest_s: float, words: str
    ) -> Callable[[], None] | None:
        """Begin to do what is asked, and return what breaks it off; None when nobody is there."""


class Network:
    """Carries requests to a server, and replies back."""

    def __init__(self, loop: SimulatedLoop, server: Server) -> None:
        self._loop = loop
        self._server = server
        #: While it is cut off, nothing arrives.
        self.is_cut_off = False
        #: Whether nothing goes wrong any more.
        self.is_calm = False

    async def call(
        self, request: Request, chance: random.Random, words: str, wait_s: float = 0.0
    ) -> Any:
        """Return the answer to a request, or raise the error that it was; raises Lost."""
        reply: asyncio.Future[Any] = self._loop.create_future()
        fate = "" if self.is_calm else chance.choices(_FATES, _WEIGHTS)[0]
        stops: list[Callable[[], None]] = []
        if fate != "lost":
            for _ in range(2 if fate == "doubled" else 1):
                delay_s = _latency_s(chance) + (chance.random() * 3 if fate == "late" else 0)
                # What is on its way arrives, though who sent it is gone by then.
                given = (request, reply, chance, words, wait_s, stops)
                self._outside(delay_s, self._arrive, *given)
        try:
            answer = await asyncio.wait_for(reply, wait_s + 5)
        except TimeoutError:
            if chance.random() < 0.7:
                self._close(stops, chance)
            raise Lost(words) from None
        except (asyncio.CancelledError, GeneratorExit):
            self._close(stops, chance)
            raise
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _close(self, stops: list[Callable[[], None]], chance: random.Random) -> None:
        """Close the connections of a request, which the server notices."""
        for stop in () if self._loop.is_closed() else stops:
            self._outside(_latency_s(chance), stop)

    def _outside(self, delay_s: float, work: Callable[..., Any], *given: Any) -> None:
        """Have something done outside of all processes."""
        self._loop.call_later(delay_s, work, *given, context=contextvars.Context())

    def _arrive(
        self,
        request: Request,
        reply: "asyncio.Future[Any]",
        chance: random.Random,
        words: str,
        wait_s: float,
        stops: list[Callable[[], None]],
    ) -> None:
        if self.is_cut_off:
            return
        lost = not self.is_calm and chance.random() < 0.04
        latency_s = _latency_s(chance)

        def tell(answer: Any) -> None:
            if not lost and not self.is_cut_off:
                self._loop.call_later(latency_s, _give, reply, answer)

        stop = self._server.serve(request, tell, wait_s, words)
        if stop is None:
            tell(Lost(words))
        else:
            stops.append(stop)


_FATES = ("", "lost", "doubled", "late")
_WEIGHTS = (88, 4, 4, 4)


def _give(reply: "asyncio.Future[Any]", answer: Any) -> None:
    if not reply.done():
        reply.set_result(answer)


def _latency_s(chance: random.Random) -> float:
    return chance.choice((1e-5, 1e-4, 1e-3, 0.02))
