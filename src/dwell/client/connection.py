"""The connection: requests to one server, with timeouts, repeated where that is safe."""

import asyncio
import io
import math
import re
import ssl
from collections.abc import AsyncIterator
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

import aiohttp
from yarl import URL

from dwell.client.pauses import Pauses
from dwell.clock.clock import elapsed_s
from dwell.clock.servertime import ServerClock
from dwell.errors import (
    AccessDenied,
    DwellError,
    InvalidInput,
    InvalidUrl,
    ServerBusy,
    ServerDraining,
    ServerUnreachable,
    StoreClosed,
    StoreError,
)
from dwell.urls import shown
from dwell.wire.callnumber import AGAIN_MARK, CALL_HEADER
from dwell.wire.problems import error_of

_FORM = "an address such as http://localhost:8410 or http+unix:///run/dwell/http.sock"
_UNIX = "http+unix://"
_BAD_IN_URL = re.compile(r"[\s\0-\x1f\x7f]")
_TOKEN = re.compile(r"[!-~]+")
_CONNECT_S = 5.0
_LONGEST_TIMEOUT_S = 86_400.0
_LARGE_BYTES = 512 * 1024
_SHOWN_BYTES = 200
_MOST_DIGITS = 15

#: A dot in a part of a path that is nothing but dots.
_DOT = "%2E"

#: Statuses of proxies that a retry may avoid: too slow, too early, too many.
_PASSING = (408, 425, 429)

#: Kept for less than a server keeps it, so that none is closed while a request is on its way.
_IDLE_S = 30.0

#: A server knows a request for a minute: what arrives later is done again.
_KNOWN_S = 55.0

#: The longest that a server's Retry-After is heeded.
_LONGEST_AFTER_S = 60.0


class _Failure(NamedTuple):
    """Why a request came to nothing, whether the server can have done it, and when to ask again.

    It is refused when nothing listens there, and cut when its connection was lost before the answer
    was there.
    """

    error: DwellError
    maybe_done: bool
    after_s: float = 0.0
    is_refused: bool = False
    is_cut: bool = False


class Certificate(NamedTuple):
    """The files of a client's own certificate, and of its key if that is not in the same."""

    cert: str
    key: str | None


def certificate(cert: str | None, key: str | None) -> Certificate | None:
    """Return a client's own certificate, if it has one; raises InvalidInput for a key alone."""
    if cert is None and key is not None:
        raise InvalidInput("key: got a key without cert, expected both")
    return None if cert is None else Certificate(cert, key)


