"""A store as a server shows it: its receipts are sealed, and late puts are noted."""

from collections.abc import Awaitable, Sequence
from typing import Any, cast

from dwell.batch.batch import Batch
from dwell.batch.page import Cursor, Page
from dwell.batch.puts import PutAnswer, Puts
from dwell.clock import Clock
from dwell.message import U8, U64
from dwell.server.lateputs import LatePuts
from dwell.server.seal import Seal
from dwell.store.base import Store


def sealed(store: Store) -> Store:
    """Return a store whose receipts nobody can predict, even for its own messages."""
    return cast(Store, _SealedStore(store))


class _SealedStore:
    """Gives and takes sealed receipts; everything else is the store's own."""

    _store: Store
    clock: Clock
    #: Messages that were put after their due.
    late_puts: LatePuts
    #: The last secret, and the seal of it.
    _last: tuple[bytes, Seal]

    def __init__(self, store: Store) -> None:
        # Attributes that each call needs are found here, without a call of __getattr__.
        self.__dict__.update(_store=store, clock=store.clock, ready=store.ready)
        self.__dict__["late_puts"] = LatePuts()
        self.__dict__["_last"] = (b"", Seal(b""))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._store, name, value)

    @property
    def _seal(self) -> Seal:
        """The seal of the store's current secret: a store on Redis may get a new secret."""
        secret, seal = self._last
        if secret != self._store.secret:
            secret = self._store.secret
            seal = Seal(secret)
            self.__dict__["_last"] = (secret, seal)
        return seal

    async def put(self, puts: Puts, on_conflict: str) -> PutAnswer:
        """Add messages."""
        answer = await self._store.put(puts, on_conflict)
        self.late_puts.note(puts.due_ms, answer.numbers, self.clock.now_ms())
        return answer

    # --- giving ---------------------------------------------------------------------------------

    async def take(self, topics: Sequence[str], *how: Any, **calls: Any) -> Batch:
        """Lease ready messages."""
        return self._closed(await self._store.take(topics, *how, **calls))

    async def take_ids(self, topic: str, ids: Sequence[bytes], *how: Any, **more: Any) -> Batch:
        """Lease the given messages that are ready."""
        return self._closed(await self._store.take_ids(topic, ids, *how, **more))

    async def held(self, owner: str) -> Batch:
        """Return the messages that ``owner`` holds under lease again."""
        return self._closed(await self._store.held(owner))

    async def held_page(self, owner: str, cursor: Cursor | None, limit: int) -> Page:
        """Return some of the messages that an owner holds under lease."""
        page = await self._store.held_page(owner, cursor, limit)
        return Page(self._closed(page.messages), page.cursor)

    def _closed(self, batch: Batch) -> Batch:
        if batch.receipts is not None and len(batch):
            batch.receipts = self._seal.closed(batch.receipts)
        return batch

    # --- taking ---------------------------------------------------------------------------------

    def ack(self, receipts: U64, *how: Any, **calls: Any) -> Awaitable[U8]:
        """Say that messages are done."""
        return self._store.ack(self._seal.opened(receipts), *how, **calls)

    def release(self, receipts: U64, *how: Any, **more: Any) -> Awaitable[U8]:
        """Give messages back."""
        return self._store.release(self._seal.opened(receipts), *how, **more)

    def touch(self, receipts: U64, lease_ms: int) -> Awaitable[U8]:
        """Extend leases."""
        return self._store.touch(self._seal.opened(receipts), lease_ms)

    def bury(self, receipts: U64, *how: Any, **more: Any) -> Awaitable[U8]:
        """Set messages aside as dead."""
        return self._store.bury(self._seal.opened(receipts), *how, **more)

    def taken_from(self, receipts: U64) -> Awaitable[list[str | None]]:
        """Return the topic of each message that is under lease by its receipt."""
        return self._store.taken_from(self._seal.opened(receipts))
