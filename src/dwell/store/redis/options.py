"""Options: the query of a store's URL on Redis, and the keywords that go with it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dwell.errors import InvalidUrl
from dwell.store.redis.address import Address, parsed
from dwell.store.redis.limits import USUAL, Limits
from dwell.store.redis.numbers import MOST_SHARDS

#: At least this many messages are put as a block; fewer are cheaper as loose messages.
PACKED = 8

#: Minimum, maximum and default of each whole number.
_NUMBERS = {
    "shards": (1, MOST_SHARDS, 0),
    "home": (0, MOST_SHARDS - 1, 0),
    "min_replicas": (0, 100, 0),
    "max_events": (0, 10**12, 100_000),
    "connections": (1, 10_000, 64),
    "packed": (1, 1_000, PACKED),
}
_KNOWN = ", ".join(sorted({*_NUMBERS, "prefix", "timeout", "ca"} - {"packed"}))
_LONGEST_S = 86_400.0
# Python does not parse numbers of thousands of digits.
_DIGITS = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Options:
    """All options; ``shards`` is 0 if the store decides."""

    address: Address
    prefix: str
    timeout_s: float
    ca: str | None
    shards: int
    home: int
    min_replicas: int
    max_events: int
    connections: int
    packed: int
    limits: Limits = USUAL


def options_of(url: str, keywords: Mapping[str, Any]) -> Options:
    """Return the options of a store; raises InvalidUrl for an unknown or out-of-range option."""
    address, query = parsed(url)
    given: dict[str, Any] = {**query, **keywords}
    numbers = {name: _number(given.pop(name, None), name) for name in _NUMBERS}
    prefix = str(given.pop("prefix", "dwell"))
    timeout_s, ca = _seconds(given.pop("timeout", 10.0)), given.pop("ca", None)
    limits = keywords.get("limits", USUAL)
    if not isinstance(limits, Limits):
        raise InvalidUrl(f"limits: got {type(limits).__name__}, expected Limits")
    if "limits" in keywords:
        del given["limits"]
    if given:
        raise InvalidUrl(f"option: got {next(iter(given))!r:.80}, expected one of {_KNOWN}")
    if not prefix or set(prefix) & set("{}\0"):
        raise InvalidUrl(f"prefix: got {prefix!r:.80}, expected text without braces")
    if numbers["min_replicas"] and address.kind == "cluster":
        raise InvalidUrl("min_replicas: is not for a cluster; set min-replicas-to-write there")
    return Options(address, prefix, timeout_s, ca, **numbers, limits=limits)


def _number(value: object, name: str) -> int:
    low, high, usual = _NUMBERS[name]
    if value is None:
        return usual
    text = str(value)
    if isinstance(value, bool) or not _DIGITS.fullmatch(text) or not low <= int(text) <= high:
        raise InvalidUrl(f"{name}: got {text!r:.80}, expected a whole number from {low} to {high}")
    return int(text)


def _seconds(value: object) -> float:
    try:
        seconds = float(str(value))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST_S:
        raise InvalidUrl(
            f"timeout: got {value!r:.80}, expected seconds, more than 0, at most {_LONGEST_S:.0f}"
        )
    return seconds
