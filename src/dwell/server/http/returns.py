"""Returns: releases messages that were taken for an answer which was not delivered."""

import asyncio
import logging

from dwell.batch.batch import Batch
from dwell.errors import DwellError
from dwell.queue import Queue

_log = logging.getLogger(__name__)


class Returns:
    """Releases undelivered messages; the attempt does not count."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def give_back(self, queue: Queue, batch: Batch) -> None:
        """Begin to give messages back."""
        if len(batch):
            task = asyncio.get_running_loop().create_task(self._release(queue, batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        """Return when all messages are released."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _release(self, queue: Queue, batch: Batch) -> None:
        try:
            await queue.release(batch, counted=False)
        except DwellError as error:
            _log.warning("%d messages wait for the end of their leases: %s", len(batch), error)
