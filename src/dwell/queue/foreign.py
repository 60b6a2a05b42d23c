"""Verbs by receipt where some receipts are of another store, as after a restore."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from dwell.errors import ForeignReceipt
from dwell.message import MAX_BATCH_MESSAGES, Result
from dwell.slices import slices


async def each_of_its_own(
    verb: Callable[..., Awaitable[Any]], receipts: Sequence[str], **words: Any
) -> list[Result]:
    """Return the results of a verb, one for each receipt; ``STALE`` for a receipt of another store.

    A store refuses a whole batch with such a receipt. The batch is halved then, so that few calls
    find all of them. Raises the errors of the verb, except ForeignReceipt.
    """
    results: list[Result] = []
    for part in slices(receipts, MAX_BATCH_MESSAGES):
        try:
            results += await verb(part, **words)
        except ForeignReceipt:
            if len(part) == 1:
                results.append(Result.STALE)
                continue
            middle = len(part) // 2
            results += await each_of_its_own(verb, part[:middle], **words)
            results += await each_of_its_own(verb, part[middle:], **words)
    return results
