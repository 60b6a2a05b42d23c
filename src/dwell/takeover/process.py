"""A takeover as a process: signals, and both ends."""

import asyncio
import signal
from collections.abc import Callable, Collection

from dwell.clock import RealClock
from dwell.errors import InvalidSettings
from dwell.garbage import collect_seldom
from dwell.handle import store_at
from dwell.queue import Queue
from dwell.takeover.copier import Copied
from dwell.takeover.places import mover_from
from dwell.takeover.takeover import Report
from dwell.urls import shown

#: The number of objects in a few batches of messages.
_OBJECTS = 100_000


def run(
    store: str,
    source: str,
    *,
    topics: Collection[str] = (),
    into: str | None = None,
    dry_run: bool = False,
    tell: Callable[[Report | Copied], None],
) -> Report | Copied:
    """Move or copy what waits in ``source`` into a store, until done, SIGTERM or Ctrl-C.

    Raises DwellError; ``tell`` gets the progress before that.
    """
    if store == source:
        # Other names of the same store are found out once both are open.
        got = shown(store)
        raise InvalidSettings(f"from: got {got!r:.80}, expected another place than --store")
    return asyncio.run(_run(store, source, topics, into, dry_run, tell))


async def _run(
    store: str,
    source: str,
    topics: Collection[str],
    into: str | None,
    dry_run: bool,
    tell: Callable[[Report | Copied], None],
) -> Report | Copied:
    into_store = store_at(store, RealClock(), {})
    if dry_run and not await into_store.is_made():
        # A look makes no store.
        into_store = store_at("memory:", RealClock(), {})
    async with (
        Queue(into_store) as queue,
        mover_from(source, queue, tell, topics=topics, into=into) as mover,
    ):
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, mover.stop)
        collect_seldom(_OBJECTS)
        return await mover.run(dry_run=dry_run)
