"""Cron: five fields as in crontab(5), or six with seconds first, in a time zone.

Lines that name hours and minutes are made as Debian's cron does when clocks change: what would run
in an hour that is left out runs at once when it is over, and what would run in an hour that comes
twice runs once. Lines with a ``*`` in minutes or hours follow the time that goes by.
"""

from collections.abc import Iterator
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from dwell.calendar.moments import LAST_MS, from_ms, to_ms
from dwell.errors import InvalidSchedule

_DAY_MS = 24 * 3_600_000


class Cron:
    """A line of cron in a zone."""

    def __init__(self, line: str, zone: ZoneInfo) -> None:
        self._line = line
        self._zone = zone
        try:
            CronSim(line, from_ms(0).astimezone(zone))
        except (CronSimError, ValueError) as error:
            allowed = 'five fields such as "0 9 * * mon-fri"'
            raise InvalidSchedule(f"cron: got {line!r:.80}, expected {allowed}: {error}") from None

    def before(self, ms: int) -> int | None:
        """Return the last moment that is not after one, or None where there is none."""
        # Backwards a change of clocks is not what it is forwards, so it only says where to begin.
        for near in CronSim(self._line, from_ms(ms).astimezone(self._zone), reverse=True):
            last = None
            for moment in self.following(max(to_ms(near) - _DAY_MS // 24, 0)):
                if moment > ms:
                    break
                last = moment
            if last is not None:
                return last
            if to_ms(near) < _DAY_MS:
                break
        return None

    def following(self, ms: int) -> Iterator[int]:
        """Yield the moments after one, in order; there are none after a gap of 50 years."""
        if ms >= LAST_MS:
            return
        last_ms = ms
        for found in CronSim(self._line, from_ms(ms).astimezone(self._zone)):
            # What is said in the time of a zone can lie before where it began, or come twice.
            if (found_ms := to_ms(found)) > last_ms:
                last_ms = found_ms
                yield found_ms
