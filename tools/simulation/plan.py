"""The plan of a run: what is done at which time, all drawn from one seed before it begins.

Each step has a seed of its own for what is drawn while it runs, so that a step that is left out
changes as little as possible for the others: that is what lets a plan that fails be made short.
"""

import random
from typing import Any, NamedTuple

TOPICS = ("a", "b", "c")
_SHARED = ("x", "y", "z")
_KEYS = ("j", "k", "l")


class Step(NamedTuple):
    """One thing that somebody does; ``at_ms`` counts from the beginning of the run."""

    at_ms: int
    kind: str
    args: dict[str, Any]
    seed: int

    def __str__(self) -> str:
        args = " ".join(f"{name}={value}" for name, value in self.args.items())
        return f"{self.at_ms:>7} ms  {self.kind} {args}".rstrip()


class Settings(NamedTuple):
    """What holds for a whole run."""

    sync: str
    segment_bytes: int
    drops_pages: bool
    limits: dict[str, int]
    events_bytes: int


class Plan(NamedTuple):
    """A run, before it happens."""

    seed: int
    settings: Settings
    steps: tuple[Step, ...]


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed."""
    chance = random.Random(seed)
    settings = _settings(chance)
    length_ms = chance.choice((1_000, 4_000, 10_000, 30_000))
    steps = [_step(chance, length_ms, _CLIENTS) for _ in range(chance.choice((5, 10, 20, 30)))]
    enemies = _enemies(chance, settings)
    steps += [_step(chance, length_ms, enemies) for _ in range(chance.choice((0, 1, 2, 4, 6)))]
    steps = [step for step in steps for step in _more(chance, step)]
    # Drawn from a chance of its own, as what each seed finds should stay what it was.
    lanes = random.Random(f"lanes of {seed}")
    if lanes.random() < 0.3:
        steps = _with_lanes(lanes, steps, length_ms)
        settings.limits["keyed_rows"] = lanes.choice((1, 2, 7))
    return Plan(seed, settings, tuple(sorted(steps, key=lambda step: step.at_ms)))


def _settings(chance: random.Random) -> Settings:
    return Settings(
        sync=(sync := chance.choices(("always", "never", "50ms"), (8, 1, 1))[0]),
        segment_bytes=chance.choice((8, 8, 16, 64)) * 1024,
        # What is answered before it is synced, a failed sync may take, as a power cut may.
        drops_pages=chance.random() < 0.5 and sync == "always",
        limits=_limits(chance) if chance.random() < 0.8 else {},
        events_bytes=1 << 30,
    )


def _limits(chance: random.Random) -> dict[str, int]:
    small = {
        "deal_at": (1, 2, 5, 20),
        "wheel_runs": (4, 4, 12),
        "spare_entries": (0, 2, 10),
        "spare_parked": (0, 2, 10),
        "small_chunk": (1, 2, 8),
        "sweep_every": (1, 2, 8),
        "most_ended": (1, 2, 3),
        "few_ids": (1, 8, 64),
        "index_slots": (2, 16),
        "index_step": (1, 2, 8),
        "idle_names": (1, 2, 8),
        "block_events": (1, 3, 10, 40),
        "block_parts": (1, 2, 8),
        "replayed_parts": (1, 30),
        "coarse_events": (0, 1, 2),
        "event_file_bytes": (1, 500, 4_000),
        "large_frame_bytes": (1, 500, 4_000),
        "snapshot_rows": (2, 7, 50),
        "swept_rows": (1, 2, 7),
        "cleared_rows": (1, 2, 7),
        "copy_bytes": (1, 300, 3_000),
        "recent_bytes": (0, 300, 3_000),
    }
    return {name: chance.choice(values) for name, values in small.items() if chance.random() < 0.7}


def _step(chance: random.Random, length_ms: int, kinds: dict[str, int]) -> Step:
    kind = chance.choices(tuple(kinds), tuple(kinds.values()))[0]
    args = _ARGS[kind](chance)
    return Step(chance.randrange(length_ms), kind, args, chance.getrandbits(32))


def _more(chance: random.Random, step: Step) -> list[Step]:
    """Return a step, and what belongs to it: what was taken away is given back."""
    after = {"full": "room", "slow": "fast"}.get(step.kind)
    if after is None:
        return [step]
    at_ms = step.at_ms + chance.choice((100, 1_000, 5_000))
    return [step, Step(at_ms, after, {}, chance.getrandbits(32))]


def _with_lanes(chance: random.Random, steps: list[Step], length_ms: int) -> list[Step]:
    """Return steps whose messages have keys, in topics that give few at a time, or in order."""
    keyed = {"put", "share"}
    steps = [
        step._replace(args={**step.args, "key": chance.choice(_KEYS)})
        if step.kind in keyed and chance.random() < 0.8
        else step
        for step in steps
    ]
    for number in range(chance.choice((1, 2, 4))):
        changes: dict[str, Any] = {}
        if chance.random() < 0.8:
            changes["ordered"] = number == 0 or chance.random() < 0.6
        if not changes or chance.random() < 0.4:
            changes["most_leased"] = chance.choice((0, 1, 2))
        args = {"topic": _topic(chance), "changes": changes}
        at_ms = 0 if number == 0 else chance.randrange(length_ms)
        steps.append(Step(at_ms, "configure", args, chance.getrandbits(32)))
    return steps


# --- what is drawn --------------------------------------------------------------------------------


def _topic(chance: random.Random) -> str:
    return chance.choice(("a", "a", "b", "c"))


def _put(chance: random.Random) -> dict[str, Any]:
    args: dict[str, Any] = {"topic": _topic(chance), "count": chance.choice((1, 1, 1, 3, 12))}
    args["delay_ms"] = chance.choice((0, 0, 0, 3, 500, 3_000, 60_000, 3_600_000))
    if chance.random() < 0.25:
        args["ttl_ms"] = args["delay_ms"] + chance.choice((1, 200, 1_000, 10_000))
    if chance.random() < 0.3:
        args["priority"] = chance.choice((0, 1, 2_000))
    if chance.random() < 0.2:
        args["max_attempts"] = chance.choice((1, 2))
    if chance.random() < 0.2:
        args["lease_ms"] = chance.choice((50, 1_000))
    if chance.random() < 0.15:
        args["nameless"] = True
    args["size_bytes"] = chance.choice((0, 10, 200, 200, 1_500 if args["count"] == 1 else 400))
    return args


def _share(chance: random.Random) -> dict[str, Any]:
    args = _put(chance)
    args.pop("nameless", None)
    args["count"] = 1
    args["id"] = chance.choice(_SHARED)
    args["on_conflict"] = chance.choice(("keep", "replace", "replace", "error"))
    return args


def _work(chance: random.Random) -> dict[str, Any]:
    args: dict[str, Any] = {
        "topics": list(chance.choice((("a",), ("a",), ("b",), ("a", "b"), ("c", "a")))),
        "limit": chance.choice((1, 1, 3, 20)),
        "wait_ms": chance.choice((0, 0, 300, 3_000, 20_000)),
        "then": chance.choice(("ack", "ack", "ack", "ack", "release", "bury", "die", "touch")),
        "busy_ms": chance.choice((0, 0, 50, 800, 5_000)),
    }
    if chance.random() < 0.6:
        args["lease_ms"] = chance.choice((30, 500, 2_000, 10_000))
    if chance.random() < 0.3:
        args["owner"] = chance.choice(("me", "you"))
    return args


def _crowd(chance: random.Random) -> dict[str, Any]:
    return {
        "topic": _topic(chance),
        "takers": chance.choice((2, 3, 5)),
        "limit": chance.choice((1, 1, 2)),
        "wait_ms": chance.choice((300, 3_000)),
        "puts": chance.choice((0, 1, 1, 1, 2, 3)),
        "quitters": chance.choice((0, 1, 1, 2)),
        "before": chance.choice((0, 1, 2, 5, 5, 5)),
        "rounds": chance.choice((-1, 0, 1, 2, 3, 4, 5)),
    }


def _ids(chance: random.Random) -> dict[str, Any]:
    return {"topic": _topic(chance), "count": chance.choice((1, 1, 2, 5))}


def _move(chance: random.Random) -> dict[str, Any]:
    return {**_ids(chance), "delay_ms": chance.choice((0, 0, 100, 2_000, 100_000))}


def _configure(chance: random.Random) -> dict[str, Any]:
    changes = {
        "paused": chance.choice((True, False, False)),
        "lease_ms": chance.choice((100, 1_000, 60_000)),
        "max_attempts": chance.choice((1, 2, 16)),
        "retry_delays_ms": chance.choice(((), (200, 2_000))),
        "remember_ms": chance.choice((0, 1_000, 600_000, 86_400_000)),
        "max_pending": chance.choice((0, 0, 5)),
        "on_full": chance.choice(("refuse", "drop")),
    }
    names = chance.sample(sorted(changes), chance.choice((1, 2)))
    return {"topic": _topic(chance), "changes": {name: changes[name] for name in names}}


def _clock(chance: random.Random) -> dict[str, Any]:
    sizes_ms = (1, 20, 999, 60_000, 3_600_000, 7_200_000)
    return {"delta_ms": chance.choice((-1, 1)) * chance.choice(sizes_ms)}


def _fault(chance: random.Random) -> dict[str, Any]:
    faults = ("write", "short", "sync", "open", "create")
    return {"fault": chance.choice(faults), "after": chance.choice((0, 0, 1, 2, 5, 20))}


def _stop(chance: random.Random) -> dict[str, Any]:
    return {
        "after": chance.choice((0, 0, 1, 1, 2, 3, 5, 8, 13, 30)),
        "when": chance.choice(("before", "during", "after", "after")),
        # What the processes that are started again meet, at which of their calls.
        "then": [
            (chance.choice(("kill", "power")), chance.choice((0, 5, 20, 30, 40, 50, 65, 90, 140)))
            for _ in range(chance.choice((0, 0, 1, 1, 2)))
        ],
    }


def _full(chance: random.Random) -> dict[str, Any]:
    return {"left_bytes": chance.choice((0, 4_096, 20_000))}


def _nothing(chance: random.Random) -> dict[str, Any]:
    return {}


_ARGS = {
    "put": _put,
    "share": _share,
    "work": _work,
    "crowd": _crowd,
    "cancel": _ids,
    "move": _move,
    "kick": _ids,
    "get": _ids,
    "take_ids": _ids,
    "configure": _configure,
    "stats": _nothing,
    "find_stale": _nothing,
    "events": _nothing,
    "backup": _nothing,
    "held": _nothing,
    "clock": _clock,
    "fault": _fault,
    "kill": _stop,
    "power": _stop,
    "full": _full,
    "slow": _nothing,
    "restart": _nothing,
    "cut_off": _nothing,
}
_CLIENTS = {
    "put": 30,
    "share": 8,
    "work": 30,
    "crowd": 5,
    "cancel": 4,
    "move": 4,
    "kick": 3,
    "get": 2,
    "take_ids": 2,
    "configure": 4,
    "stats": 2,
    "find_stale": 1,
    "events": 2,
    "backup": 1,
    "held": 1,
}


def _enemies(chance: random.Random, settings: Settings) -> dict[str, int]:
    """Return what goes wrong in a run, and how often; a machine that never syncs keeps its power.

    Most runs have one or two kinds of enemies only, as several at once hide each other.
    """
    every = {"clock": 5, "fault": 5, "kill": 5, "power": 5, "full": 2, "slow": 3, "restart": 3}
    every["cut_off"] = 2
    if settings.sync != "always":
        del every["power"]
    if chance.random() < 0.25:
        # What a kill leaves unsynced only a power cut soon after shows.
        return {name: every[name] for name in ("kill", "power", "fault") if name in every}
    if chance.random() < 0.6:
        some = chance.sample(sorted(every), 2)
        return {name: every[name] for name in some}
    return every
