"""Bodies as values of a type: Structs, dataclasses, Pydantic models, and other types of JSON."""

from collections.abc import Callable, Sequence
from reprlib import repr as shortly
from typing import Any, Generic, TypeVar, cast

import msgspec

from dwell.errors import InvalidBody
from dwell.given import values
from dwell.message import MAX_ERROR_CHARS, Message
from dwell.queue import kinds
from dwell.queue.models import models
from dwell.queue.same import same

T = TypeVar("T")

#: Reads the name of a class, even if its metaclass defines ``__name__``.
_NAME = type.__dict__["__name__"].__get__


class TypedMessage(Message, Generic[T], frozen=True, kw_only=True):
    """A message, and its body as the ``value`` that it was put as."""

    value: T


class Codec(Generic[T]):
    """Bodies of one type, in JSON.

    The type is a Struct of msgspec, a dataclass, or any other that msgspec knows (``dict[str,
    int]``, a TypedDict). Pydantic reads its models, and types that contain models or constraints of
    Pydantic (``list[Model]``). Raises InvalidBody for a type that JSON cannot encode.
    """

    def __init__(self, kind: type[T]) -> None:
        self._decode: Callable[[bytes], Any]
        self._encoders: Sequence[Callable[[Any], bytes]]
        try:
            self._name = str(getattr(kind, "__name__", kind))
            self._decode, self._encoders = _both_ways(kind)
        except Exception as error:
            # Inspecting a type may raise any error.
            allowed = "a Struct, a dataclass, a model of Pydantic, or a type that JSON can say"
            raise values.refusal(InvalidBody, "kind", kind, f"{allowed}: {_text(error)}") from None

    def encode(self, value: T) -> bytes:
        """Return a value as a body; raises InvalidBody if it would not be read back the same."""
        try:
            body = self._encoders[0](value)
            if self._decode(body) == value:
                return body
        except Exception:
            # The code below looks for another encoding, and for the reason.
            pass
        return self._written(value)

    def decode(self, body: bytes) -> T:
        """Return the value of a body; raises InvalidBody."""
        try:
            return cast(T, self._decode(body))
        except Exception as error:
            # A type's own checks may raise any error.
            raise self._refusal(_text(error)) from None

    def typed(self, message: Message) -> TypedMessage[T]:
        """Return a message with its value; raises InvalidBody."""
        return TypedMessage(**msgspec.structs.asdict(message), value=self.decode(message.body))

    def _written(self, value: T) -> bytes:
        """Return a value as a body in the first way that it comes back from; raises InvalidBody."""
        reasons = []
        for encoder in self._encoders:
            try:
                body = encoder(value)
                taken = self._decode(body)
                if same(value, taken):
                    # The next value is most likely to need the same way.
                    others = (other for other in self._encoders if other is not encoder)
                    self._encoders = (encoder, *others)
                    return body
                reasons.append(f"it would be taken as {shortly(taken)}, not as {shortly(value)}")
            except Exception as error:
                reasons.append(_text(error))
        raise self._refusal(reasons[0])

    def _refusal(self, why: str) -> InvalidBody:
        return InvalidBody(f"body: is no {self._name}: {why}")


def _both_ways(kind: Any) -> tuple[Callable[[bytes], Any], Sequence[Callable[[Any], bytes]]]:
    """Return how bodies of a type are read and written; raises any error if they cannot be."""
    if any(map(kinds.is_of_pydantic, kinds.within(kind))):
        return models(kind)
    decode = msgspec.json.Decoder(kind).decode
    if (part := kinds.unsayable(kind)) is not None:
        raise TypeError(f"JSON cannot say {part}")
    return decode, (msgspec.json.encode,)


def _text(error: Exception) -> str:
    """Return the text of an exception, or its class without one, cut to the kept length.

    A message whose refusal had no text would come back for ever.
    """
    try:
        # An instance of a subclass of str may do anything when it is used; a plain str does not.
        return str.__str__(str(error))[:MAX_ERROR_CHARS] or type(error).__name__
    except Exception:
        return cast(str, _NAME(type(error)))
