"""The scripts: one for each transition, written in Lua, run by Redis as one step each."""

import hashlib
from importlib.resources import files
from typing import NamedTuple

import msgspec

from dwell.message import TopicSettings
from dwell.store.redis.limits import Limits, of_scripts

#: Those that Redis does not run when its memory is full; the others free some, or only look.
_NOT_WHEN_FULL = {"adopt", "configure", "gather", "kick", "put", "remember", "reschedule"}

NAMES = (
    *("ack", "adopt", "bury", "cancel", "configure", "disown", "events", "gather", "gathered"),
    *("get", "held", "kick", "memories", "named", "peek", "put", "recount", "release"),
    *("remember", "reschedule", "scan", "stale", "stats", "sweep", "take", "take_ids"),
    *("taken_from", "texts", "tick", "touch", "trim"),
)


class Script(NamedTuple):
    """A script's text, and the name by which Redis knows it."""

    name: str
    text: str
    digest: str


def scripts(packed: int, max_events: int, limits: Limits) -> dict[str, Script]:
    """Return the scripts of a store by name.

    ``packed`` is how many messages are worth a block, ``max_events`` how many events a shard keeps.
    """
    folder = files(__package__) / "scripts"
    shared = (folder / "shared.lua").read_text()
    settings = msgspec.to_builtins(TopicSettings())
    constants = {"PACKED": packed, "MAX_EVENTS": max_events, "DEFAULTS": settings}
    constants["LIMITS"] = of_scripts(limits)
    first = "".join(f"local {name} = {_literal(value)}\n" for name, value in constants.items())
    return {name: _script(name, first + shared, folder) for name in NAMES}


def _script(name: str, shared: str, folder) -> Script:  # type: ignore[no-untyped-def]
    flags = "" if name in _NOT_WHEN_FULL else " flags=allow-oom"
    text = f"#!lua{flags}\n{shared}{(folder / f'{name}.lua').read_text()}"
    return Script(name, text, hashlib.sha1(text.encode()).hexdigest())


def _literal(value: object) -> str:
    """Return a value as Lua writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "{" + ", ".join(map(_literal, value)) + "}"
    return f"'{value}'" if isinstance(value, str) else str(value)
