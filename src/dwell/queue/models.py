"""Types that only Pydantic knows, in JSON: models, types that contain them, and constraints."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from dwell.queue import kinds

#: The ways to write values, in addition to the default of their type. A round trip leaves out
#: computed fields, and writes fields of type Json as JSON.
_FORMS: tuple[dict[str, bool], ...] = (
    {},
    {"by_alias": True},
    {"by_alias": False},
    {"round_trip": True},
    {"round_trip": True, "by_alias": True},
    {"round_trip": True, "by_alias": False},
)

#: Schemas that can read no JSON.
_NEVER = ("is-instance", "is-subclass", "callable")

#: Schemas that can be read only if all of their parts can: no unions, defaults or functions.
_WHOLE = {"model", "model-fields", "model-field", "dataclass", "dataclass-args", "dataclass-field"}
_WHOLE |= {"list", "set", "frozenset", "tuple", "dict", "custom-error"}


class Models(NamedTuple):
    """The decoder that Pydantic makes for a type, and the encoders for the ways to write it."""

    decode: Callable[[bytes], Any]
    encoders: Sequence[Callable[[Any], bytes]]


def models(kind: Any) -> Models:
    """Return how bodies of a type are read and written; raises what Pydantic raises, or TypeError.

    Pydantic is loaded only here, where a type needs it.
    """
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    if _is_never_read(adapter.core_schema):
        raise TypeError("a part of it is read from no JSON")
    # Values are checked by reading them back, so warnings are not needed.
    dump = functools.partial(adapter.serializer.to_json, warnings=False)
    encoders = [functools.partial(dump, **form) for form in _forms(kind)]
    return Models(adapter.validator.validate_json, encoders)


def _forms(kind: Any) -> Sequence[dict[str, bool]]:
    """Return the ways to write values of a type, in the order of the attempts.

    If a model reads a field by its alias only, aliases come first: otherwise a default could hide
    from the comparison that a name was not read.
    """
    if any(map(_reads_aliases, kinds.within(kind))):
        return sorted(_FORMS, key=lambda form: not form.get("by_alias"))
    return _FORMS


def _reads_aliases(part: Any) -> bool:
    """Tell whether a part of a type is a model that reads a field by its alias, not its name."""
    if not (fields := getattr(part, "__pydantic_fields__", {})):
        return False
    config = getattr(part, "model_config", None) or getattr(part, "__pydantic_config__", None) or {}
    if config.get("populate_by_name") or config.get("validate_by_name"):
        return False
    return any(field.validation_alias is not None for field in fields.values())


def _is_never_read(schema: Any) -> bool:
    """Tell whether a type has a part that every body needs and none can say."""
    named: dict[str, Any] = {}
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if one.get("type") == "definition-ref":
            # A type may be recursive, so each is examined once.
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
