"""The protocol: one connection; its requests are parsed, bounded in size and time, and answered."""

import asyncio
import contextlib
import logging
from typing import Protocol as TypingProtocol
from typing import cast

import httptools

from dwell.errors import AccessDenied
from dwell.server.http.answer import Answer, Bytes, Refusal
from dwell.server.http.app import App
from dwell.server.http.call import HEADERS, Call
from dwell.server.http.delivery import Delivery
from dwell.server.http.framing import END, begun_end, head_of, pieces_of
from dwell.server.http.readers import LastAnswer, Watch
from dwell.server.listening import Connection
from dwell.server.turns import BUFFER, TURN_BYTES, Turns
from dwell.server.unparsed import NOTED_BYTES

_log = logging.getLogger(__name__)

#: The head of a request: method, path and headers.
MAX_HEAD_BYTES = 64 * 1024
#: How many headers a request may have, which cost more than their bytes.
MOST_HEADERS = 100
#: The limit of received bytes that are not parsed yet; beyond it reading pauses.
_MOST_HELD_BYTES = 64 * 1024
#: The versions of HTTP that are answered.
_VERSIONS = ("1.0", "1.1")
#: How long a request may take to arrive, from its first byte to its last.
REQUEST_TIMEOUT_S = 60.0
#: How long a connection may be idle. Clients should keep theirs for less.
IDLE_TIMEOUT_S = 120.0
#: How long the bytes after a refused request are read and ignored before the connection ends.
LINGER_S = 10.0
#: From where on an answer is written in two pieces.
_LARGE_BYTES = 64 * 1024
#: How many pieces are parsed before other connections are served.
_MOST_AT_ONCE = 64

#: How many chunks of a body are parsed in a turn, and the size of a piece for the parser.
_MOST_PARTS, _CHUNKED_BYTES = 1000, 8 * 1024

_CHUNKED = b"chunked"

#: The headers that are kept; others are dropped, as a request may wait for long.
_READ = HEADERS | {b"content-length", b"expect", b"transfer-encoding"}
#: Of these a request has one, or it means different things to different readers.
_ONCE = frozenset(
    (b"host", b"authorization", b"content-type", b"accept", b"origin", b"transfer-encoding")
)


class Port(TypingProtocol):
    """The owner of the connections, which is notified of their changes."""

    def joined(self, protocol: "Protocol") -> None:
        """Note a connection that is there."""

    def let_in(self, protocol: "Protocol") -> None:
        """Note that the connection has sent a request that it has the right to."""

    def left(self, protocol: "Protocol") -> None:
        """Note that the connection is gone; its request may still be running."""

    def ended(self, protocol: "Protocol") -> None:
        """Note that the connection has nothing under way."""

    def cork(self, protocol: "Protocol") -> None:
        """Flush it when all answers of this turn of the event loop are made."""

    def hold(self, protocol: "Protocol", size_bytes: int) -> bool:
        """Note how much it holds that is not answered; tell whether that is counted."""


