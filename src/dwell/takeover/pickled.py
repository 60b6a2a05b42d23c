"""Pickles read as text: no object is made, nothing is imported and nothing is called.

Each instruction of a pickle (``pickletools``, protocols 2 to 5) builds plain values. What would be
an import is a name, and what would be a call is its name and its arguments.

A short pickle can repeat a value so often that its text, or two of them compared, would take for
ever: so nothing is done with what is read but to ask for its type.
"""

import pickletools
from collections.abc import Callable
from typing import Any

from dwell.errors import InvalidBody
from dwell.message import MAX_BODY_BYTES

_NOTHING = ("PROTO", "FRAME", "STOP")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_KEYS = (str, bytes, int, float, type(None))
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": lambda: Made(Name("EMPTY_SET"), ()),
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
#: Instructions whose argument is their value.
_VALUES = ("INT", "LONG", "FLOAT", "STRING", "UNICODE", "BYTES")
#: How many values of a pickle are looked at as data, and how deep.
_MOST_VALUES, _MOST_DEEP = 100_000, 50
#: The longest name, and the most bits of a number that is read, and of one that JSON can say.
_MOST_NAME_CHARS, _MOST_BITS, _MOST_JSON_BITS = 1_000, 65_536, 63


class Name:
    """A name of a module's, such as ``datetime:timedelta``."""

    def __init__(self, text: str) -> None:
        self.text = text


class Made:
    """What a call would return: the text of its name, its arguments, and the state set later.

    ``of`` is empty for the call of what a call has returned, which is in ``by``.
    """

    def __init__(self, of: Any, arguments: Any) -> None:
        if not isinstance(of, (Name, Made)):
            raise ValueError("got a call of what is no name")
        self.of = of.text if isinstance(of, Name) else ""
        self.by = of if isinstance(of, Made) else None
        self.arguments = arguments
        self.state: Any = None


def read(data: bytes) -> Any:
    """Return what a pickle describes, of plain values and :class:`Made`; raises InvalidBody."""
    try:
        return _Reader().read(data)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise InvalidBody(f"pickle: cannot be read without running it: {error}") from None


def plain(value: Any) -> bool:
    """Tell whether a value is what JSON can say."""
    todo, count, chars = [(value, 0)], 0, 0
    while todo:
        one, depth = todo.pop()
        count += 1
        if count > _MOST_VALUES or depth > _MOST_DEEP or chars > MAX_BODY_BYTES:
            return False
        if isinstance(one, str):
            chars += len(one)
        elif isinstance(one, dict):
            if not all(isinstance(key, str) for key in one):
                return False
            chars += sum(map(len, one))
            todo += [(item, depth + 1) for item in one.values()]
        elif isinstance(one, list):
            todo += [(item, depth + 1) for item in one]
        elif isinstance(one, int):
            if one.bit_length() > _MOST_JSON_BITS:
                return False
        elif not (one is None or isinstance(one, float)):
            return False
    return chars <= MAX_BODY_BYTES


def _short(text: str) -> str:
    """Return a part of a name; raises ValueError for a long one, before it is copied."""
    if len(text) > _MOST_NAME_CHARS:
        raise ValueError("got a name that is too long")
    return text


class _Reader:
    """The stack, the marks and the memo of one pickle."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def read(self, data: bytes) -> Any:
        for operation, argument, _ in pickletools.genops(data):
            self._do(operation.name, argument)
        return self._stack.pop()

    def _do(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _NOTHING:
            return
        if name == "MARK":
            self._marks.append(len(stack))
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name.endswith("BINPUT"):
            self._memo[argument] = stack[-1]
        elif name.endswith("BINGET"):
            stack.append(self._memo[argument])
        elif name in _TUPLES:
            stack.append(tuple(self._popped(_TUPLES[name])))
        elif name == "TUPLE":
            stack.append(tuple(self._marked()))
        elif any(word in name for word in _VALUES):
            if isinstance(argument, int) and argument.bit_length() > _MOST_BITS:
                raise ValueError("got a number that is too long")
            stack.append(argument)
        else:
            self._build(name, argument)

    def _build(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in ("APPEND", "APPENDS"):
            items = self._popped(1) if name == "APPEND" else self._marked()
            if not isinstance(stack[-1], Made):
                stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._popped(2) if name == "SETITEM" else self._marked()
            if not all(isinstance(key, _KEYS) for key in items[::2]):
                # To hash what is nested deeply may end the process.
                raise ValueError("got a key that is neither text nor a number")
            if not isinstance(stack[-1], Made):
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif name == "GLOBAL":
            stack.append(Name(argument.replace(" ", ":")))
        elif name == "STACK_GLOBAL":
            stack.append(Name(":".join(map(_short, self._popped(2)))))
        elif name in ("REDUCE", "NEWOBJ"):
            stack.append(Made(*self._popped(2)))
        elif name == "NEWOBJ_EX":
            of, arguments, _ = self._popped(3)
            stack.append(Made(of, arguments))
        elif name == "FROZENSET":
            stack.append(Made(Name(name), tuple(self._marked())))
        elif name == "ADDITEMS":
            self._marked()
        elif name == "BUILD":
            (state,) = self._popped(1)
            if not isinstance(stack[-1], Made):
                raise ValueError("got a state of what was not made")
            stack[-1].state = state
        else:
            raise ValueError(f"got the instruction {name}")

    def _popped(self, count: int) -> list[Any]:
        if len(self._stack) - (self._marks[-1] if self._marks else 0) < count:
            raise ValueError("got too few values")
        items = self._stack[-count:]
        del self._stack[-count:]
        return items

    def _marked(self) -> list[Any]:
        mark = self._marks.pop()
        items = self._stack[mark:]
        del self._stack[mark:]
        return items
