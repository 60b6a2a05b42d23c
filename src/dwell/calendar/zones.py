"""Zones: time zones by their names."""

from zoneinfo import ZoneInfo

from dwell.errors import InvalidSchedule

#: Names of the database that mean something else on each machine, or no zone.
_NO_ZONES = {"localtime", "posixrules", "Factory"}


def zone_of(name: str, told: str = "zone: got") -> ZoneInfo:
    """Return a time zone; raises InvalidSchedule, whose message begins with what is ``told``."""
    try:
        # Those under right/ count leap seconds, which a queue's clock does not.
        if not name or name in _NO_ZONES or name.startswith("right/"):
            raise ValueError
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        # The class of the error depends on the form of the name in a file system.
        raise InvalidSchedule(
            f"{told} {name!r:.80}, expected a name of the time zone database, Europe/Berlin"
        ) from None
