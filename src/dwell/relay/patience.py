"""Retries: work that fails for now is repeated until it succeeds, and is reported once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from dwell.errors import DwellError, InvalidInput, StoreClosed
from dwell.relay.tally import Tally

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: The pause before the next attempt, in seconds.
AGAIN_S = 0.5


async def patiently(
    work: Callable[[], Awaitable[T]],
    tally: Tally,
    who: str,
    *,
    is_over: Callable[[], bool],
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Do some work until it succeeds; raises its last error once ``is_over``.

    Until then the error is the trouble of ``who``, and is logged when it is new. Bad input and a
    closed store are raised at once, because no later attempt can succeed.
    """
    while True:
        try:
            found = await work()
        except (InvalidInput, StoreClosed):
            raise
        except DwellError as error:
            if is_over():
                raise
            if tally.is_news(who, error):
                _log.warning("%s: trying again: %s", who, error)
            await pause(AGAIN_S)
        else:
            tally.trouble.pop(who, None)
            return found
