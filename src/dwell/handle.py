"""``dwell.open``: one function, one API, for every place that keeps messages."""

import inspect
import os
import re
from importlib import import_module
from typing import Any, NoReturn
from urllib.parse import unquote

from dwell.clock import Clock, RealClock
from dwell.errors import InvalidUrl
from dwell.queue import Queue
from dwell.store.base import Store
from dwell.threads.sync import SyncQueue
from dwell.urls import shown

# A single letter before the colon is a drive of Windows, and so a path.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)
_FORMS = (
    '"memory:", a path, "file:" and a path, the "http://" address of a server, '
    'or the "redis://" address of a Redis or Valkey'
)


class Handle:
    """A store that is not open yet.

    ``async with`` opens it and gives a :class:`dwell.Queue`; ``with`` gives a
    :class:`dwell.SyncQueue`. Both close it at the end.
    """

    def __init__(self, store: Store, kind: type[Queue] = Queue) -> None:
        self.store = store
        self._kind = kind
        self._queue: Queue | None = None
        self._sync: SyncQueue | None = None

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an error that says how a verb of an open queue is reached."""
        hint = f": 'with dwell.open(...) as queue', then queue.{name}"
        told = hint if hasattr(Queue, name) else ""
        raise AttributeError(f"a handle has no {name!r}, it is a store that is not open yet{told}")

    def _new_queue(self) -> Queue:
        """Return a queue over the store; raises RuntimeError if another one is open."""
        if self._queue is not None and self._queue.is_open:
            raise RuntimeError("this dwell.open(...) is open already; call dwell.open again")
        self._queue = self._kind(self.store)
        return self._queue

    async def __aenter__(self) -> Queue:
        queue = self._new_queue()
        await queue.open()
        return queue

    async def __aexit__(self, *error: object) -> None:
        assert self._queue is not None
        await self._queue.close()

    def __enter__(self) -> SyncQueue:
        queue = SyncQueue(self._new_queue())
        queue.open()
        self._sync = queue
        return queue

    def __exit__(self, *error: object) -> None:
        assert self._sync is not None
        self._sync.close()


def open(  # noqa: A001 - read as dwell.open
    url: str | os.PathLike[str],
    *,
    clock: Clock | None = None,
    admin_socket: bool = False,
    **options: Any,
) -> Handle:
    """Return a handle on the store at a URL; the store is opened by ``with``.

    ``"memory:"`` keeps messages in this process; a path, or ``"file:"`` and a path, keeps them in
    that folder; ``"http://localhost:8410"`` is a server's (``clock`` is then the server's own);
    ``"redis://localhost:6379/0"`` keeps them in a Redis or Valkey that many instances share.
    With ``admin_socket``, the command line can use a folder while this program has it open, which
    needs ``pip install 'dwell[server]'``. ``options`` are the store's: see
    :class:`dwell.store.memory.MemoryStore`, ``dwell.store.embedded.EmbeddedStore``,
    ``dwell.store.redis.RedisStore`` and ``dwell.client.store.HttpStore``. Raises InvalidUrl.
    """
    store = store_at(url, clock or RealClock(), options)
    return Handle(store, _admitting() if admin_socket else Queue)


def _admitting() -> type[Queue]:
    """Return the class of queues with an admin socket, which is a part of the server."""
    try:
        found: type[Queue] = import_module("dwell.server.adminsocket").AdmittingQueue
    except ImportError as error:
        raise InvalidUrl(f"admin_socket: needs pip install 'dwell[server]': {error}") from None
    return found


def store_at(url: str | os.PathLike[str], clock: Clock, options: dict[str, Any]) -> Store:
    """Return the store that a URL names; raises InvalidUrl."""
    text = os.fspath(url) if isinstance(url, str | os.PathLike) else url
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidUrl(f"url: got {text!r:.80}, expected {_FORMS}")
    parts = _SCHEME.fullmatch(text) if isinstance(url, str) else None
    if parts is None:
        return _embedded(text, clock, options)
    scheme, rest = parts[1].lower(), parts[2]
    if scheme == "memory" and not rest:
        return _memory(clock, options)
    if scheme == "file" and rest.removeprefix("//"):
        return _embedded(unquote(rest.removeprefix("//")), clock, options)
    if scheme in ("http", "https", "http+unix"):
        return _http(text, options)
    if scheme.startswith(("redis", "valkey")):
        return _redis(text, clock, options)
    raise InvalidUrl(f"url: got {shown(text)!r:.80}, expected {_FORMS}")


def _memory(clock: Clock, options: dict[str, Any]) -> Store:
    # Each kind of store is imported only where it is used.
    from dwell.store.memory import MemoryStore

    _check_known(MemoryStore, options)
    return MemoryStore(clock, **options)


def _http(url: str, options: dict[str, Any]) -> Store:
    try:
        from dwell.client.store import HttpStore
    except ImportError as error:
        raise InvalidUrl(
            f"url: {shown(url)!r:.80} needs pip install 'dwell[client]': {error}"
        ) from None
    _check_known(HttpStore, options)
    return HttpStore(url, **options)


def _redis(url: str, clock: Clock, options: dict[str, Any]) -> Store:
    try:
        from dwell.store.redis import RedisStore
    except ImportError as error:
        raise InvalidUrl(
            f"url: a store on Redis needs pip install 'dwell[redis]': {error}"
        ) from None
    return RedisStore(url, clock=clock, **options)


def _embedded(path: str, clock: Clock, options: dict[str, Any]) -> Store:
    from dwell.store.embedded import EmbeddedStore

    _check_known(EmbeddedStore, options)
    return EmbeddedStore(path, clock=clock, **options)


def _check_known(kind: type[Store], options: dict[str, Any]) -> None:
    """Refuse an option that a kind of store does not have; raises InvalidUrl."""
    given = inspect.signature(kind).parameters
    if unknown := next((name for name in options if name not in given), None):
        # Those that are objects of ours are for tests.
        known = (p for p in given.values() if p.kind is p.KEYWORD_ONLY)
        names = sorted(p.name for p in known if p.name not in ("clock", "disk", "limits"))
        raise InvalidUrl(f"option: got {unknown!r:.80}, expected one of {', '.join(names)}")
