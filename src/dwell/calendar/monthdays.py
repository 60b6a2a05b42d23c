"""Month days: days of a month that depend on its length or its weekdays, ``L-3`` and ``15W``.

Source: the CronTrigger tutorial of Quartz 2.5. ``L-3`` is the third day before the last one.
``15W`` is the day from Monday to Friday that is nearest to the 15th, in the same month. A month
without that number has no such day.
"""

import re
from calendar import monthrange
from collections.abc import Callable
from datetime import date
from functools import partial

_SATURDAY = 5
_BEFORE_LAST = re.compile("L-([1-9]|[12][0-9]|30)", re.IGNORECASE)
_NEAREST = re.compile("([1-9]|[12][0-9]|3[01])W", re.IGNORECASE)

Matcher = Callable[[date], bool]


def month_day(text: str) -> Matcher | None:
    """Return a function that tells whether a text means a day; None for a text of another form."""
    if found := _BEFORE_LAST.fullmatch(text):
        return partial(_is_before_last, int(found[1]))
    if found := _NEAREST.fullmatch(text):
        return partial(_is_nearest, int(found[1]))
    return None


def _is_before_last(days: int, day: date) -> bool:
    return monthrange(day.year, day.month)[1] - day.day == days


def _is_nearest(number: int, day: date) -> bool:
    last = monthrange(day.year, day.month)[1]
    if number > last:
        return False
    weekday = (day.weekday() + number - day.day) % 7
    if weekday == _SATURDAY:
        number += -1 if number > 1 else 2
    elif weekday > _SATURDAY:
        number += 1 if number < last else -2
    return day.day == number
