"""The library: a function for each transition, in Lua; the engine runs it as one step.

``engine.py`` loads it once into each engine, under a name derived from its text, so that instances
of several versions can work on one store.
"""

import hashlib
import string
from enum import IntEnum
from functools import cache
from importlib.resources import files

import msgspec

from dwell.message import Kind, Result, State, TopicSettings
from dwell.store.redis import keys, layout
from dwell.store.redis.limits import USUAL
from dwell.store.redis.numbers import SLOTS

#: The shared parts, each based on the earlier parts; then one file a verb.
PARTS = (
    *("call", "lives", "places", "fronts", "keyed", "turns", "lanes", "loose", "ids", "blocks"),
    *(
        "holding",
        "allowances",
        "order",
        "blockkeys",
        "lining",
        "forming",
        "lapses",
        "finding",
        "time",
    ),
    "ending",
)
VERBS = (
    *("ack", "adopt", "agree", "bury", "cancel", "claim", "configure", "disown", "due", "events"),
    *(
        "form",
        "gather",
        "gathered",
        "get",
        "held",
        "holders",
        "kick",
        "memories",
        "named",
        "oldest",
        "peek",
        "put",
    ),
    *("recount", "release", "remember", "reschedule", "results", "scan", "stale", "stats", "sweep"),
    *("take", "take_ids", "taken_from", "texts", "tick", "touch", "trim"),
)
#: Functions that Redis refuses when its memory is full: they add messages. The others add little.
_NOT_WHEN_FULL = ("adopt", "done", "follow", "put", "remember")

#: The characters that a Lua string needs no escape for.
_PLAIN = f"{string.ascii_letters}{string.digits} >_"


@cache
def library() -> tuple[str, str]:
    """Return the text of the library, and the prefix of its functions' names."""
    folder = files(__package__) / "lua"
    names = [*PARTS, *(f"verbs/{verb}" for verb in VERBS)]
    text = _constants() + "".join((folder / f"{name}.lua").read_text() for name in names)
    name = f"dwell_{hashlib.sha1(text.encode()).hexdigest()[:16]}"
    return f"#!lua name={name}\nlocal PREFIX = '{name}_'\n{text}", f"{name}_"


def _constants() -> str:
    constants = {
        "STATE": {"waiting": State.DELAYED, "leased": State.LEASED, "dead": State.DEAD},
        "RESULT": {result.name.lower(): chr(result) for result in Result},
        "KIND": {kind.name.lower(): kind for kind in Kind},
        "SLOTS": "".join(map(chr, range(SLOTS))),
        "ENDINGS": keys.of_functions(),
        **layout.of_functions(),
        "DEFAULTS": msgspec.to_builtins(TopicSettings()),
        "USUAL": USUAL.of_functions(),
        "NOT_WHEN_FULL": dict.fromkeys(_NOT_WHEN_FULL, True),
    }
    return "".join(f"local {name} = {_literal(value)}\n" for name, value in constants.items())


def _literal(value: object) -> str:
    """Return a value as a Lua literal."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "{" + ", ".join(map(_literal, value)) + "}"
    if isinstance(value, str):
        return "'" + "".join(c if c in _PLAIN else f"\\{ord(c):03}" for c in value) + "'"
    return str(int(value)) if isinstance(value, IntEnum) else str(value)
