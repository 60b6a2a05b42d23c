"""Headers that came: unpacked when it is known that they are not too long.

A body may be of megabytes, and a mapping in memory is many times as large as it is written.
"""

from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct

from dwell.errors import InvalidHeaders
from dwell.message import MAX_HEADERS, MAX_HEADERS_BYTES
from dwell.server.http import elements
from dwell.server.http.call import Call, decoded
from dwell.server.http.media import Media

T = TypeVar("T", bound=Struct)

NONE = msgspec.Raw()

_decoder = msgspec.json.Decoder(dict[str, str] | None)
_packed_decoder = msgspec.msgpack.Decoder(dict[str, str] | None)
#: How long headers may be as they are written: JSON may say a sign in six, and more around each.
_MOST_BYTES = 6 * MAX_HEADERS_BYTES + 16 * MAX_HEADERS


def unpacked(raw: msgspec.Raw, field: str, *, packed: bool) -> dict[str, str] | None:
    """Return headers; what is too long for them is not unpacked. Raises InvalidHeaders."""
    data = memoryview(raw)
    if len(data) > _MOST_BYTES:
        allowed = f"a mapping of text to text, at most {MAX_HEADERS} of {MAX_HEADERS_BYTES} bytes"
        raise InvalidHeaders(f"{field}: got {len(data)} bytes of them, expected {allowed}")
    decoder = _packed_decoder if packed else _decoder
    try:
        found: dict[str, str] | None = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidHeaders(f"{field}: {error}") from None
    return found


def request_of(call: Call, kind: type[T]) -> T:
    """Return a body that has headers, or a filter that has.

    Raises InvalidInput and BatchTooLarge.
    """
    form = call.given
    # Headers are left as they are written; only lists of ids, and of what each gets, are read.
    if form is Media.JSON and "ids" in kind.__struct_fields__:
        elements.check(call.data, kind)
    found: T = decoded(call.data, _left_packed(kind), form)
    for part in (found, getattr(found, "filter", None)):
        raw = getattr(part, "headers", None)
        if isinstance(raw, msgspec.Raw):
            packed = form is Media.MSGPACK
            if len(memoryview(raw)) > 0:
                given = unpacked(raw, "headers", packed=packed) or {}
            else:
                given = _without_headers(type(part))  # type: ignore[arg-type]
            part.headers = given  # type: ignore[union-attr]
    return found


@cache
def _without_headers(kind: type[Any]) -> Any:
    """Return the headers of a request that names none: a change leaves them as they are."""
    (own,) = [f for f in msgspec.structs.fields(kind.__bases__[0]) if f.name == "headers"]
    return UNSET if own.default is UNSET else {}


@cache
def _left_packed(kind: type[Struct]) -> Any:
    """Return the same type, of which headers are left as they are written."""
    names = kind.__struct_fields__
    fields: list[tuple[str, Any, Any]] = []
    if "headers" in names:
        fields.append(("headers", msgspec.Raw, NONE))
    if "filter" in names:
        (one,) = [f for f in msgspec.structs.fields(kind) if f.name == "filter"]
        inner = next(t for t in one.type.__args__ if isinstance(t, type) and issubclass(t, Struct))
        fields.append(("filter", _left_packed(inner) | None, None))
    return msgspec.defstruct(kind.__name__, fields, bases=(kind,), kw_only=True)
