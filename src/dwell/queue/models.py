"""Types that only Pydantic knows, in JSON: models, what is made of them, and its constraints."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

#: What reads no JSON at all.
_NEVER = ("is-instance", "is-subclass", "callable")

#: What can be read only if all of its parts can: no unions, defaults and functions.
_WHOLE = {"model", "model-fields", "model-field", "dataclass", "dataclass-args", "dataclass-field"}
_WHOLE |= {"list", "set", "frozenset", "tuple", "dict", "custom-error"}


class Models(NamedTuple):
    """How bodies of a type are read by Pydantic, and how they are written."""

    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]


def models(kind: Any) -> Models:
    """Return how bodies of a type are read and written; raises what Pydantic raises, or TypeError.

    Pydantic is loaded only here, where a type needs it.
    """
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    if _is_never_read(adapter.core_schema):
        raise TypeError("a part of it is read from no JSON")
    # Whether a value is of the type is found out by reading it again, so nobody is warned.
    encode = functools.partial(adapter.serializer.to_json, warnings=False)
    return Models(adapter.validator.validate_json, encode)


def _is_never_read(schema: Any) -> bool:
    """Tell whether a type has a part that every body needs and none can say."""
    named: dict[str, Any] = {}
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if one.get("type") == "definition-ref":
            # A type may be made of itself, so that each is looked at once.
            waiting += [named.pop(one["schema_ref"], {})]
        elif one.get("type") == "definitions":
            named |= {each["ref"]: each for each in one["definitions"]}
            waiting.append(one["schema"])
        elif one.get("type") in _NEVER:
            return True
        elif one.get("type") in _WHOLE:
            waiting += _inner(one)
    return False


def _inner(schema: Any) -> Iterator[Any]:
    for name in ("schema", "items_schema", "keys_schema", "values_schema", "fields"):
        part = schema.get(name, ())
        is_named = isinstance(part, dict) and name == "fields"
        each = part.values() if is_named else [part] if isinstance(part, dict) else part
        # A dataclass says here also the names of its fields.
        yield from (one for one in each if isinstance(one, dict))
