"""``dwell schedule preview``: when a line of cron would run, before it is put."""

import contextlib
from datetime import UTC, datetime, timedelta
from itertools import islice, zip_longest
from zoneinfo import ZoneInfo

from dwell.calendar import rule_of, zone_of
from dwell.calendar.epoch import from_ms, to_ms
from dwell.calendar.translation import translated
from dwell.cli.output import Output
from dwell.cli.terminal import table
from dwell.errors import InvalidInput, InvalidSchedule

_DAY = timedelta(days=1)


def preview(out: Output, line: str, dialect: str, zone: str, count: int) -> None:
    """Print the next runs of a line; raises InvalidSchedule for what cannot be read.

    A run is marked where clocks change within a day of it.
    """
    if not line:
        raise InvalidInput('preview: got no line, expected one: dwell schedule preview "0 9 * * 1"')
    own, now_ms, others = translated(line, dialect), to_ms(datetime.now(UTC)), list[datetime]()
    runs, is_other = _runs(own, zone, now_ms, count), own != line
    if out.json:
        for run in runs:
            out.object({"run": run.isoformat(), "is_near_change": _is_near_change(run)})
        return
    if is_other:
        with contextlib.suppress(InvalidSchedule):
            others = _runs(line, zone, now_ms, count)
    out.note(f"in crontab: {own}" if is_other else f"zone {zone}")
    shown = table(*(["run", f"{line} in crontab", ""] if is_other else ["run", ""]))
    for run, other in zip_longest(runs, others[: len(runs)]):
        beside = ["-" if other is None else other.isoformat()] if is_other else []
        shown.add_row(run.isoformat(), *beside, "clocks change" if _is_near_change(run) else "")
    out.show(shown)


def _runs(line: str, zone: str, now_ms: int, count: int) -> list[datetime]:
    """Return the next runs of a line of crontab(5), in the zone."""
    moments = rule_of("cron", line, zone, 0).following(now_ms)
    return [from_ms(ms).astimezone(zone_of(zone)) for ms in islice(moments, count)]


def _is_near_change(run: datetime) -> bool:
    """Tell whether the zone of a run has another offset a day before or after it."""
    assert isinstance(run.tzinfo, ZoneInfo)
    offsets = {
        (run.astimezone(UTC) + day).astimezone(run.tzinfo).utcoffset() for day in (-_DAY, _DAY)
    }
    return offsets != {run.utcoffset()}
