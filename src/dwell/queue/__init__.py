"""The queue over every store: calls become batches, takers wait, time is kept."""

from dwell.queue.queue import Queue

__all__ = ["Queue"]
