"""Addresses of places, and the movers that empty them."""

import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from dwell.errors import InvalidSettings, InvalidUrl
from dwell.handle import store_at
from dwell.queue import Queue
from dwell.takeover.beanstalk import BeanstalkPlace
from dwell.takeover.contract import Place
from dwell.takeover.copier import Copied, Copier
from dwell.takeover.house import HousePlace, is_same_store
from dwell.takeover.sources import SCHEMES, source_at
from dwell.takeover.takeover import Report, Takeover
from dwell.urls import scheme_of, shown

if TYPE_CHECKING:
    from dwell.takeover.jobs import JobsPlace

#: The systems with queues in a Redis, and the extras that reading them needs.
_IN_REDIS = {"rq": "redis", "celery": "celery,redis", "bullmq": "redis", "asynq": "redis"}
_REDIS = tuple(f"{system}+{scheme}" for system in _IN_REDIS for scheme in ("redis", "rediss"))
_IN_POSTGRES = ("procrastinate+postgresql", "procrastinate+postgres")
_OTHERS = ("beanstalk", "amqp", "amqps", *_REDIS, *_IN_POSTGRES, *SCHEMES)


class Mover(Protocol):
    """Moves waiting messages from a place, or copies the entries of a source, and reports."""

    def stop(self) -> None:
        """Stop moving; work in progress is finished."""

    async def run(self, *, dry_run: bool = False) -> Report | Copied:
        """Move until nothing waits; raises DwellError. With ``dry_run`` only count."""


@contextlib.asynccontextmanager
async def mover_from(
    url: str,
    queue: Queue,
    tell: Callable[[Report | Copied], None],
    *,
    topics: Collection[str] = (),
    into: str | None = None,
) -> AsyncIterator[Mover]:
    """Yield a mover from an address into a queue; raises InvalidUrl, or StoreError.

    Raises InvalidSettings if the address is another name of the queue's own store, where each
    message would be let go as soon as it is put. ``topics`` limits the topics of another store,
    ``into`` is the topic for all messages.
    """
    scheme = scheme_of(url)
    if topics and scheme in _OTHERS:
        raise InvalidSettings("--topic: names topics of a store; the address says the rest")
    if scheme in SCHEMES:
        yield Copier(source_at(url, queue.clock, into), queue, tell)
    elif scheme == "beanstalk":
        yield Takeover(BeanstalkPlace(url, queue.clock, into), queue, tell)
    elif scheme in ("amqp", "amqps"):
        yield Takeover(_rabbitmq(url, queue, into), queue, tell)
    elif scheme in _REDIS:
        yield Takeover(_in_redis(url, queue, into), queue, tell)
    elif scheme in _IN_POSTGRES:
        yield Takeover(_procrastinate(url, queue, into), queue, tell)
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
            yield Takeover(HousePlace(there, topics, into, queue.store.number), queue, tell)


def _rabbitmq(url: str, queue: Queue, into: str | None) -> Place:
    try:
        from dwell.takeover.broker import RabbitMQPlace
    except ImportError as error:
        raise InvalidUrl(
            f"url: {shown(url)!r:.80} needs pip install 'dwell[rabbitmq]': {error}"
        ) from None
    return RabbitMQPlace(url, queue, into)


def _procrastinate(url: str, queue: Queue, into: str | None) -> Place:
    try:
        from dwell.takeover.procrastinate import Procrastinate
    except ImportError as error:
        raise InvalidUrl(
            f"url: {shown(url)!r:.80} needs pip install 'dwell[outbox]': {error}"
        ) from None
    return Procrastinate(url, queue.clock, into)


def _in_redis(url: str, queue: Queue, into: str | None) -> Place:
    system = urlsplit(url).scheme.partition("+")[0]
    try:
        return _kind(system)(url, queue.clock, into)
    except ImportError as error:
        raise InvalidUrl(
            f"url: {shown(url)!r:.80} needs pip install 'dwell[{_IN_REDIS[system]}]': {error}"
        ) from None


def _kind(system: str) -> "type[JobsPlace]":
    if system == "celery":
        from dwell.takeover.celery import CeleryPlace

        return CeleryPlace
    if system == "bullmq":
        from dwell.takeover.bullmq import BullmqPlace

        return BullmqPlace
    if system == "asynq":
        from dwell.takeover.asynq import AsynqPlace

        return AsynqPlace
    from dwell.takeover.rq import RqPlace

    return RqPlace
