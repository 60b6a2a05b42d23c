"""A call: one request, read and checked, and how it is answered."""

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec
import numpy as np

from dwell.batch.batch import Batch
from dwell.batch.calls import first_of_caller
from dwell.batch.puts import PutAnswer, Puts
from dwell.digits import number_of
from dwell.errors import (
    BatchTooLarge,
    InvalidInput,
    InvalidReceipt,
    ServerBusy,
    ServerUnreachable,
)
from dwell.given import values
from dwell.message import I64, MAX_BATCH_BYTES
from dwell.queue import Queue
from dwell.queue.calling import Calling, calling_now
from dwell.queue.schedules.schedule import TOPIC as SCHEDULES
from dwell.server.http import elements, media
from dwell.server.http.answer import Answer, Refusal
from dwell.server.http.body import Body, Data
from dwell.server.http.delivery import Delivery
from dwell.server.http.media import Media
from dwell.server.http.scope import Scope
from dwell.server.http.waits import Waits
from dwell.server.quotas import Room
from dwell.server.service import Service
from dwell.server.shares import Share
from dwell.server.tokens import Grant, Right, check_grant
from dwell.wire.callnumber import CALL_HEADER, MOST_REPEATS, parse_call
from dwell.wire.unknown import explained

T = TypeVar("T")

#: The largest body of a request: a batch in JSON with its bodies in base64, and its other fields.
MAX_REQUEST_BYTES = 2 * MAX_BATCH_BYTES
#: How many topics a request may wait on.
MOST_WAITING_TOPICS = 1000
#: How many earlier sends of a take are refused if they arrive after its repeat.
_MOST_LATE = 4
#: The memory that an answer takes while it is made: its messages as read, and as sent.
MOST_ANSWER_BYTES = 2 * MAX_BATCH_BYTES
#: The largest body of a request that brings no messages: the most ids allowed, and more.
MAX_ASK_BYTES = 8 * 1024 * 1024

_NOTHING: Mapping[str, Any] = MappingProxyType({})

_BEARER = "bearer "
_OTHER_SITES = ("cross-site", "same-site")
#: A clock that differs by more from a caller's estimate was set since.
_SET_MS = 500
_CALL = CALL_HEADER.encode()
_NOW = b"dwell-now-ms"

#: The headers that a call reads.
HEADERS = frozenset(
    (b"host", b"authorization", b"content-type", b"accept", b"origin", b"sec-fetch-site")
) | {_CALL, _NOW}


class Asked(Protocol):
    """The properties of its endpoint that a call needs."""

    @property
    def name(self) -> str:
        """The name of the endpoint."""

    @property
    def handler(self) -> "Callable[[Call], Awaitable[Answer]]":
        """The function that answers the request."""

    @property
    def rights(self) -> tuple[Right, ...]:
        """The rights that allow the call, any one of them; empty if everybody may call it."""

    @property
    def scope(self) -> Scope:
        """On which topics it needs that."""

    @property
    def also(self) -> Right | None:
        """The right that it needs on the topic which the body names, too."""

    @property
    def path(self) -> str:
        """The template of its paths."""

    @property
    def audited(self) -> bool:
        """Whether requests are for the audit log."""

    @property
    def most_bytes(self) -> int:
        """The limit of its body."""

    @property
    def is_long(self) -> bool:
        """Whether it looks through much, for a few callers at a time."""

    @property
    def numbered(self) -> bool:
        """Whether requests may say their call number."""

    @property
    def takes(self) -> tuple[Media, ...]:
        """The forms of its body."""

    @property
    def gives(self) -> tuple[Media, ...]:
        """The media types of its answer; empty for an answer with a form of its own."""


#: An endpoint, the parts of the path that it has names for, and the query as it was sent.
Routed: TypeAlias = tuple[Asked, dict[str, str], str]


