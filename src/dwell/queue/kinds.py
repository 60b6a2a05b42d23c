"""The parts that a type consists of, and whether JSON can represent its values."""

import typing
from collections.abc import Iterator
from typing import Any, ClassVar

#: Attributes of classes whose values consist of fields with types.
_OF_FIELDS = (
    "__dataclass_fields__",
    "__struct_fields__",
    "__attrs_attrs__",
    "__total__",
    "_fields",
)

#: The Python values that JSON decodes to; a class that one of them is an instance of can be read.
_OF_JSON: tuple[Any, ...] = (None, True, 0, 0.5, "", [], {})


def within(kind: Any) -> Iterator[Any]:
    """Yield a type and all of its parts: arguments, fields, and annotations."""
    seen: dict[int, Any] = {}
    waiting = [kind]
    while waiting:
        one = waiting.pop()
        # Class variables are in no body. Each type is yielded once, also a recursive one.
        if id(one) not in seen and typing.get_origin(one) is not ClassVar:
            seen[id(one)] = one
            yield one
            waiting += _next_to(one)


def _next_to(kind: Any) -> Iterator[Any]:
    yield from typing.get_args(kind)
    for name in ("__origin__", "__supertype__", "__value__", "__bound__"):
        if (other := getattr(kind, name, None)) is not None:
            yield other
    if (fields := getattr(kind, "__pydantic_fields__", None)) is not None:
        for field in fields.values():
            yield from (field.annotation, *field.metadata)
    elif any(hasattr(kind, name) for name in _OF_FIELDS):
        yield from _hints(kind).values()


def _hints(kind: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:
        # The code that makes the decoder reports names that do not resolve.
        return {}


def is_of_pydantic(part: Any) -> bool:
    """Tell whether only Pydantic knows a part of a type: a model, or a constraint of its own.

    msgspec handles every Struct, even if the Struct tells Pydantic how to read it.
    """
    if hasattr(part, "__struct_fields__"):
        return False
    if hasattr(part, "__pydantic_fields__") or hasattr(part, "__get_pydantic_core_schema__"):
        return True
    owner = part if isinstance(part, type) else type(part)
    return str(owner.__module__).partition(".")[0] in ("pydantic", "annotated_types")


def unsayable(kind: Any) -> Any:
    """Return a part of a type that msgspec accepts but JSON cannot represent, or None.

    msgspec leaves classes that it does not know to hooks, and no hooks are set here.
    """
    # It is needed only here, and takes a while to load.
    from msgspec import inspect

    for node in _nodes(inspect.type_info(kind)):
        if isinstance(node, inspect.CustomType) and not _is_of_json(node.cls):
            return node.cls
        if isinstance(node, inspect.ExtType):
            return kind
        if isinstance(node, inspect.DictType) and isinstance(node.key_type, _no_keys()):
            return kind
    return None


def _is_of_json(cls: type[Any]) -> bool:
    """Tell whether a value of JSON can be an instance of a class, as all are of ``object``."""
    return any(isinstance(one, cls) for one in _OF_JSON)


def _no_keys() -> tuple[type[Any], ...]:
    """Return the types that a key of a JSON object, which is text, cannot be read as."""
    from msgspec import inspect

    plain = (inspect.BoolType, inspect.NoneType, inspect.RawType, inspect.CollectionType)
    return (*plain, inspect.TupleType, inspect.DictType, inspect.StructType, inspect.DataclassType)


def _nodes(root: Any) -> Iterator[Any]:
    """Yield each part of msgspec's description of a type, which may be recursive."""
    import msgspec

    seen: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        one = waiting.pop()
        if isinstance(one, tuple):
            waiting += one
        elif isinstance(one, msgspec.Struct) and id(one) not in seen:
            seen[id(one)] = one
            yield one
            waiting += [getattr(one, name) for name in one.__struct_fields__]
