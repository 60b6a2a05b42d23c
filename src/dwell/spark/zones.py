"""Time zones by every name that a session of Spark accepts, and their offsets in every year."""

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from dwell.errors import InvalidSettings

#: An offset, alone or after the name of UTC.
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{1,2})(?::?([0-9]{2}))?)?")

#: The short names that Spark accepts, with Java's meaning (``ZoneId.SHORT_IDS``).
_SHORT = {
    "EST": "-05:00",
    "MST": "-07:00",
    "HST": "-10:00",
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AST": "America/Anchorage",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}

_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1)
#: The years that a datetime can represent, a few days short. Before them no zone has changed; after
#: them each 400 years are alike, because they have whole weeks.
_FIRST_US, _END_US = ((datetime(year, 1, 3) - _EPOCH) // _MICROSECOND for year in (1, 9999))
_CYCLE_US = 146_097 * 86_400_000_000


@lru_cache
def zone_of(name: str) -> tzinfo:
    """Return a zone with Spark's meaning of its name; raises InvalidSettings."""
    name = _SHORT.get(name, name)
    if name in ("Z", "UT"):
        return UTC
    if found := _OFFSET.fullmatch(name):
        hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
        offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        return timezone(-offset if found[1] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:
        raise InvalidSettings(
            f"spark.sql.session.timeZone: got {name!r:.80}, expected an offset or a zone of "
            f"tzdata ({error})"
        ) from None


def offset_us(local_us: int, zone: tzinfo | None) -> int:
    """Return the offset of a local time in microseconds, as in Spark's casts.

    ``zone`` None is the machine's zone. In an hour that occurs twice the first is meant, and in a
    skipped hour the offset is the previous one.
    """
    if local_us >= _END_US:
        local_us = _END_US - _CYCLE_US + (local_us - _END_US) % _CYCLE_US
    local_us = max(local_us, _FIRST_US)
    local = _EPOCH + timedelta(microseconds=local_us)
    if zone is None:
        return local_us - round(local.timestamp() * 1_000_000)
    offset = local.replace(tzinfo=zone).utcoffset()
    assert offset is not None, "every zone has an offset"
    return offset // _MICROSECOND
