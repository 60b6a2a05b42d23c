"""Epoch milliseconds and datetimes: each as the other."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

#: Calendars are asked up to here; the year 9999 is the last that a datetime can say.
LAST_MS = 253_370_764_800_000


def to_ms(moment: datetime) -> int:
    """Return a moment that knows its zone in epoch milliseconds, rounded down."""
    return (moment - _EPOCH) // _MILLISECOND


def from_ms(ms: int) -> datetime:
    """Return epoch milliseconds as a datetime in UTC."""
    return _EPOCH + ms * _MILLISECOND
