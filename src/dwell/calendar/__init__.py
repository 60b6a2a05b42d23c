"""Calendars: rules that say when something is to happen repeatedly."""

from dwell.calendar.contents import stated_zone, states_begin
from dwell.calendar.daysoff import WEEKDAYS, DaysOff
from dwell.calendar.rule import Rule, every, missing, rule_of
from dwell.calendar.zones import zone_of

__all__ = [
    "WEEKDAYS",
    "DaysOff",
    "Rule",
    "every",
    "missing",
    "rule_of",
    "stated_zone",
    "states_begin",
    "zone_of",
]
