"""Handlers of values: a body that does not fit is buried with the reason, without a call."""

import functools
from collections.abc import Callable
from typing import Any

from dwell.errors import InvalidBody
from dwell.message import Message
from dwell.queue.codec import Codec
from dwell.threads.pool import is_coroutine
from dwell.worker.outcome import Bury


class Typed:
    """A plain handler of values as one of messages, which other processes can be given."""

    def __init__(self, handler: Callable[[Any], Any], kind: type[Any]) -> None:
        functools.update_wrapper(self, handler)
        self._given, self._codec = (handler, kind), Codec(kind)

    def __call__(self, message: Message) -> Any:
        """Call the handler; raises Bury for a body that is not of the type."""
        return self._given[0](_fitting(self._codec, message))

    def __reduce__(self) -> tuple[Any, ...]:
        return Typed, self._given


def typed(handler: Callable[[Any], Any], kind: type[Any]) -> Callable[[Any], Any]:
    """Return a handler of messages that gives another one messages with values of a type."""
    if not is_coroutine(handler):
        return Typed(handler, kind)
    codec = Codec(kind)

    @functools.wraps(handler)
    async def handle(message: Message) -> Any:
        return await handler(_fitting(codec, message))

    return handle


def _fitting(codec: Codec[Any], message: Message) -> Any:
    try:
        return codec.typed(message)
    except InvalidBody as error:
        raise Bury(str(error)) from None
