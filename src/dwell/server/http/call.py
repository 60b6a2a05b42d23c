"""A call: one request, read and checked, and how it is answered."""

from collections.abc import Iterable
from functools import cache, partial
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec
import numpy as np
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope

from dwell.batch.batch import Batch
from dwell.errors import BatchTooLarge, InvalidInput
from dwell.given import values
from dwell.message import I64, MAX_BATCH_BYTES
from dwell.queue import Queue
from dwell.server.http import media
from dwell.server.http.connection import Connection
from dwell.server.http.media import Media
from dwell.server.http.waits import Waits
from dwell.server.service import Service
from dwell.server.tokens import Right

T = TypeVar("T")

#: The largest body of a request: a batch in JSON, its bodies in base64, and the rest beside them.
MAX_REQUEST_BYTES = 2 * MAX_BATCH_BYTES

_BEARER = "bearer "
_OTHER_SITES = ("cross-site", "same-site")
_MOST_DIGITS = 18


class Asked(Protocol):
    """What a call has to know of its endpoint."""

    @property
    def right(self) -> Right | None:
        """The right that it needs, or None where everybody may."""

    @property
    def takes(self) -> tuple[Media, ...]:
        """The forms of its body."""

    @property
    def gives(self) -> tuple[Media, ...]:
        """The forms of its answer; none for one of a form of its own."""


