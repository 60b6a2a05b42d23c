"""Typed topics: values of a type are put and taken; bodies that do not fit are buried."""

import contextlib
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from dwell.batch.batch import Batch
from dwell.batch.puts import Put, PutAnswer
from dwell.errors import DwellError, InvalidBody
from dwell.given import values
from dwell.given.values import Delay
from dwell.queue.carrier import Carrier
from dwell.queue.codec import Codec, TypedMessage
from dwell.tasks import finished, whole

T = TypeVar("T")


class Typed(Generic[T]):
    """One topic whose bodies are values of a type: ``queue.topic("orders", Order)``.

    It returns ordinary messages, which ``queue.ack`` and the other verbs accept, with a ``value``.
    """

    def __init__(self, queue: Carrier, topic: str, kind: type[T]) -> None:
        self._queue = queue
        self.name = values.topic(topic)
        self._codec = Codec(kind)

    async def put(self, value: T, **words: Any) -> Put:
        """Put a value; ``words`` are the options of :meth:`dwell.Queue.put`.

        Raises InvalidBody, and puts nothing, for a value that is not of the type or that would be
        decoded as another value.
        """
        return await self._queue.put(self.name, self._codec.encode(value), **words)

    async def put_many(self, given: Sequence[T], **words: Any) -> PutAnswer:
        """Put many values, all or none; ``words`` are the options of :meth:`dwell.Queue.put_many`.

        Raises InvalidBody as :meth:`put` does.
        """
        bodies = [self._codec.encode(value) for value in given]
        return await self._queue.put_many(self.name, bodies, **words)

    async def take(
        self,
        limit: int = 1,
        *,
        lease: Delay | None = None,
        owner: str = "",
        wait: Delay = 0,
    ) -> list[TypedMessage[T]]:
        """Take at most ``limit`` due messages, as :meth:`dwell.Queue.take` does.

        Bodies that are not of the type are buried, with the reason, and left out of the answer. If
        the call is cancelled or fails, it releases the messages that it had taken.
        """
        words = {"lease": lease, "owner": owner, "wait": wait}
        batch = await self._queue.take(self.name, limit, **words)
        try:
            return await self.fitting(batch)
        except BaseException:
            await finished(whole(self._give_back(batch)))
            raise

    async def _give_back(self, batch: Batch) -> None:
        with contextlib.suppress(DwellError):
            await self._queue.release(batch, counted=False)

    async def fitting(self, batch: Batch) -> list[TypedMessage[T]]:
        """Return the messages of a batch that are of the type; bury the others, with the reason."""
        found: list[TypedMessage[T]] = []
        for message in batch:
            try:
                found.append(self._codec.typed(message))
            except InvalidBody as error:
                await self._queue.bury(message, str(error))
        return found

    async def get(self, id: str) -> TypedMessage[T] | None:  # noqa: A002 - the word of the API
        """Return a message by its id, None if it is unknown; raises InvalidBody."""
        message = await self._queue.get(self.name, id)
        return None if message is None else self._codec.typed(message)
