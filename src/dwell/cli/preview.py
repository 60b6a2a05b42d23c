"""``dwell schedule preview``: when a line of cron would run, before it is put."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
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
    own, now_ms = translated(line, dialect), to_ms(datetime.now(UTC))
    runs = list(islice(_runs(own, zone, now_ms), count))
    plain = [] if own == line else _plain_runs(line, zone, now_ms, count)
    if out.json:
        for run in runs:
            out.object({"run": run.isoformat(), "is_near_change": _is_near_change(run)})
        return
    out.note(f"in crontab: {own}" if own != line else f"zone {zone}")
    shown = table(*(["run", f"{line} in crontab", ""] if own != line else ["run", ""]))
    for at, run in enumerate(runs):
        mark = "clocks change" if _is_near_change(run) else ""
        other = [plain[at].isoformat() if at < len(plain) else "-"] if own != line else []
        shown.add_row(run.isoformat(), *other, mark)
    out.show(shown)


def _runs(line: str, zone: str, now_ms: int) -> Iterator[datetime]:
    where = zone_of(zone)
    for ms in rule_of("cron", line, zone, 0).following(now_ms):
        yield from_ms(ms).astimezone(where)


def _plain_runs(line: str, zone: str, now_ms: int, count: int) -> list[datetime]:
    """Return the runs of a line as crontab would read it; none where it could not."""
    try:
        return list(islice(_runs(line, zone, now_ms), count))
    except InvalidSchedule:
        return []


def _is_near_change(run: datetime) -> bool:
    """Tell whether the zone of a run has another offset a day before or after it."""
    assert isinstance(run.tzinfo, ZoneInfo)
    offsets = {
        (run.astimezone(UTC) + day).astimezone(run.tzinfo).utcoffset() for day in (-_DAY, _DAY)
    }
    return offsets != {run.utcoffset()}