class Call:
    """One request to one endpoint.

    ``asked`` is the form of the answer; ``taken`` is what the answer hands over.
    """

    __slots__ = (
        "asked",
        "connection",
        "endpoint",
        "headers",
        "path",
        "receive",
        "scope",
        "service",
        "size_bytes",
        "taken",
        "waits",
    )

    def __init__(
        self, service: Service, waits: Waits, endpoint: Asked, scope: Scope, receive: Receive
    ) -> None:
        self.service = service
        self.waits = waits
        self.endpoint = endpoint
        self.scope = scope
        self.receive = receive
        self.connection: Connection = scope["state"]["connection"]
        self.path: dict[str, str] = scope["path_params"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.size_bytes = 0
        self.taken: Batch | None = None
        self.asked: Media

    # --- who ----------------------------------------------------------------------------------

    @property
    def queue(self) -> Queue:
        """The queue that is served."""
        return self.service.queue

    def check(self) -> None:
        """Refuse what shows in the head, before anything is read or done.

        That is a caller without any right, a page of the web that makes a browser call, and one
        who accepts no form of the answer.
        """
        hosts = [value for name, value in self.scope["headers"] if name == b"host"]
        refusal = self.service.hosts.refusal(hosts)
        if refusal is not None:
            raise HTTPException(403, refusal)
        if self.endpoint.right is None:
            return
        self.allow(())
        origin = self._header(b"origin")
        is_strange = origin is not None and urlsplit(origin).netloc != self._header(b"host")
        if is_strange or self._header(b"sec-fetch-site") in _OTHER_SITES:
            raise HTTPException(403, f"origin: got {origin or 'another site'}, expected none")
        if self.endpoint.gives:
            self.asked = media.asked(self._header(b"accept"), self.endpoint.gives)

    def allow(self, topics: Iterable[str] | None, right: Right | None = None) -> None:
        """Refuse a caller who lacks the endpoint's right on some topics (None: on all)."""
        right = right or self.endpoint.right
        if right is not None and not self.service.tokens.is_open:
            self.service.tokens.check(self._token(), right, topics)

    def _token(self) -> str | None:
        """Return the caller's token; one of several is as good as none."""
        given = [value for name, value in self.scope["headers"] if name == b"authorization"]
        header = given[0].decode("latin-1") if len(given) == 1 else ""
        return header[len(_BEARER) :].strip() if header.lower().startswith(_BEARER) else None

    def reached(self, due_ms: I64) -> I64:
        """Return dues, with now for those that have come by the caller's clock, if not by ours.

        A client of ours says in ``dwell-now-ms`` what time it takes it to be here, a round trip
        ahead at most. What it puts as due now has to be due when the answer comes.
        """
        if not self.their_ms:
            return due_ms
        now_ms = self.queue.clock.now_ms()
        return np.where((due_ms > now_ms) & (due_ms <= self.their_ms), now_ms, due_ms)

    @property
    def their_ms(self) -> int:
        """What time it is by the caller's clock; 0 where that is not said."""
        theirs = self._header(b"dwell-now-ms") or ""
        is_number = theirs.isascii() and theirs.isdigit() and len(theirs) <= _MOST_DIGITS
        return int(theirs) if is_number else 0

    def _header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    # --- what ---------------------------------------------------------------------------------

    def allowed_topic(self) -> str:
        """Return the topic that the path names; refuses a caller who lacks the right on it."""
        topic = values.topic(self.path["topic"])
        self.allow([topic])
        return topic

    def query(self, kind: type[T]) -> T:
        """Return the parameters of the query; raises InvalidInput."""
        text = self.scope["query_string"].decode("latin-1")
        given = parse_qsl(text, keep_blank_values=True) if text else []
        pairs = dict(given)
        if len(pairs) != len(given):
            raise InvalidInput("query: a parameter is given twice")
        try:
            return msgspec.convert(pairs, kind, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidInput(f"query: {error}") from None

    @property
    def given(self) -> Media:
        """The form of the body."""
        return media.given(self._header(b"content-type"), self.endpoint.takes)

    async def body(self, kind: type[T]) -> T:
        """Return the body; raises InvalidInput."""
        form = self.given
        data = await self.read()
        value: T = decoded(data, kind, form)
        return value

    async def read(self) -> bytes:
        """Return the bytes of the body, counted at the gate until the call is over."""
        self._check_size(int(self.headers.get(b"content-length", 0)))
        chunks, has_more = [], True
        while has_more:
            event = await self.receive()
            if event["type"] == "http.disconnect":
                raise HTTPException(400, "the connection ended before the body did")
            chunk, has_more = event["body"], event["more_body"]
            # Only what has come is counted: who announces much and sends nothing holds up nobody.
            self._check_size(self.size_bytes + len(chunk))
            self.service.gate.enter(len(chunk), 0)
            self.size_bytes += len(chunk)
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > MAX_REQUEST_BYTES:
            raise BatchTooLarge(
                f"body: got more than {MAX_REQUEST_BYTES} bytes in one request, expected fewer"
            )

    # --- what is taken ------------------------------------------------------------------------

    def note_taken(self, batch: Batch) -> None:
        """Note messages that the answer is about to hand over; without it they are given back."""
        self.taken = batch
        self.service.note_taken(batch)

    def deliver(self) -> None:
        """Give what was taken back if the answer, which was just written, does not go out."""
        if self.taken is not None:
            self.connection.deliver(partial(self.waits.returns.give_back, self.queue, self.taken))
            self.taken = None

    def give_back(self) -> None:
        """Give back what was taken: there is no answer that would hand it over."""
        if self.taken is not None:
            self.waits.returns.give_back(self.queue, self.taken)
            self.taken = None

    # --- the answer ---------------------------------------------------------------------------

    def answer(self, value: object, status: int = 200) -> Response:
        """Return an answer in JSON or MessagePack, as the caller asks."""
        if self.asked is Media.MSGPACK:
            return response(msgspec.msgpack.encode(value), Media.MSGPACK, status)
        return response(msgspec.json.encode(value), Media.JSON, status)


def decoded(data: bytes, kind: Any, form: Media) -> Any:
    """Return a value of some type from its bytes; raises InvalidInput."""
    try:
        return _decoder(kind, form).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"body: {error}") from None


@cache
def _decoder(kind: Any, form: Media) -> "msgspec.json.Decoder[Any] | msgspec.msgpack.Decoder[Any]":
    return msgspec.json.Decoder(kind) if form is Media.JSON else msgspec.msgpack.Decoder(kind)


class _Answer(Response):
    """An answer of some bytes, which needs no headers but those that say what they are."""

    def __init__(self, data: bytes, form: Media, status: int) -> None:
        self.status_code = status
        self.background = None
        self.body = data
        size = str(len(data)).encode()
        self.raw_headers = [(b"content-length", size), (b"content-type", form.encode())]


def response(data: bytes, form: Media, status: int = 200) -> Response:
    """Return an answer of some bytes."""
    return _Answer(data, form, status)
