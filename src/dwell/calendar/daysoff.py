"""Days off: weekdays and dates on which a rule does not fire, or fires on another day instead."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from datetime import date, timedelta

from dwell.errors import InvalidSchedule
from dwell.message import MAX_DAYS_OFF

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
#: A time is moved by fewer days than this.
MOST_IN_A_ROW = 31
_DAY = timedelta(days=1)


class DaysOff:
    """Some days, each a weekday such as ``sat`` or a date such as ``2030-12-25``.

    ``when_off`` says what becomes of a time on one of them: ``skip`` leaves it out, ``before`` and
    ``after`` move it to the nearest day that is not off. Raises InvalidSchedule.
    """

    def __init__(self, days: Sequence[str], when_off: str) -> None:
        if len(days) > MAX_DAYS_OFF:
            raise InvalidSchedule(f"days_off: got {len(days)} days, at most {MAX_DAYS_OFF}")
        self.step = {"skip": 0, "before": -1, "after": 1}[when_off]
        self._weekdays = {WEEKDAYS.index(day) for day in days if day in WEEKDAYS}
        if len(self._weekdays) == len(WEEKDAYS):
            raise InvalidSchedule("days_off: got all weekdays, expected one that is not off")
        dates = sorted({_date(day) for day in days if day not in WEEKDAYS})
        # Two thousand rules are kept, and a number is a tenth of a date.
        self._dates = array("l", [day.toordinal() for day in dates])
        end = date.min
        for day in dates:
            if day < end:
                continue
            # A row may begin with weekdays that are off.
            first = self.after(day, -1) + _DAY
            end = self.after(day)
            if (end - first).days > MOST_IN_A_ROW:
                allowed = f"at most {MOST_IN_A_ROW} days in a row"
                raise InvalidSchedule(f"days_off: got more from {first} on, expected {allowed}")

    def has(self, day: date) -> bool:
        """Tell whether a day is off."""
        if day.weekday() in self._weekdays:
            return True
        number = day.toordinal()
        place = bisect_left(self._dates, number)
        return place < len(self._dates) and self._dates[place] == number

    def after(self, day: date, step: int = 1) -> date:
        """Return a day itself, or the first one from there on that is not off.

        No more days are passed than may be off in a row, and one.
        """
        for _ in range(MOST_IN_A_ROW + 1):
            if not self.has(day):
                break
            day += step * _DAY
        return day


def _date(text: str) -> date:
    try:
        found = date.fromisoformat(text)
        if not 1970 <= found.year <= 9000 or found.isoformat() != text:
            raise ValueError
    except ValueError:
        allowed = f"one of {', '.join(WEEKDAYS)}, or a date from 1970 on such as 2030-12-25"
        raise InvalidSchedule(f"days_off: got {text!r:.40}, expected {allowed}") from None
    return found
