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

_DAY = timedelta(days=1)
_RULES = ("cron", "every", "rrule")
_NAME = "preview"


def preview(out: Output, words: Mapping[str, Any], count: int) -> None:
    """Print the next runs of a schedule with some words of ``schedules.put``.

    Raises InvalidInput for words that cannot be put. A run is marked where clocks change within a
    day of it.
    """
    if not any(words.get(rule) for rule in _RULES):
        raise InvalidInput('preview: got no rule, expected one: dwell schedule preview "0 9 * * 1"')
    (line, runs), others = _runs(words, count), list[datetime]()
    is_other = line is not None and line != words["cron"]
    if out.json:
        for run in runs:
            out.object({"run": run.isoformat(), "is_near_change": _is_near_change(run)})
        return
    if is_other:
        with contextlib.suppress(InvalidSchedule):
            _, others = _runs({**words, "dialect": "crontab"}, count)
    out.note(f"in crontab: {line}" if is_other else f"zone {words['zone']}")
    shown = table(*(["run", f"{words['cron']} in crontab", ""] if is_other else ["run", ""]))
    for run, other in zip_longest(runs, others[: len(runs)]):
        beside = ["-" if other is None else other.isoformat()] if is_other else []
        shown.add_row(run.isoformat(), *beside, "clocks change" if _is_near_change(run) else "")
    out.show(shown)


def _runs(words: Mapping[str, Any], count: int) -> tuple[str | None, list[datetime]]:
    """Return the line of crontab(5) that a schedule keeps, if any, and its next runs."""
    with dwell.open("memory:") as queue:
        queue.schedules.put(_NAME, _NAME, b"", **words)
        found = queue.schedules.get(_NAME)
        assert found is not None, "it was just put"
        return found.schedule.cron, queue.schedules.next(_NAME, count)


def _is_near_change(run: datetime) -> bool:
    """Tell whether the zone of a run has another offset a day before or after it."""
    assert isinstance(run.tzinfo, ZoneInfo)
    offsets = {
        (run.astimezone(UTC) + day).astimezone(run.tzinfo).utcoffset() for day in (-_DAY, _DAY)
    }
    return offsets != {run.utcoffset()}