class Call:
    """One request to one endpoint, from its head on.

    ``asked`` is the form of the answer; ``taken`` are the messages that the answer delivers;
    ``token`` is the name of the caller's token, empty without one. ``change`` are the fields for
    the audit log, if the request ``is_audited``; ``size_bytes`` is the size of the received body.
    """

    __slots__ = (
        "_allowed",
        "_body",
        "_came_ms",
        "_has_look",
        "_in_flight",
        "_is_counted",
        "_reserved_bytes",
        "asked",
        "change",
        "delivery",
        "endpoint",
        "headers",
        "is_audited",
        "path",
        "query_text",
        "service",
        "size_bytes",
        "taken",
        "token",
        "waits",
    )

    def __init__(
        self,
        service: Service,
        waits: Waits,
        route: Routed,
        headers: dict[bytes, bytes],
        delivery: Delivery,
    ) -> None:
        self.service = service
        self.waits = waits
        self.endpoint, self.path, self.query_text = route
        self.headers = headers
        self._came_ms = service.queue.clock.now_ms()
        self.delivery = delivery
        self.taken: Batch | None = None
        self.token = ""
        self.is_audited = self.endpoint.audited
        self.change: Mapping[str, Any] = _NOTHING
        if (topic := self.path.get("topic")) is not None:
            self.mark_change((topic,))
        self.size_bytes = 0
        self.asked: Media
        self._body = Body()
        self._is_counted = False
        self._reserved_bytes = 0
        self._has_look = False
        self._allowed: tuple[Any, ...] | None = None
        # The server's, until the token of the request is known.
        self._in_flight = service.in_flight

    # --- requests in flight --------------------------------------------------------------------

    def enter(self) -> None:
        """Count the request as in flight; raises ServerBusy or StoreFull.

        Endpoints without rights are not counted, so that monitoring works under overload.
        """
        if self.endpoint.rights:
            self.service.in_flight.enter()
            self._is_counted = True
            self.delivery.in_flight = self._in_flight

    def leave(self) -> None:
        """Count the request and its body out."""
        if self._is_counted:
            self._in_flight.leave(self._body.size_bytes)
            self._is_counted = False
        # The parts of an answer keep the call for as long as they last.
        self._body = Body()

    @contextmanager
    def waiting(self, topics: int) -> Iterator[None]:
        """Count the request as only waiting, for the length of a block; raises ServerBusy.

        The memory that it holds for each of its topics stays counted as in flight.
        """
        self.check_waiting(len(self.waits))
        with self.keeping_topics(topics), self._in_flight.left():
            yield

    @contextmanager
    def keeping_topics(self, topics: int) -> Iterator[None]:
        """Count the memory of a wait on topics, for the length of a block; raises ServerBusy."""
        kept_bytes = self._in_flight.keep_topics(topics)
        try:
            yield
        finally:
            self._in_flight.leave(kept_bytes, 0)

    def check_waiting(self, waiting: int) -> None:
        """Refuse one waiting taker more than the server or the token may have."""
        self.service.check_waiting(waiting)
        if isinstance(self._in_flight, Share):
            self._in_flight.check_waiting()

    def watching(self, most: int) -> AbstractContextManager[None]:
        """Count a stream of watch, up to ``most`` of them; raises ServerBusy."""
        return self._in_flight.watch(most) if isinstance(self._in_flight, Share) else nullcontext()

    def streaming(self) -> AbstractContextManager[None]:
        """Count the request as a stream that waits, for the length of a block."""
        return self._in_flight.wait() if isinstance(self._in_flight, Share) else nullcontext()

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Wait for a turn to search much data, and hold it for the length of a block.

        Raises ServerBusy if the client has gone during the wait, and AccessDenied if its rights
        have ended.
        """
        await self._enter_look()
        try:
            if self.delivery.is_lost:
                raise ServerBusy("the client has gone")
            self.check_again()
            yield
        finally:
            self._leave_look()

    async def _enter_look(self) -> None:
        await self._in_flight.enter_look()
        self._has_look = True

    def _leave_look(self) -> None:
        if self._has_look:
            self._has_look = False
            self._in_flight.leave_look()

    @property
    def large_takes(self) -> asyncio.Semaphore:
        """The semaphore that bounds how many large takes run at a time."""
        return self._in_flight.takes

    async def reserve_answer(self, size_bytes: int, *, is_held: bool = False) -> None:
        """Reserve memory for an answer until it is sent; waits for memory that others reserved.

        ``is_held``: the messages are in memory already. Raises ServerBusy, and StoreFull if the
        process lacks memory for it.
        """
        size_bytes = min(size_bytes, MOST_ANSWER_BYTES)
        more_bytes = size_bytes - self._reserved_bytes
        if more_bytes > 0:
            has_look = self._has_look
            if not self._in_flight.answers.has_room(more_bytes):
                # Others look while this one waits for answers that are not read.
                self._leave_look()
            await self._in_flight.answers.enter(more_bytes, is_held=is_held)
            self._reserved_bytes += more_bytes
            if has_look and not self._has_look:
                await self._enter_look()
            self.check_again()
            self._in_flight.check_memory(size_bytes)

    def made_answer(self, answer: Answer) -> Answer:
        """Reserve as much as an answer takes, now that it is made, and return it."""
        if self._reserved_bytes:
            self._in_flight.answers.change(self._reserved_bytes, len(answer.data))
            self._reserved_bytes = len(answer.data)
        return answer

    def release_answer(self) -> None:
        """Release the reserved memory: the answer is sent."""
        if self._reserved_bytes:
            self._in_flight.answers.leave(self._reserved_bytes)
            self._reserved_bytes = 0

    @property
    def has_reserved(self) -> bool:
        """Whether there is something to be released."""
        return self._reserved_bytes > 0

    def stream(self) -> AbstractContextManager[None]:
        """Count it as a stream of the caller's quota, for the length of a block."""
        return self.service.quotas.stream(self.token)

    async def put_puts(self, puts: Puts, on_conflict: str) -> PutAnswer:
        """Put columns; raises StoreFull if they exceed the caller's quota."""
        has_put = await self._has_put(len(puts))
        if self.service.quotas.has(self.token) and not has_put:
            async with self.room(puts.topic, len(puts), puts.size_bytes) as room:
                answer = await self.queue.put_puts(puts, on_conflict)
                if room is not None:
                    room.done(answer.results)
            return answer
        # Many messages are read in turns with other requests.
        self.check_again()
        return await self.queue.put_puts(puts, on_conflict)

    async def _has_put(self, count: int) -> bool:
        """Tell whether this repeats a request whose messages were all put, and so puts none.

        All messages are checked: if the first was put, others of the request may not have been.
        Raises ServerDraining or StoreFull if they are new and the server accepts no new messages.
        """
        has_put = await self.has_done(count)
        if not has_put and (calling := calling_now()) is not None and calling.is_again:
            self.service.check_puts()
        return has_put

    async def has_done(self, count: int) -> bool:
        """Tell whether this repeats a request that was done, for all of its next messages.

        The mark of a repeat alone says only that the request was sent before.
        """
        calling = calling_now()
        if calling is None or not calling.is_again:
            return False
        return bool((await self.queue.store.outcomes(calling.coming(count))).all())

    @asynccontextmanager
    async def room(self, topic: str, messages: int, size_bytes: int) -> AsyncIterator[Room | None]:
        """Count messages to put in the caller's quota, for the length of a block."""
        async with self.service.quotas.room(self.token, topic, messages, size_bytes) as room:
            self.check_again()
            yield room

    @asynccontextmanager
    async def growth_room(self, size_bytes: int) -> AsyncIterator[Room | None]:
        """Count a growth without a message in the caller's quota, for the length of a block."""
        async with self.service.quotas.growth_room(self.token, size_bytes) as room:
            self.check_again()
            yield room

    def add(self, data: bytes) -> None:
        """Add a part of the body, which counts as in flight until the call ends.

        Only received bytes count: a client that announces much and sends nothing blocks nobody.
        Raises BatchTooLarge, ServerBusy or StoreFull.
        """
        if not self._is_counted:
            return
        self.check_size(self._body.size_bytes + len(data))
        self._in_flight.enter(len(data), 0)
        self.size_bytes += len(data)
        self._body.add(data)

    def check_size(self, size_bytes: int) -> None:
        """Refuse a body that is larger than the endpoint allows; raises BatchTooLarge."""
        most_bytes = self.endpoint.most_bytes
        if size_bytes > most_bytes:
            raise BatchTooLarge(
                f"body: got more than {most_bytes} bytes in one request, expected fewer"
            )

    # --- the caller ---------------------------------------------------------------------------

    @property
    def queue(self) -> Queue:
        """The queue that is served."""
        return self.service.queue

    def check(self) -> None:
        """Check the head before anything is read or done.

        Refuses a caller without the right, a call that a web page makes through a browser, and a
        caller that accepts no form of the answer.
        """
        refusal = self.service.hosts.refusal(self.headers.get(b"host"))
        if refusal is not None:
            raise Refusal(403, refusal)
        if not self.endpoint.rights:
            return
        if not self.service.tokens.is_open:
            grant = self.grant
            self.token = grant.whose
            self.service.quotas.count_request(self.token)
            check_grant(grant, self.endpoint.rights, self._covered())
            share = self.service.share_of(self.token)
            share.join()
            self._in_flight = self.delivery.in_flight = share
        origin = self._header(b"origin")
        is_strange = origin is not None and _host_of(origin) != self._header(b"host")
        if is_strange or self._header(b"sec-fetch-site") in _OTHER_SITES:
            raise Refusal(403, f"origin: got {origin or 'another site'}, expected none")
        if self.endpoint.gives:
            self.asked = media.asked(self._header(b"accept"), self.endpoint.gives)

    def authorize(self) -> None:
        """Check the rights again when the body is complete: they may have changed since the head.

        The handler checks the rights on topics that the body names.
        """
        scope = self.endpoint.scope
        if self.endpoint.rights and scope is not Scope.NAMED and not self.service.tokens.is_open:
            check_grant(self.grant, self.endpoint.rights, self._covered())

    def check_again(self) -> None:
        """Refuse a request if the caller's rights ended while it waited; raises AccessDenied.

        Every wait that others can make long needs this check before anything is changed or shown.
        """
        self.authorize()
        if self._allowed is not None:
            self.allow(*self._allowed)

    def _covered(self) -> tuple[str, ...] | None:
        """Return the topics that the head names, None for all; empty if it names none."""
        scope = self.endpoint.scope
        if scope is Scope.ALL:
            return None
        if scope is Scope.TOPIC:
            return (values.topic(self.path["topic"]),)
        return (SCHEDULES,) if scope is Scope.SCHEDULES else ()

    def allow(self, topics: Iterable[str] | None, *rights: Right) -> None:
        """Refuse a caller that lacks the endpoint's rights on some topics (None: on all)."""
        if topics is not None:
            topics = tuple(topics)
            self.mark_change(topics)
        self._allowed = topics, *rights
        tokens, rights = self.service.tokens, rights or self.endpoint.rights
        if rights and not tokens.is_open:
            tokens.check(self._token(), rights, topics)

    def mark_change(self, topics: Sequence[str]) -> None:
        """Note changes of schedules for the audit log, as of messages of their topic."""
        if SCHEDULES in topics and Right.READ not in self.endpoint.rights:
            self.is_audited = True
            self.change = self.change or {"topics": topics[:10]}

    def may(self, topic: str, *rights: Right) -> bool:
        """Tell whether the caller may learn that a topic exists that it has not named.

        Refuses a caller that has the rights on no topic at all.
        """
        tokens, rights = self.service.tokens, rights or self.endpoint.rights
        if not rights or tokens.is_open:
            return True
        token = self._token()
        if tokens.allows(token, rights, topic):
            return True
        tokens.check(token, rights, ())
        return False

    def prefixes(self) -> tuple[str, ...]:
        """Return the prefixes of the topics that the caller has the endpoint's rights on.

        Refuses a caller that has them on no topic at all.
        """
        return self.service.tokens.prefixes(self._token(), self.endpoint.rights)

    @property
    def grant(self) -> Grant:
        """The rights of the caller; raises Unauthorized for an unknown token."""
        return self.service.tokens.grant(self._token())

    def _token(self) -> str | None:
        """Return the caller's token."""
        header = self._header(b"authorization") or ""
        return header[len(_BEARER) :].strip() if header.lower().startswith(_BEARER) else None

    def reached(self, due_ms: I64) -> I64:
        """Return due times, with now for each that is past by the caller's clock but not by ours.

        Our own clients send in ``dwell-now-ms`` their estimate of the server's time, which is ahead
        by a round trip at most. A message that they put as due now must be due in the answer.
        """
        if not self.their_ms:
            return due_ms
        now_ms = self.queue.clock.now_ms()
        return np.where((due_ms > now_ms) & (due_ms <= self.their_ms), now_ms, due_ms)

    @property
    def set_ms(self) -> int:
        """How far the server's clock was set since its last answer to the caller; 0 if it was not.

        What the caller has counted from its estimate of the server's time is off by that.
        """
        theirs_ms = self.their_ms
        set_ms = self._came_ms - theirs_ms if theirs_ms else 0
        return set_ms if abs(set_ms) > _SET_MS else 0

    @property
    def their_ms(self) -> int:
        """The time by the caller's clock; 0 if the request does not say it."""
        return number_of(self._header(_NOW) or "") or 0

    @property
    def calling(self) -> Calling | None:
        """The call numbers of the request's messages; raises InvalidInput.

        None if the request has no call number, or the store keeps no numbers. Then a repeat raises
        ServerUnreachable: its caller knows another store, and nobody knows what that has done.
        """
        said = self._header(_CALL)
        if said is None or not self.endpoint.numbered:
            return None
        number, is_again = parse_call(said)
        if not self.queue.store.keeps_calls:
            if is_again:
                raise ServerUnreachable(
                    "dwell-call: got a repeat, and this store keeps no answers: the first request "
                    "may have been done"
                )
            return None
        return Calling(first_of_caller(number, self.token), is_again=is_again)

    async def undo_takes(self, poll: str) -> None:
        """Release what earlier sends of this take have leased, if it is a repeat.

        Their wait of the name ``poll`` ends.
        """
        said = self._header(_CALL)
        if said is None or self.calling is None:
            return
        number, is_again = parse_call(said)
        if is_again:
            earlier = range(max(number - MOST_REPEATS, 1), number)
            numbers = [first_of_caller(one, self.token) for one in earlier]
            if poll:
                # The send before may still wait, on a connection whose loss is not known here.
                self.waits.end((self.token, poll))
            self.waits.undone.add(numbers[-_MOST_LATE:])
            await self.queue.store.undo_takes(np.array(numbers, np.uint64))

    def is_undone(self) -> bool:
        """Tell whether a repeat of this take came before it, so that nobody reads its answer."""
        calling = self.calling
        return calling is not None and calling.following in self.waits.undone

    def _header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    # --- the request --------------------------------------------------------------------------

    def allowed_topic(self) -> str:
        """Return the topic that the path names, on which there is a right."""
        assert self.endpoint.scope is Scope.TOPIC
        return values.topic(self.path["topic"])

    def query(self, kind: type[T]) -> T:
        """Return the parameters of the query; raises InvalidInput."""
        text = self.query_text
        try:
            given = parse_qsl(text, keep_blank_values=True, errors="strict") if text else []
        except UnicodeDecodeError as error:
            raise InvalidInput(f"query: {error}") from None
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
        return media.given(self.headers.get(b"content-type"), self.endpoint.takes)

    def body(self, kind: type[T]) -> T:
        """Return the body; raises InvalidInput and BatchTooLarge."""
        data, form = self.data, self.given
        if form is Media.JSON:
            elements.check(data, kind)
        value: T = decoded(data, kind, form)
        return value

    @property
    def data(self) -> Data:
        """The bytes of the body; they are kept only once."""
        return self._body.data

    # --- taken messages -----------------------------------------------------------------------

    def note_taken(self, batch: Batch) -> None:
        """Note messages that the answer is to deliver; without an answer they are released."""
        self.taken = batch
        self.service.note_taken(batch)

    def deliver(self) -> None:
        """Release the taken messages if the answer, which was just written, is not sent."""
        if self.taken is not None:
            self.delivery.deliver(partial(self.waits.returns.give_back, self.queue, self.taken))
            self.taken = None

    def give_back_from(self, place: int) -> None:
        """Release the taken messages from a place on: the answer has no room for them."""
        if self.taken is not None:
            self.waits.returns.give_back(self.queue, self.taken[place:])
            self.taken = self.taken[:place]

    def give_back(self) -> None:
        """Release the taken messages, as no answer delivers them."""
        if self.taken is not None:
            self.waits.returns.give_back(self.queue, self.taken)
            self.taken = None

    # --- the answer ---------------------------------------------------------------------------

    def answer(self, value: object, status: int = 200) -> Answer:
        """Return an answer in JSON or MessagePack, as the caller asks."""
        if self.asked is Media.MSGPACK:
            return Answer(msgspec.msgpack.encode(value), Media.MSGPACK, status)
        return Answer(msgspec.json.encode(value), Media.JSON, status)


def _host_of(origin: str) -> str:
    """Return the host of an origin; empty if it is not valid."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def decoded(data: Data, kind: Any, form: Media) -> Any:
    """Return a value of some type from its bytes; raises InvalidInput or InvalidReceipt."""
    try:
        return _decoder(kind, form).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        told = explained(error, kind)
        refused = InvalidReceipt if "`$.receipts[" in told else InvalidInput
        raise refused(f"body: {told}") from None


@cache
def _decoder(kind: Any, form: Media) -> "msgspec.json.Decoder[Any] | msgspec.msgpack.Decoder[Any]":
    return msgspec.json.Decoder(kind) if form is Media.JSON else msgspec.msgpack.Decoder(kind)
