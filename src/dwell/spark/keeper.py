"""The keeper: holds chunks of messages, and extends their leases until they are acked."""

import threading

import numpy as np

from dwell.batch.batch import Batch
from dwell.errors import DwellError
from dwell.given import values
from dwell.message import MAX_BATCH_MESSAGES, U64
from dwell.spark.remote import Remote, again

#: The part of a lease, one in this many, after which it is extended.
_PART = 3


class Keeper:
    """Knows the receipts of each owner; a thread of its own touches them."""

    def __init__(self, remote: Remote, lease: str) -> None:
        self._remote, self._lease = remote, lease
        self._receipts: dict[str, U64] = {}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def __getstate__(self) -> tuple[Remote, str]:
        return self._remote, self._lease

    def __setstate__(self, state: tuple[Remote, str]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def keep(self, owner: str, batch: Batch) -> None:
        """Keep the messages that an owner got."""
        if not len(batch) or batch.receipts is None:
            return
        with self._lock:
            self._receipts[owner] = batch.receipts
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dwell-keeper", daemon=True)
                self._thread.start()

    def find(self, owner: str) -> int:
        """Return how many messages an owner has; messages from an earlier run are kept too."""
        with self._lock:
            known = self._receipts.get(owner)
        if known is not None:
            return len(known)
        held = again(lambda: self._remote.queue.held(owner))
        self.keep(owner, held)
        if len(held) and held.receipts is not None:
            self._touch(held.receipts)
        return len(held)

    def ack(self, owner: str) -> None:
        """Ack the messages of an owner."""
        if self.find(owner):
            with self._lock:
                receipts = self._receipts.pop(owner)
            # A repeated ack is stale, which is as good.
            again(lambda: self._remote.queue.ack(receipts))

    def stop(self) -> None:
        """Stop extending leases; messages stay held until their leases end."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        pause_s = values.lease_ms(self._lease) / 1000 / _PART
        while not self._ending.wait(pause_s):
            with self._lock:
                kept = list(self._receipts.values())
            for receipts in _joined(kept):
                self._touch(receipts)

    def _touch(self, receipts: U64) -> None:
        try:
            self._remote.queue.touch(receipts, self._lease)
        except DwellError:
            # The server may be away for a while; messages whose leases end during that come again
            # later.
            return


def _joined(kept: list[U64]) -> list[U64]:
    """Return receipts in batches that fit one call."""
    if not kept:
        return []
    every = np.concatenate(kept)
    return [every[at : at + MAX_BATCH_MESSAGES] for at in range(0, len(every), MAX_BATCH_MESSAGES)]
