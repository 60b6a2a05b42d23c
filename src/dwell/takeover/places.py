"""What an address means: the place that it names, and how that is emptied."""

import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from typing import Protocol
from urllib.parse import urlsplit

from dwell.errors import InvalidSettings, InvalidUrl
from dwell.handle import store_at
from dwell.queue import Queue
from dwell.takeover.beanstalk import BeanstalkPlace
from dwell.takeover.house import HousePlace, is_same_store
from dwell.takeover.takeover import Report, Takeover
from dwell.urls import shown

_OTHERS = ("beanstalk", "amqp", "amqps")


class Mover(Protocol):
    """Moves what waits somewhere, and reports."""

    def stop(self) -> None:
        """Move nothing more; what is under way is finished."""

    async def run(self, *, dry_run: bool = False) -> Report:
        """Move until nothing waits; raises DwellError. With ``dry_run`` only count."""


@contextlib.asynccontextmanager
async def mover_from(
    url: str,
    queue: Queue,
    tell: Callable[[Report], None],
    *,
    topics: Collection[str] = (),
    into: str | None = None,
) -> AsyncIterator[Mover]:
    """Give what moves all that waits at an address into a queue; raises InvalidUrl, or StoreError.

    Raises InvalidSettings where the address is another name of the queue's own store, from which
    each message would be let go as soon as it is put. ``topics`` are those of another store that
    are meant, ``into`` is the topic that all goes to.
    """
    scheme = urlsplit(url).scheme
    if topics and scheme in _OTHERS:
        raise InvalidSettings("--topic: names topics of a store; the address says the rest")
    if scheme == "beanstalk":
        yield Takeover(BeanstalkPlace(url, queue.clock, into), queue, tell)
    elif scheme in ("amqp", "amqps"):
        yield _drain(url, queue, tell, into)
    else:
        store = store_at(url, queue.clock, {})
        if not await store.is_made():
            raise InvalidUrl(
                f"from: got {shown(url)!r:.80}, where no store of Dwell's is, expected one"
            )
        async with Queue(store) as there:
            if await is_same_store(there, queue):
                raise InvalidSettings(
                    f"from: got {shown(url)!r:.80}, which is --store by another name; expected "
                    "another store"
                )
            yield Takeover(HousePlace(there, url, topics, into), queue, tell)


def _drain(url: str, queue: Queue, tell: Callable[[Report], None], into: str | None) -> Mover:
    try:
        from dwell.takeover.broker import Drain
    except ImportError as error:
        raise InvalidUrl(
            f"url: {shown(url)!r:.80} needs pip install 'dwell[rabbitmq]': {error}"
        ) from None
    return Drain(url, queue, tell, into)
