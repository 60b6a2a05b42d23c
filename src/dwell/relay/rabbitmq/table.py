"""Values of AMQP's field tables, as RabbitMQ writes them.

The client would write a double as a float of half its bits, so it is not used here.
"""

import struct
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

_INT32 = range(-(2**31), 2**31)
#: The sizes in bytes of types with a fixed size, of types with a size prefix, and of the latter's
#: types with values in them.
_FIXED = {b"t": 1, b"I": 4, b"l": 8, b"D": 5, b"d": 8, b"T": 8, b"V": 0}
_SIZED = (b"S", b"x", b"A", b"F")
_NESTED = (b"A", b"F")
#: The last second of the year 9999: most clients cannot read a later time, and fail at it.
_LAST_S = 253_402_300_799


def entry(name: str, value: bytes) -> bytes:
    """Return an entry of a table; the value is preceded by its type."""
    data = name.encode()
    return len(data).to_bytes(1) + data + value


def text(data: bytes) -> bytes:
    """Return a text, which is bytes to AMQP."""
    return b"S" + len(data).to_bytes(4) + data


def value(given: Any) -> bytes:
    """Return a value preceded by its type; a number gets one of two widths."""
    if isinstance(given, bool):
        return b"t" + given.to_bytes(1)
    for kind, write in _BY_TYPE.items():
        if isinstance(given, kind):
            return write(given)
    assert given is None, type(given)
    return b"V"


def table(given: Mapping[str, Any]) -> bytes:
    """Return a table, without a type before it."""
    data = b"".join(entry(name, value(one)) for name, one in given.items())
    return len(data).to_bytes(4) + data


def check(data: bytes) -> None:
    """Raise ValueError unless the data are a single value preceded by its type, as written here."""
    # Each part has its end, and its content: one value, values, or names with values.
    parts = [(0, len(data), b"")]
    while parts:
        at, end, kind = parts.pop()
        while at < end or not data:
            if kind == b"F":
                at = _sized(data, at, 1, end)
            type_, at = data[at : at + 1], at + 1
            if type_ in _FIXED:
                first, at = at, at + _FIXED[type_]
                if type_ == b"T":
                    check_time(int.from_bytes(data[first:at]))
            elif type_ in _SIZED:
                first, at = at + 4, _sized(data, at, 4, end)
                parts += [(first, at, type_)] if type_ in _NESTED else []
            else:
                raise ValueError(f"got the type {type_!r}")
            if at > end or (not kind and at < end):
                raise ValueError(f"got {end} bytes, expected {at}")


def check_time(time_s: int) -> None:
    """Raise ValueError for a time that most clients cannot read."""
    if not 0 <= time_s <= _LAST_S:
        raise ValueError(f"got the time {time_s} s, expected 0 to {_LAST_S}")


def _sized(data: bytes, at: int, width: int, end: int) -> int:
    """Return the end of data preceded by their size, which has ``width`` bytes."""
    after = at + width + int.from_bytes(data[at : at + width])
    if after > end:
        raise ValueError(f"got {end} bytes, expected {after}")
    return after


def _integer(given: int) -> bytes:
    if given in _INT32:
        return b"I" + given.to_bytes(4, signed=True)
    return b"l" + given.to_bytes(8, signed=True)


def _decimal(given: Decimal) -> bytes:
    exponent = given.as_tuple().exponent
    scale = -exponent if isinstance(exponent, int) and exponent < 0 else 0
    return b"D" + struct.pack(">Bi", scale, int(given.scaleb(scale)))


def _array(given: list[Any]) -> bytes:
    data = b"".join(map(value, given))
    return b"A" + len(data).to_bytes(4) + data


_BY_TYPE: dict[type, Callable[[Any], bytes]] = {
    str: lambda given: text(given.encode()),
    int: _integer,
    float: lambda given: b"d" + struct.pack(">d", given),
    bytes: text,
    bytearray: lambda given: b"x" + len(given).to_bytes(4) + given,
    datetime: lambda given: b"T" + int(given.timestamp()).to_bytes(8),
    Decimal: _decimal,
    list: _array,
    dict: lambda given: b"F" + table(given),
}
