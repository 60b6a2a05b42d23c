"""Calendars: rules that say at which moments something is to happen, again and again."""

from dwell.calendar.rule import MAX_RULE_CHARS, Rule, every, missing, rule_of, zone_of

__all__ = ["MAX_RULE_CHARS", "Rule", "every", "missing", "rule_of", "zone_of"]
