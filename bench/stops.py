"""The longest stop of the event loop, and the longest call of a Redis, by what was done then."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.redis_servers import Server
from bench.watch import Watch

#: More calls than a measurement makes that take so long, of which the longest is looked for.
_MOST_CALLS, _LEAST_US = 100_000, 2_000


class Stops:
    """Figures in milliseconds by name; ``server`` is the Redis, if the store is on one.

    A name begins with ``prefix``; that of an engine's call ends with ``call``.
    """

    def __init__(self, server: Server | None = None, prefix: str = "") -> None:
        self._engine = None if server is None else server.client()
        self.prefix = prefix
        self.found_ms: dict[str, float] = {}
        if self._engine is not None:
            self._engine.config_set("slowlog-max-len", _MOST_CALLS)
            self._engine.config_set("slowlog-log-slower-than", _LEAST_US)

    @asynccontextmanager
    async def watched(self, name: str) -> AsyncIterator[None]:
        """Note the longest stop, and the longest call, in which something was done."""
        if self._engine is not None:
            self._engine.slowlog_reset()
        # As the server does once it has started: what is there by now is not what is measured.
        gc.collect()
        gc.freeze()
        watch = Watch()
        try:
            yield
            await asyncio.sleep(0.1)
        finally:
            self._note(name, (await watch.stop())[-1])
            if self._engine is not None:
                calls = self._engine.slowlog_get(_MOST_CALLS)
                longest_us = max((call["duration"] for call in calls), default=_LEAST_US)
                self._note(f"{name}_call", longest_us / 1000)

    def _note(self, name: str, ms: float) -> None:
        self.found_ms[f"{self.prefix}{name}"] = round(ms, 1)