class Connection:
    """Keeps connections to one server and sends requests over them."""

    def __init__(
        self,
        url: str,
        clock: ServerClock,
        *,
        token: str | None,
        timeout_s: float,
        connections: int,
        retries: int,
        ca: str | None,
        own: Certificate | None = None,
    ) -> None:
        self._path = socket_path(url)
        self.base = checked_base(url) if self._path is None else "http://localhost"
        _check_options(token, timeout_s, connections, retries)
        self._clock = clock
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._timeout_s = timeout_s
        self._connections = connections
        self._retries = retries
        self._ca, self._own = ca, own
        self._session: aiohttp.ClientSession | None = None
        self._waiting: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make ready to send; nothing is sent yet. Raises InvalidInput for bad certificates."""
        context = _context(self._ca, self._own) if self._ca or self._own else True
        self._session = self._new_session(self._connections, context)
        # Requests that wait have connections of their own: the others must not wait for them.
        self._waiting = self._new_session(0, context)

    def _new_session(self, limit: int, context: ssl.SSLContext | bool) -> aiohttp.ClientSession:
        connector: aiohttp.BaseConnector
        if self._path is None:
            connector = aiohttp.TCPConnector(limit=limit, keepalive_timeout=_IDLE_S, ssl=context)
        else:
            connector = aiohttp.UnixConnector(self._path, limit=limit, keepalive_timeout=_IDLE_S)
        return aiohttp.ClientSession(
            self.base,
            connector=connector,
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("user-agent",),
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        sessions = (self._session, self._waiting)
        self._session = self._waiting = None
        for session in sessions:
            if session is not None:
                await session.close()

    async def call(
        self,
        method: str,
        path: str,
        data: bytes = b"",
        *,
        content: str = "application/msgpack",
        accept: str = "application/msgpack",
        wait_s: float = 0.0,
        is_safe: bool = False,
        is_take: bool = False,
        number: int = 0,
    ) -> bytes:
        """Return the body of the answer; raises the error that the server names.

        A request that the server cannot have executed is repeated. If the server may have executed
        it, it is repeated only when it ``is_safe`` to repeat or has a call ``number``, so that the
        server recognizes the repeat. A request that ``is_take`` without a number is repeated when
        its connection was lost, as the server then releases the messages. It is not repeated after
        a timeout or an error of a proxy: its messages may be on their way, and return only when
        their lease ends. Nothing else is repeated once the server may have forgotten its number.
        """
        headers = {"accept": accept}
        if number:
            headers[CALL_HEADER] = f"{number:x}"
            is_safe = True
        if data:
            headers["content-type"] = content
        pauses = Pauses(self._retries)
        # Since when it may have been done, unless a repeat changes nothing.
        unsure_s: float | None = None
        began_ms = self._clock.now_ms()
        began_s = sent_s = elapsed_s()
        while True:
            # By the clock that its delays were counted by: an answer to an earlier send may set it.
            headers["dwell-now-ms"] = str(began_ms + int((sent_s - began_s) * 1000))
            most_s = math.inf if unsure_s is None else unsure_s + _KNOWN_S - sent_s
            try:
                answer = await self._once(method, path, data, headers, wait_s, most_s)
            except AccessDenied as denied:
                raise denied if unsure_s is None else _unsure(denied) from None
            if not isinstance(answer, _Failure):
                return answer
            if unsure_s is None and answer.maybe_done and number and not is_take:
                unsure_s = sent_s
            error = answer.error if unsure_s is None else _unsure(answer.error)
            pause_s = pauses.next_s(is_refused=answer.is_refused, after_s=answer.after_s)
            if isinstance(error, ServerUnreachable):
                error.may_be_done = unsure_s is not None or answer.maybe_done
            is_given_back = is_take and answer.is_cut
            if pause_s is None or (answer.maybe_done and not (is_safe or is_given_back)):
                raise error
            if number and answer.maybe_done:
                # The repeat of a take has the next number (see dwell.wire.callnumber).
                number += is_take
                headers[CALL_HEADER] = f"{number:x}{AGAIN_MARK}"
            await asyncio.sleep(pause_s)
            sent_s = elapsed_s()
            if unsure_s is not None and sent_s >= unsure_s + _KNOWN_S:
                raise error

    async def chunks(self, path: str) -> AsyncIterator[bytes]:
        """Yield a large answer piece by piece; it is not repeated."""
        timeout = aiohttp.ClientTimeout(sock_read=self._timeout_s)
        try:
            async with _opened(self._session).get(
                path, timeout=timeout, allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    body = await answer.read()
                    raise error_of(answer.status, body) or self._strange(answer.status, body)
                async for chunk in answer.content.iter_chunked(_LARGE_BYTES):
                    yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from None

    def _strange(self, status: int, body: bytes) -> StoreError:
        """Return the error of an answer that is not Dwell's, as a proxy or another server gives."""
        text = body[:_SHOWN_BYTES].decode(errors="replace")
        told = f"{self.base}: got status {status}, expected a Dwell server: {text!r}"
        may_pass = status in _PASSING or status >= 500
        return ServerUnreachable(told) if may_pass else StoreError(told)

    def _unreachable(self, error: Exception) -> ServerUnreachable:
        # The TLS settings that aiohttp adds to its message are of no use to a reader.
        told = getattr(error, "os_error", error)
        return ServerUnreachable(f"{self._path or self.base}: {str(told) or type(told).__name__}")

    async def _once(
        self,
        method: str,
        path: str,
        data: bytes,
        headers: dict[str, str],
        wait_s: float,
        most_s: float,
    ) -> bytes | _Failure:
        session = _opened(self._waiting if wait_s else self._session)
        timeout = aiohttp.ClientTimeout(
            total=min(self._timeout_s + wait_s, most_s),
            sock_connect=min(_CONNECT_S, self._timeout_s),
        )
        asked_at = elapsed_s()
        try:
            async with session.request(
                method,
                # A URL that is made of text loses its dots, also encoded ones.
                URL(path, encoded=True) if _DOT in path else path,
                data=_payload(data),
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                body = await answer.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            cause = getattr(error, "os_error", None)
            is_refused = isinstance(cause, ConnectionRefusedError | FileNotFoundError)
            return _Failure(self._unreachable(error), maybe_done=False, is_refused=is_refused)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            is_cut = not isinstance(error, TimeoutError)
            return _Failure(self._unreachable(error), maybe_done=True, is_cut=is_cut)
        server_ms = answer.headers.get("dwell-now-ms", "")
        if server_ms.isdecimal() and len(server_ms) <= _MOST_DIGITS:
            self._clock.hear(int(server_ms), asked_at)
        return self._read(answer.status, answer.headers.get("retry-after", ""), body)

    def _read(self, status: int, after: str, body: bytes) -> bytes | _Failure:
        """Return the body of a good answer, or why to repeat the request; raises other errors."""
        if status == 200:
            return body
        problem = error_of(status, body)
        if problem is None:
            problem = self._strange(status, body)
            if isinstance(problem, ServerUnreachable):
                return _Failure(problem, maybe_done=True)
        if isinstance(problem, ServerBusy | ServerDraining):
            after_s = float(after) if after.isdecimal() else 0.0
            return _Failure(problem, maybe_done=False, after_s=min(after_s, _LONGEST_AFTER_S))
        raise problem


def _unsure(error: DwellError) -> ServerUnreachable:
    """Return the error of a request that an earlier send of it may have done."""
    if isinstance(error, ServerUnreachable):
        return error
    return ServerUnreachable(f"an answer was lost, and then: {error}; it may have been done")


def _opened(session: aiohttp.ClientSession | None) -> aiohttp.ClientSession:
    if session is None:
        raise StoreClosed("the connection to the server is closed")
    return session


def _payload(data: bytes) -> bytes | io.BytesIO | None:
    """Return a body as the session sends it; a large one as a file, which is sent in pieces."""
    if len(data) > _LARGE_BYTES:
        return io.BytesIO(data)
    return data or None


def _check_options(token: str | None, timeout_s: float, connections: int, retries: int) -> None:
    """Refuse options that nothing could be sent with; raises InvalidInput."""
    if token is not None and not _TOKEN.fullmatch(token):
        # The value may be nearly a token, so the error does not show it.
        raise InvalidInput("token: got one with other signs, expected printable ASCII, no spaces")
    if not 0 < timeout_s <= _LONGEST_TIMEOUT_S:
        raise InvalidInput(
            f"timeout: got {timeout_s}, expected seconds, more than 0, at most {_LONGEST_TIMEOUT_S}"
        )
    if connections < 1:
        raise InvalidInput(f"connections: got {connections}, expected 1 or more")
    if retries < 0:
        raise InvalidInput(f"retries: got {retries}, expected 0 or more")


def _context(ca: str | None, own: Certificate | None) -> ssl.SSLContext:
    """Return a context that trusts the certificates of a file, or the system's.

    It has a client certificate if one is given. Raises InvalidInput.
    """
    try:
        made = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(f"ca: {ca}: {error.strerror or error}") from None
    if own is None:
        return made
    try:
        # OpenSSL would ask for a password at the terminal, where often nobody is.
        made.load_cert_chain(own.cert, own.key, password="")
    except (OSError, ssl.SSLError, ValueError) as error:
        told = getattr(error, "strerror", None) or error
        places = own.cert if own.key is None else f"{own.cert} with key {own.key}"
        raise InvalidInput(f"cert: {places}: {told}") from None
    return made


def as_segment(text: str) -> str:
    """Return a text as one part of a path; ``.`` and ``..`` would mean another path."""
    return text.replace(".", _DOT) if text in (".", "..") else quote(text, safe="")


def socket_path(url: str) -> str | None:
    """Return the path of a socket in the file system; None for other addresses.

    The path follows the scheme as it is, or percent-encoded in place of the host.
    """
    if not url.lower().startswith(_UNIX):
        return None
    path = unquote(url[len(_UNIX) :])
    if not path.startswith("/") or "\0" in path:
        raise InvalidUrl(f"url: got {url!r:.80}, expected {_FORM}")
    return path


def checked_base(url: str) -> str:
    """Return a server's address without a path; raises InvalidUrl."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    is_plain = parts.path in ("", "/") and not parts.query and not parts.fragment
    is_plain &= not _BAD_IN_URL.search(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise InvalidUrl(f"url: got {shown(url)!r:.80}, expected {_FORM}")
    if parts.username is not None:
        raise InvalidUrl("url: got a user in it, expected the token as an option")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + ("" if port is None else f":{port}")
