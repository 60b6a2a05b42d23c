"""Ends: when a token ends, requests that wait with it are ended."""

import asyncio
import contextlib
from collections.abc import Callable

from dwell.server.tokens import Tokens

#: The longest time between two looks at the clock, as it may be set.
_LONGEST_S = 60.0


class Ends:
    """Calls ``tell`` when other rights hold: after a reload, and when a token ends."""

    def __init__(self, tokens: Tokens, tell: Callable[[], None]) -> None:
        self._tokens = tokens
        self._tell = tell
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to listen."""
        self._tokens.on_change.append(self._changed)
        self._plan()

    def stop(self) -> None:
        """Stop listening."""
        with contextlib.suppress(ValueError):
            self._tokens.on_change.remove(self._changed)
        if self._timer is not None:
            self._timer.cancel()

    def _changed(self) -> None:
        self._tell()
        if self._timer is not None:
            self._timer.cancel()
        self._plan()

    def _plan(self) -> None:
        """Wake at the next end."""
        left_ms = self._tokens.next_end_ms
        self._timer = None
        if left_ms is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(min(left_ms / 1000, _LONGEST_S), self._changed)
