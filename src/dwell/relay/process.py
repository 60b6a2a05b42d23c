"""A relay as a process: signals, the queue that holds the messages, and the status endpoint."""

import asyncio
import logging
import os
import signal
import socket

from dwell.clock import RealClock
from dwell.errors import InvalidSettings
from dwell.garbage import collect_seldom
from dwell.given import values
from dwell.handle import store_at
from dwell.queue import Queue
from dwell.relay.contract import Reader, SaidSource
from dwell.relay.ends import End
from dwell.relay.feed import Feed
from dwell.relay.house import QueueSink
from dwell.relay.relay import Plan, Relay
from dwell.relay.rules import Rules
from dwell.relay.sent import Owner
from dwell.relay.settings import RelaySettings
from dwell.urls import shown

_log = logging.getLogger(__name__)

#: The number of objects in a few batches of records.
_OBJECTS = 100_000


def run(store: str, settings: RelaySettings) -> None:
    """Relay until SIGTERM or Ctrl-C; raises DwellError for an error before that."""
    asyncio.run(_run(store, settings))


async def _run(store: str, settings: RelaySettings) -> None:
    stopping = asyncio.Event()
    _listen(stopping)
    async with Queue(store_at(store, RealClock(), {})) as queue:
        relay = feed_of(queue, settings) if settings.events else relay_of(queue, settings)
        status = None
        if settings.http is not None:
            from dwell.relay.numbers import Numbers
            from dwell.status import Status

            status = Status(settings.http, Numbers(relay.tally), relay.why_not_ready)
            await status.start()
        came, goes = (shown(one or store) for one in (settings.source, settings.sink))
        _log.info("relaying from %s to %s, held in %s", came, goes, shown(store))
        collect_seldom(_OBJECTS)
        try:
            await relay.run(stopping)
        finally:
            if status is not None:
                await status.stop()
    tally = relay.tally
    _log.info("stopped: %d read, %d sent, %d dead", tally.read, tally.sent, tally.dead.total())


def feed_of(queue: Queue, settings: RelaySettings) -> Feed:
    """Return the feed for some settings; raises InvalidInput."""
    assert settings.sink is not None
    end = _end("--to", settings.sink)
    if len(end.topics) != 1:
        raise InvalidSettings(f"--to: got {len(end.topics)} topics, expected the one for events")
    sink = end.sink(most_ms=values.lease_ms(settings.lease) * 2 // 3)
    hold = f"{settings.hold}-events"
    return Feed(queue, sink, to=end.topics[0], hold=hold, batch=settings.batch)


def relay_of(queue: Queue, settings: RelaySettings) -> Relay:
    """Return the relay for some settings; raises InvalidInput."""
    came = None if settings.source is None else _end("--from", settings.source)
    goes = None if settings.sink is None else _end("--to", settings.sink)
    if goes is not None and len(goes.topics) > 1:
        raise InvalidSettings(f"--to: got {len(goes.topics)} topics, expected at most one")
    if settings.exactly_once and not all(end is not None and end.has_once for end in (came, goes)):
        raise InvalidSettings("--exactly-once: needs Kafka in --from and in --to")
    to = goes.topics[0] if goes is not None and goes.topics else None
    source = None if came is None else came.source()
    rules: Reader = Rules(
        to=to if goes is not None else None,
        target=settings.target,
        due=settings.due,
        delay=settings.delay,
        default_delay_ms=None
        if settings.default_delay is None
        else values.delay_ms(settings.default_delay),
        is_named=goes is not None,
    )
    if isinstance(source, SaidSource):
        _check_said(settings)
        rules = source.reader(is_named=goes is not None)
    once = None
    if settings.exactly_once and came is not None:
        once = Owner(settings.hold, came.group)
    lease_ms = values.lease_ms(settings.lease)
    # A record that the broker has not answered by then is given back while its lease lasts.
    sink = None if goes is None else goes.sink(most_ms=lease_ms * 2 // 3, once=once)
    plan = Plan(
        hold=settings.hold,
        to=to,
        dead=settings.dead,
        remember_ms=values.delay_ms(settings.remember),
        lease_ms=lease_ms,
        batch=settings.batch,
        topics=settings.topics,
    )
    return Relay(
        queue,
        plan,
        rules,
        source=source,
        sink=sink,
        letters=QueueSink(queue) if sink is None else sink,
        owner=f"relay {socket.gethostname()} {os.getpid()}"[:200],
    )


def _check_said(settings: RelaySettings) -> None:
    """Refuse settings for values that the records contain themselves; raises InvalidSettings."""
    for name in ("due", "delay", "default_delay", "target", "exactly_once"):
        if getattr(settings, name):
            option = name.replace("_", "-")
            raise InvalidSettings(f"--{option}: is for brokers; a row of an outbox says all itself")


def _end(option: str, url: str) -> End:
    end = End.of(url)
    if end is None:
        raise InvalidSettings(
            f"{option}: got {shown(url)!r:.80}, expected a broker's address: kafka://HOST:PORT, "
            "amqp://HOST:PORT or outbox+postgresql://...; the queue itself is what --store names"
        )
    return end


def _listen(stopping: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def end(number: signal.Signals) -> None:
        if stopping.is_set():
            _log.warning("%s again: ending at once", number.name)
            os._exit(130)
        _log.info("%s: stopping", number.name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
