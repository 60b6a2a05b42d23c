"""Copies of sources, and what they have put."""

import asyncio

import dwell
from dwell.clock import RealClock
from dwell.handle import store_at
from dwell.message import State
from dwell.queue import Queue
from dwell.takeover.process import run


def copied(store, url, **how):
    return run(str(store), url, tell=lambda report: None, **how)


def schedules(store):
    """Return the schedules of a store by their names."""

    async def look():
        async with Queue(store_at(str(store), RealClock(), {})) as queue:
            return {one.schedule.name: one.schedule async for one in queue.schedules.each()}

    return asyncio.run(look())


def messages(store, topic):
    with dwell.open(store) as queue:
        states = (State.DELAYED, State.READY)
        return {m.id: m for state in states for page in queue.pages(topic, state) for m in page}


def reasons(report):
    """Return why entries are not put, by their places."""
    return {told.where: told.reason for told in report.told if told.reason}
