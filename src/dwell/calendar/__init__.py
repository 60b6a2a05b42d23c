"""Calendars: rules that say when something is to happen repeatedly."""

from dwell.calendar.rule import MAX_RULE_CHARS, Rule, every, missing, rule_of, zone_of

__all__ = ["MAX_RULE_CHARS", "Rule", "every", "missing", "rule_of", "zone_of"]
