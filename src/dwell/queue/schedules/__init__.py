"""Schedules: messages that are put again and again, by a calendar."""

from dwell.queue.schedules.firer import Firer
from dwell.queue.schedules.past import PastRuns, Run
from dwell.queue.schedules.schedule import TOPIC, Planned, Schedule
from dwell.queue.schedules.schedules import Schedules

__all__ = ["TOPIC", "Firer", "PastRuns", "Planned", "Run", "Schedule", "Schedules"]
