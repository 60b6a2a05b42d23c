"""``dwell schedule preview``: when a schedule would run, before it is put."""

import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any
from zoneinfo import ZoneInfo

import dwell
from dwell.cli.output import Output
from dwell.cli.terminal import table
from dwell.errors import InvalidInput, InvalidSchedule
from dwell.queue.schedules.schedule import Preview

_DAY = timedelta(days=1)
_RULES = ("cron", "every", "rrule")


def preview(out: Output, words: Mapping[str, Any], count: int) -> None:
    """Print the next runs of a schedule with some words of ``schedules.put``.

    Raises InvalidInput for words that cannot be put. A run is marked where clocks change within a
    day of it.
    """
    if not any(words.get(rule) for rule in _RULES):
        raise InvalidInput('preview: got no rule, expected one: dwell schedule preview "0 9 * * 1"')
    (runs, line), others = _runs(words, count), list[datetime]()
    is_other = words["dialect"] != "crontab" and line != words["cron"]
    if out.json:
        for run in runs:
            out.object({"run": run.isoformat(), "is_near_change": _is_near_change(run)})
        return
    if is_other:
        with contextlib.suppress(InvalidSchedule):
            others = _runs({**words, "dialect": "crontab"}, count).runs
    out.note(f"in crontab: {line}" if is_other else f"zone {_zone_of(runs[0]).key}")
    shown = table(*(["run", f"{words['cron']} in crontab", ""] if is_other else ["run", ""]))
    for run, other in zip_longest(runs, others[: len(runs)]):
        beside = ["-" if other is None else other.isoformat()] if is_other else []
        shown.add_row(run.isoformat(), *beside, "clocks change" if _is_near_change(run) else "")
    out.show(shown)


def _runs(words: Mapping[str, Any], count: int) -> Preview:
    with dwell.open("memory:") as queue:
        return queue.schedules.preview(count, **words)


def _is_near_change(run: datetime) -> bool:
    """Tell whether the zone of a run has another offset a day before or after it."""
    zone = _zone_of(run)
    offsets = {(run.astimezone(UTC) + day).astimezone(zone).utcoffset() for day in (-_DAY, _DAY)}
    return offsets != {run.utcoffset()}


def _zone_of(run: datetime) -> ZoneInfo:
    assert isinstance(run.tzinfo, ZoneInfo)
    return run.tzinfo
