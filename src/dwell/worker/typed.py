"""Handlers of values: what does not fit is buried with the reason, and the handler not called."""

import functools
from collections.abc import Callable
from typing import Any

from dwell.errors import InvalidBody
from dwell.message import Message
from dwell.queue.codec import Codec
from dwell.threads.pool import is_coroutine
from dwell.worker.outcome import Bury


def typed(handler: Callable[[Any], Any], kind: type[Any]) -> Callable[[Any], Any]:
    """Return a handler of messages that gives another one messages with values of a type."""
    codec = Codec(kind)

    def fitting(message: Message) -> Any:
        try:
            return codec.typed(message)
        except InvalidBody as error:
            raise Bury(str(error)) from None

    if is_coroutine(handler):

        @functools.wraps(handler)
        async def handle(message: Message) -> Any:
            return await handler(fitting(message))

        return handle

    @functools.wraps(handler)
    def handle_in_thread(message: Message) -> Any:
        return handler(fitting(message))

    return handle_in_thread
