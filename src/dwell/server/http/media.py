"""Media types: the forms of messages in requests and answers, and the choice of the caller."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from dwell.server.http.answer import Refusal
from dwell.wire import columns


class Media(StrEnum):
    """A form of messages, by its content type."""

    JSON = "application/json"
    MSGPACK = "application/msgpack"
    NDJSON = "application/x-ndjson"
    ARROW = "application/vnd.apache.arrow.stream"
    COLUMNS = columns.MEDIA_TYPE


_ANY = {"", "*/*", "application/*"}


#: The form of each content type; a file of Arrow is read as a stream is.
_FORMS = {media.value: media for media in Media} | {
    "application/vnd.apache.arrow.file": Media.ARROW,
}
_AS_WRITTEN = {name.encode(): media for name, media in _FORMS.items()}


def given(content_type: bytes | None, allowed: Sequence[Media]) -> Media:
    """Return the form of a request's body; answers 415 when it is not one of those allowed.

    A body without a type is refused too: a page of the web could otherwise make a browser send
    one to a server on this machine.
    """
    usual = _AS_WRITTEN.get(content_type or b"")
    if usual is not None and usual in allowed:
        return usual
    name = (content_type or b"").decode("latin-1").partition(";")[0].strip().lower()
    if (form := _FORMS.get(name)) is not None and form in allowed:
        return form
    raise Refusal(415, f"content-type: got {name or 'none'}, expected {_list(allowed)}")


def asked(accept: str | None, allowed: Iterable[Media]) -> Media:
    """Return the first form that a caller accepts; raises Refusal with 406 if it accepts none."""
    if not accept:
        return Media.JSON
    for part in accept.split(","):
        name = part.partition(";")[0].strip().lower()
        if name in _ANY:
            return Media.JSON
        for media in allowed:
            if media == name:
                return media
    raise Refusal(406, f"accept: got {accept}, expected {_list(allowed)}")


def _list(allowed: Iterable[Media]) -> str:
    return " or ".join(allowed)
