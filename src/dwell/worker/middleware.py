"""Middleware: code around each call of a handler, in a class for each purpose."""

import asyncio
import inspect
import logging
from collections.abc import Sequence
from typing import Any

_log = logging.getLogger(__name__)


class Middleware:
    """Hooks that a worker calls around its handlers; a subclass defines the methods it needs.

    Each may be plain or asynchronous, and runs in the event loop, so a plain one has to be quick.
    Its argument is the argument of the handler: a Message, or a Batch.
    """

    def before(self, what: Any) -> Any:
        """Run before the handler; an exception counts as raised by the handler."""

    def after(self, what: Any) -> Any:
        """Do something when the handler has returned, before the message is acked."""

    def on_failure(self, what: Any, error: BaseException) -> Any:
        """Do something when the handler has raised, or has run longer than it may."""


class Around:
    """Several of them, called in their order before a handler, and in the other one after it."""

    def __init__(self, middleware: Sequence[Middleware]) -> None:
        self._middleware = tuple(middleware)

    def __bool__(self) -> bool:
        return bool(self._middleware)

    async def before(self, what: Any) -> BaseException | None:
        """Call each ``before`` in order; return the first exception, or None."""
        for one in self._middleware:
            try:
                await _done(one.before(what))
            except BaseException as error:
                return error
        return None

    async def after(self, what: Any, error: BaseException | None) -> None:
        """Call each ``after`` or ``on_failure``; their exceptions are logged only."""
        for one in reversed(self._middleware):
            try:
                await _done(one.after(what) if error is None else one.on_failure(what, error))
            except (Exception, asyncio.CancelledError):
                _log.exception("%r failed after a handler", one)


async def _done(answer: Any) -> None:
    if inspect.isawaitable(answer):
        await answer
