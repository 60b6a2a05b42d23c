"""The scripts: one for each transition, written in Lua, run by Redis as one step each."""

import hashlib
from importlib.resources import files
from typing import NamedTuple

import msgspec

from dwell.message import TopicSettings

#: Those that Redis may run when its memory is full: they free some, or only move what is there.
_RUN_WHEN_FULL = {"ack", "bury", "cancel", "release", "take", "take_ids", "tick", "touch"}

NAMES = (
    *("ack", "adopt", "bury", "cancel", "configure", "disown", "events", "gather", "gathered"),
    *("get", "held", "kick", "memories", "named", "peek", "put", "release", "remember"),
    *("reschedule", "scan", "stale", "stats", "sweep", "take", "take_ids", "taken_from"),
    *("tick", "touch", "trim"),
)


class Script(NamedTuple):
    """A script's text, and the name by which Redis knows it."""

    name: str
    text: str
    digest: str


def scripts(shards: int, packed: int, max_events: int) -> dict[str, Script]:
    """Return the scripts of a store by name.

    ``packed`` is how many messages are worth a block, ``max_events`` how many events a shard keeps.
    """
    folder = files(__package__) / "scripts"
    shared = (folder / "shared.lua").read_text()
    settings = msgspec.to_builtins(TopicSettings())
    constants = {"SHARDS": shards, "PACKED": packed, "MAX_EVENTS": max_events, "DEFAULTS": settings}
    first = "".join(f"local {name} = {_literal(value)}\n" for name, value in constants.items())
    return {name: _script(name, first + shared, folder) for name in NAMES}


def _script(name: str, shared: str, folder) -> Script:  # type: ignore[no-untyped-def]
    flags = " flags=allow-oom" if name in _RUN_WHEN_FULL else ""
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
