"""Typed topics: what is put and taken are values of a type, and what does not fit is set aside."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec

from dwell.batch.batch import Batch
from dwell.batch.puts import Put, PutAnswer
from dwell.errors import InvalidBody
from dwell.given import values
from dwell.given.values import Delay
from dwell.message import Message
from dwell.queue.carrier import Carrier

T = TypeVar("T")


class TypedMessage(Message, Generic[T], frozen=True, kw_only=True):
    """A message, and its body as the ``value`` that it was put as."""

    value: T


class Codec(Generic[T]):
    """Bodies of one type, in JSON.

    The type is a Struct of msgspec, a dataclass, a model of Pydantic, or any other that msgspec
    knows (``dict[str, int]``, a TypedDict).
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._decode: Callable[[bytes], Any]
        self._encode: Callable[[Any], bytes]
        if (decode := getattr(kind, "model_validate_json", None)) is not None:
            self._decode = decode
            self._encode = _model_bytes
        else:
            try:
                self._decode = msgspec.json.Decoder(kind).decode
            except TypeError as error:
                allowed = "a Struct, a dataclass, a model of Pydantic, or a type that JSON can say"
                raise values.refusal(InvalidBody, "kind", kind, f"{allowed}: {error}") from None
            self._encode = msgspec.json.encode

    def encode(self, value: T) -> bytes:
        """Return a value as a body; raises InvalidBody for what could not be read again."""
        try:
            body = self._encode(value)
        except Exception as error:
            raise InvalidBody(f"body: {self._told(error)}") from None
        self.decode(body)
        return body

    def decode(self, body: bytes) -> T:
        """Return the value of a body; raises InvalidBody."""
        try:
            return cast(T, self._decode(body))
        except Exception as error:
            # A type's own checks may raise what they like.
            raise InvalidBody(f"body: {self._told(error)}") from None

    def typed(self, message: Message) -> TypedMessage[T]:
        """Return a message with its value; raises InvalidBody."""
        return TypedMessage(**msgspec.structs.asdict(message), value=self.decode(message.body))

    def _told(self, error: Exception) -> str:
        name = getattr(self._kind, "__name__", str(self._kind))
        return f"is no {name}: {error}"


def _model_bytes(value: Any) -> bytes:
    text: str = value.model_dump_json()
    return text.encode()


class Typed(Generic[T]):
    """One topic whose bodies are values of a type: ``queue.topic("orders", Order)``.

    What it gives are messages as any other, for ``queue.ack`` and the rest, with a ``value``.
    """

    def __init__(self, queue: Carrier, topic: str, kind: type[T]) -> None:
        self._queue = queue
        self.name = values.topic(topic)
        self._codec = Codec(kind)

    async def put(self, value: T, **words: Any) -> Put:
        """Put a value; ``words`` are those of :meth:`dwell.Queue.put`.

        Raises InvalidBody for what is not of the type.
        """
        return await self._queue.put(self.name, self._codec.encode(value), **words)

    async def put_many(self, given: Sequence[T], **words: Any) -> PutAnswer:
        """Put many values, all or none; ``words`` are those of :meth:`dwell.Queue.put_many`."""
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
        """Take at most ``limit`` messages that are due, as :meth:`dwell.Queue.take` does.

        What is not of the type is buried, with the reason, and not in the answer.
        """
        words = {"lease": lease, "owner": owner, "wait": wait}
        return await self.fitting(await self._queue.take(self.name, limit, **words))

    async def fitting(self, batch: Batch) -> list[TypedMessage[T]]:
        """Return those of a batch that are of the type, and bury the others, with the reason."""
        found: list[TypedMessage[T]] = []
        for message in batch:
            try:
                found.append(self._codec.typed(message))
            except InvalidBody as error:
                await self._queue.bury(message, str(error))
        return found

    async def get(self, id: str) -> TypedMessage[T] | None:  # noqa: A002 - the word of the API
        """Return a message by its id, None where it is unknown; raises InvalidBody."""
        message = await self._queue.get(self.name, id)
        return None if message is None else self._codec.typed(message)
