"""Values of AMQP's field tables, as RabbitMQ writes them.

The client would write a double as a float of half its bits, so it does not write them here.
"""

import struct
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

_INT32 = range(-(2**31), 2**31)


def entry(name: str, value: bytes) -> bytes:
    """Return an entry of a table; the value has its type before it."""
    data = name.encode()
    return len(data).to_bytes(1) + data + value


def text(data: bytes) -> bytes:
    """Return a text, which is bytes to AMQP."""
    return b"S" + len(data).to_bytes(4) + data


def value(given: Any) -> bytes:
    """Return a value with its type before it; numbers have the same value, in one of two widths."""
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
