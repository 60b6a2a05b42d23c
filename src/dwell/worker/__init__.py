"""Workers: functions that handle messages, with leases, retries and a graceful stop."""

from dwell.retries import NotNow
from dwell.worker.app import Worker
from dwell.worker.middleware import Middleware
from dwell.worker.outcome import Bury, Retry

__all__ = ["Bury", "Middleware", "NotNow", "Retry", "Worker"]
