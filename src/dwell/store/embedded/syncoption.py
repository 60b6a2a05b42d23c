"""When answers are sent: the texts of the option, in milliseconds."""

import re

from dwell.errors import InvalidSettings

_SYNCS = {"always": 0, "never": None}
# Bounded, because Python does not parse numbers of thousands of digits.
_MILLISECONDS = re.compile(r"[0-9]{1,5}")


def sync_every_ms(sync: str) -> int | None:
    """Return the time between syncs, 0 for one before each answer, None for no syncs.

    Raises InvalidSettings.
    """
    if sync in _SYNCS:
        return _SYNCS[sync]
    number = sync.removesuffix("ms")
    if sync.endswith("ms") and _MILLISECONDS.fullmatch(number) and 0 < int(number) <= 60_000:
        return int(number)
    raise InvalidSettings(f'sync: got {sync!r}, expected "always", "never" or a time like "100ms"')