class Protocol(asyncio.BufferedProtocol, Connection):
    """One connection; closed if its client is too slow or sends a head that is too large.

    The parser gets bytes only up to a possible end of a request. So nothing is parsed while a
    request is being answered, and little is read: the memory of a connection is bounded.
    """

    __slots__ = (
        "_answering",
        "_app",
        "_at",
        "_began_s",
        "_body_bytes",
        "_call",
        "_delivery",
        "_drained",
        "_head_bytes",
        "_header_count",
        "_headers",
        "_held",
        "_idle_at",
        "_is_chunked",
        "_is_closing",
        "_is_ended",
        "_is_head",
        "_is_keeping",
        "_is_newer",
        "_is_noted",
        "_is_paused",
        "_is_proceeding",
        "_is_resting",
        "_is_unread",
        "_is_whole",
        "_kept_bytes",
        "_loop",
        "_method",
        "_parser",
        "_parts",
        "_port",
        "_sending",
        "_since",
        "_target",
        "_timer",
        "_transport",
        "_turns",
        "_unread",
    )

    def __init__(self, app: App, port: Port, turns: Turns) -> None:
        super().__init__()
        self._app = app
        self._port = port
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._method = ""
        self._is_newer = True
        self._delivery = Delivery()
        self._transport: asyncio.Transport
        # Received bytes; those from ``_at`` on are not parsed yet.
        self._held = b""
        self._at = 0
        # The current request. ``_is_whole`` is true before it begins, and when all of it has come.
        self._is_whole = True
        self._is_head = True
        self._is_chunked = False
        self._is_keeping = True
        self._head_bytes = 0
        self._body_bytes = 0
        # The size of a large head, which is kept until the answer.
        self._kept_bytes = 0
        self._is_noted = False
        self._header_count = 0
        self._parts = 0
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._call: Call | None = None
        self._answering: asyncio.Task[None] | None = None
        self._sending: tuple[tuple[Bytes, ...], Call, int] | None = None
        self._began_s = 0.0
        self._is_proceeding = False
        self._is_resting = False
        self._is_closing = False
        # Whether the client has ended its half of the connection.
        self._is_ended = False
        self._is_unread = False
        self._is_paused = False
        self._drained: asyncio.Event | None = None
        # When it has to end unless something happens.
        self._since: float | None = None
        self._idle_at = self._loop.time()
        self._timer: asyncio.TimerHandle | LastAnswer
        self._unread: Watch | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._delivery.begin(self._transport)
        self._timer = self._loop.call_later(IDLE_TIMEOUT_S, self._look)
        self._port.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers, and end the wait of the request."""
        self._timer.cancel()
        if self._unread is not None:
            self._unread.cancel()
        if self._call is not None:
            self._call.leave()
        # The parser and this object refer to each other: break the cycle, so that the memory is
        # freed at once and not by the garbage collector.
        self._call, self._headers, self._parser = None, {}, None
        self._held, self._at = b"", 0
        self._is_closing = True
        if self._is_noted:
            self._port.hold(self, 0)
        if self._drained is not None:
            self._drained.set()
        self._port.left(self)
        self._delivery.lose()
        if self._answering is None:
            self._port.ended(self)

    def shutdown(self) -> None:
        """Finish the current request, and close."""
        self._is_keeping = False
        if self._answering is None:
            self._close()

    def abort(self) -> None:
        """End the connection at once."""
        self._is_closing = True
        self._transport.abort()

    def _close(self) -> None:
        self._is_closing = True
        delivery = self._delivery
        if delivery.is_lost or (delivery.is_plain and not self._is_ended):
            self._transport.close()
        else:
            self._timer.cancel()
            self._timer = LastAnswer(self._transport, delivery.note_sent)

    # --- callbacks of the parser --------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request; raises ValueError if the request before it has not ended."""
        if self._answering is not None:
            raise ValueError("it begins where the request before it had not ended")
        self._is_whole = self._is_chunked = False
        self._is_head = True
        self._began_s = self._loop.time()
        self._target, self._headers, self._header_count = b"", {}, 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers after a body in chunks are ignored."""
        if not self._is_head:
            return
        self._header_count += 1
        if self._header_count > MOST_HEADERS:
            raise ValueError(f"headers: got more than {MOST_HEADERS}")
        name = name.lower()
        if name not in _READ:
            return
        if name in _ONCE and name in self._headers:
            raise ValueError(f"{name.decode()}: got several headers, expected one")
        self._headers[name] = value.strip()

    def on_headers_complete(self) -> None:
        """Begin to answer a request, or to refuse it; raises ValueError if it is malformed."""
        headers, parser = self._headers, self._parser
        assert parser is not None
        version = parser.get_http_version()
        if version not in _VERSIONS:
            raise ValueError(f"version: got HTTP/{version}, expected HTTP/1.0 or HTTP/1.1")
        self._is_newer = version == "1.1"
        self._method = parser.get_method().decode()
        if parser.should_upgrade():
            # The parser would take the body for the next request.
            raise ValueError("this server speaks HTTP/1.1 only, expected no Upgrade header")
        coding = headers.get(b"transfer-encoding", _CHUNKED)
        if coding.lower() != _CHUNKED or (b"transfer-encoding" in headers and not self._is_newer):
            raise ValueError(f"transfer-encoding: got {coding.decode('latin-1')}, expected chunked")
        self._is_head = False
        if self._head_bytes > NOTED_BYTES:
            self._kept_bytes = len(self._target) + sum(map(len, headers.values()))
        self._head_bytes = 0
        self._is_chunked = b"transfer-encoding" in headers
        self._body_bytes = int(headers.get(b"content-length", 0))
        self._is_keeping = self._is_keeping and parser.should_keep_alive()
        call = None
        try:
            call = self._app.call(self._method, self._target, headers, self._delivery)
            self._app.begin(call)
            self._note_let_in(call)
            call.check_size(self._body_bytes)
            self._call = call
        except Exception as error:
            self._refuse(error, call)
        else:
            if self._is_newer and headers.get(b"expect", b"").lower() == b"100-continue":
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _note_let_in(self, call: Call) -> None:
        if not self.is_let_in and call.endpoint.rights:
            self._port.let_in(self)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, if the request was not refused."""
        self._body_bytes -= len(body)
        self._head_bytes = 0
        self._parts += 1
        if self._call is not None:
            try:
                self._call.add(body)
            except Exception as error:
                self._refuse(error)

    def on_message_complete(self) -> None:
        """Answer the request, unless that is done."""
        self._is_whole = self._is_head = True
        self._since = None
        self._headers = {}
        call, self._call = self._call, None
        if call is not None:
            self._answering = self._loop.create_task(self._answer(call))

    # --- received bytes -----------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to read into."""
        return self._turns.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take received bytes, and parse as much as may be answered."""
        if self._is_closing:
            return
        data = bytes(BUFFER[:nbytes])
        held = self._held
        self._held, self._at = held[self._at :] + data if self._at < len(held) else data, 0
        size_bytes = len(self._turns.buffer)
        may_parse = self._turns.may_parse(nbytes)
        if may_parse:
            self._proceed()
        if not may_parse or nbytes == size_bytes:
            self._stop_reading()
            self._rest(nbytes)

    def eof_received(self) -> bool:
        """Answer the current request, without waiting for messages, and close.

        The client may still read, or be gone. Over TLS a connection has no halves.
        """
        self._is_ended = True
        self._delivery.end()
        return self._is_busy and self._delivery.is_plain and not self._is_closing

    def _proceed(self) -> None:
        """Parse the received bytes until a complete request awaits its answer."""
        if self._is_proceeding:
            return
        self._is_proceeding = True
        left, self._parts = _MOST_AT_ONCE, 0
        while not self._is_busy and not self._is_closing and self._parse():
            left -= 1
            if self._parts > _MOST_PARTS:
                self._rest(TURN_BYTES)
            elif not left:
                self._rest()
        self._is_proceeding = False
        left_bytes = len(self._held) - self._at
        if not left_bytes or self._is_closing:
            self._held, self._at = b"", 0
        elif left_bytes < self._at:
            # Drops the parsed bytes, which would stay in memory while the rest waits.
            self._held, self._at = self._held[self._at :], 0
        if self._is_closing:
            return
        unparsed_bytes = left_bytes + self._head_bytes + self._kept_bytes
        if (unparsed_bytes > NOTED_BYTES or self._is_noted) and not self._is_resting:
            self._is_noted = self._port.hold(self, unparsed_bytes)
        if left_bytes >= _MOST_HELD_BYTES:
            self._stop_reading()
        if self._is_busy:
            return
        if self._is_ended:
            self._close()
        else:
            self._expect()

    def _stop_reading(self) -> None:
        if not (self._is_unread or self._is_closing):
            self._is_unread = True
            self._transport.pause_reading()

    @property
    def _is_busy(self) -> bool:
        """Whether an answer is pending or unread, or other connections have their turn."""
        return self._answering is not None or self._is_paused or self._is_resting

    def _parse(self) -> bool:
        """Parse up to a possible end of a request; tell whether there were any bytes."""
        held, begin = self._held, self._at
        if self._is_whole and held[begin : begin + 1] in (b"\r", b"\n"):
            # Empty lines before a request say nothing, however many there are.
            begin = self._at = len(held) - len(held[begin:].lstrip(b"\r\n"))
        if begin >= len(held):
            return False
        if self._is_head or self._is_chunked:
            found = held.find(END, begin)
            end = found + 4 if found >= 0 else len(held) - begun_end(held)
            if not self._is_head:
                capped = min(end, begin + _CHUNKED_BYTES)
                # The end of a request is not cut, or the next one would be fed with it.
                end = end if capped == end else capped - begun_end(held[begin:capped])
        else:
            end = min(begin + self._body_bytes, len(held))
        if end <= begin:
            return False
        self._at = end
        self._head_bytes += end - begin
        assert self._parser is not None
        try:
            self._parser.feed_data(held[begin:end])
        except httptools.HttpParserError as error:
            self._refuse_for_good(error)
        if self._is_whole:
            self._head_bytes = 0
        elif self._head_bytes > MAX_HEAD_BYTES:
            # Not a body or the end of a head, but trailers or chunk extensions.
            self._close()
        return True

    def _expect(self) -> None:
        """Wait for the rest of a request; empty lines before one make no connection less idle."""
        if not self._is_whole and self._since is None:
            self._since = self._loop.time()
            self._timer.cancel()
            self._timer = self._loop.call_later(REQUEST_TIMEOUT_S, self._look)

    def _look(self) -> None:
        """Close the connection if it was idle or slow for too long; else set the next timer."""
        now, ends = self._loop.time(), self._loop.time() + IDLE_TIMEOUT_S
        if not self._is_busy:
            ends = self._idle_at + IDLE_TIMEOUT_S
            if self._since is not None:
                ends = self._since + REQUEST_TIMEOUT_S
        if ends <= now:
            self._close()
        else:
            self._timer = self._loop.call_at(ends, self._look)

    # --- answers --------------------------------------------------------------------------------

    async def _answer(self, call: Call) -> None:
        try:
            answer = await self._app.answer(call)
            if answer.parts is not None and self._method == "HEAD":
                await answer.without_parts()
            if answer.parts is None:
                self._sending = self._whole(answer), call, answer.status
                self._port.cork(self)
                return
            sent_bytes = await self._send_parts(answer)
            self._note(call, answer.status, sent_bytes)
        except AccessDenied as error:
            # A reader must not take what it has for the whole.
            _log.warning(
                "%s %s ended within its answer: %s", self._method, call.endpoint.name, error
            )
            self._transport.abort()
        except Exception:
            self._give_up()
        self._end(call)

    def flush(self) -> None:
        """Send the answer that was made."""
        assert self._sending is not None
        (data, call, status), self._sending = self._sending, None
        try:
            self._write(*data)
            self._note(call, status, sum(map(len, data)))
            call.deliver()
        except Exception:
            self._give_up()
        self._end(call)

    def _note(self, call: Call | None, status: int, out_bytes: int) -> None:
        """Log a request that has its answer."""
        if self._app.notes.is_on:
            took_s = self._loop.time() - self._began_s
            self._app.notes.note(self._transport, self._method, call, status, out_bytes, took_s)

    def _give_up(self) -> None:
        # The client would take the missing bytes for something else.
        _log.exception("an answer could not be sent")
        self._transport.abort()

    def _end(self, call: Call) -> None:
        """Finish a call, and release the messages that it took but did not deliver."""
        call.give_back()
        if call.has_reserved:
            self._delivery.after_sent(call.release_answer)
        self._answering = None
        if self._delivery.is_lost:
            self._port.ended(self)
        else:
            self._answered()

    def _answered(self) -> None:
        """Close, or continue with the bytes received during the answer."""
        self._idle_at = self._loop.time()
        if self._kept_bytes:
            self._kept_bytes = 0
            self._is_noted = self._port.hold(self, len(self._held) - self._at)
        if self._is_keeping:
            self._go_on()
        elif self._is_whole:
            self._close()
        else:
            self._linger()

    def _linger(self) -> None:
        """Close, but first read pending bytes for a while: a reset would overtake the answer."""
        if self._is_closing:
            return
        self._is_closing = True
        self._held, self._at = b"", 0
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._timer.cancel()
        self._timer = self._loop.call_later(LINGER_S, self._transport.close)

    def _go_on(self) -> None:
        if self._is_busy or self._is_closing:
            return
        if self._is_unread and not self._is_ended:
            self._is_unread = False
            self._transport.resume_reading()
        if self._held or not self._is_whole or self._is_ended:
            self._proceed()

    def _refuse(self, error: Exception, begun: Call | None = None) -> None:
        """Refuse a request whose body has not been received, and ignore that body."""
        call, self._call = self._call or begun, None
        if call is not None:
            call.leave()
        # With it, it cannot be told whether the body will come.
        self._is_keeping = self._is_keeping and b"expect" not in self._headers
        self._headers = {}
        answer = self._app.refusal(error, call)
        data = self._whole(answer)
        self._write(*data)
        self._note(call, answer.status, sum(map(len, data)))
        self._rest()
        self._answered()

    def _rest(self, size_bytes: int = 0) -> None:
        """Pause parsing until the other connections have had a turn of the event loop."""
        if not self._is_resting and not self._is_closing:
            self._is_resting = True
            self._turns.wait(self, size_bytes)

    def take_turn(self) -> None:
        """Parse on, and read on."""
        self._is_resting = False
        self._go_on()

    def _refuse_for_good(self, error: Exception) -> None:
        """Refuse malformed bytes and close, as the start of the next request is unknown."""
        self._is_keeping = False
        self._held, self._at = b"", 0
        if self._answering is not None:
            return None
        if self._call is None and not self._is_head:  # It was refused when its head had come.
            return self._linger()
        cause = error.__context__
        if not isinstance(cause, MemoryError):
            cause = Refusal(400, str(error if cause is None else cause))
        self._is_whole = False
        return self._refuse(cause)

    def _whole(self, answer: Answer) -> tuple[Bytes, ...]:
        """Return an answer in one piece, or a large one in two, as it would be copied."""
        is_sized = "content-length" in answer.headers
        size = b"" if is_sized else b"content-length: %d\r\n" % len(answer.data)
        head = head_of(answer, self._app.now_ms(), size, keeps=self._is_keeping)
        data = b"" if self._method == "HEAD" else answer.data
        return (head, data) if len(data) > _LARGE_BYTES else (head + data,)

    async def _send_parts(self, answer: Answer) -> int:
        """Write an answer part by part, as the client reads; return how much that was."""
        sent_bytes = 0
        is_sized = "content-length" in answer.headers
        is_chunked = not is_sized and self._is_newer
        self._is_keeping = self._is_keeping and (is_sized or is_chunked)
        now_ms, keeps = self._app.now_ms(), self._is_keeping
        pieces = pieces_of(answer, now_ms, is_chunked=is_chunked, keeps=keeps)
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                self._write(piece)
                sent_bytes += len(piece)
                del piece
                await self._drain()
                if self._delivery.is_lost:
                    break
        return sent_bytes

    def _write(self, *pieces: Bytes) -> None:
        for piece in pieces:
            if not self._transport.is_closing():
                self._transport.write(piece)

    # --- answers that are not read ------------------------------------------------------------

    async def _drain(self) -> None:
        """Return when the client has read the written bytes."""
        if self._is_paused and not self._delivery.is_lost:
            self._drained = asyncio.Event()
            await self._drained.wait()

    def pause_writing(self) -> None:
        """Wait for the client to read, but not for ever."""
        self._is_paused = True
        self._delivery.note_unsent()
        self._unread = Watch(self._transport)

    def resume_writing(self) -> None:
        """Continue: the system has accepted all written bytes."""
        self._is_paused = False
        self._idle_at = self._loop.time()
        self._delivery.note_sent()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        if self._drained is not None:
            self._drained.set()
        self._go_on()
