"""Addresses of sources that are only read."""

from urllib.parse import urlsplit

from dwell.clock import Clock
from dwell.takeover.apscheduler import ApScheduler
from dwell.takeover.beat import Beat
from dwell.takeover.bullmqschedulers import BullmqSchedulers
from dwell.takeover.crontab import Crontab
from dwell.takeover.entries import Source
from dwell.takeover.eventbridge import EventBridge
from dwell.takeover.rqcron import RqCron

_SQL = ("postgresql", "postgres", "sqlite")
#: The schemes of their addresses.
SCHEMES = (
    "crontab",
    "eventbridge",
    *(f"{kind}+{one}" for kind in ("beat", "apscheduler") for one in _SQL),
    *(f"{kind}+{one}" for kind in ("bullmq-schedulers", "rq-cron") for one in ("redis", "rediss")),
)


def source_at(url: str, clock: Clock, into: str | None) -> Source:
    """Return the source at an address; ``into`` is the topic for all entries.

    Raises InvalidUrl, or InvalidInput for ``into``.
    """
    scheme = urlsplit(url).scheme
    assert scheme in SCHEMES
    if scheme == "crontab":
        return Crontab(url, into)
    if scheme == "eventbridge":
        return EventBridge(url, clock, into)
    if scheme.startswith("bullmq-schedulers+"):
        return BullmqSchedulers(url, clock, into)
    if scheme.startswith("rq-cron+"):
        return RqCron(url, clock, into)
    if scheme.startswith("apscheduler+"):
        return ApScheduler(url, clock, into)
    return Beat(url, clock, into)
