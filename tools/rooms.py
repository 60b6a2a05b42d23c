"""The rooms of the house: which module is in which, and which imports which."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

#: Which room each module is in: the longest prefix counts.
ROOMS = {
    "dwell": "door",
    "dwell.message": "base",
    "dwell.digits": "base",
    "dwell.errors": "base",
    "dwell.garbage": "base",
    "dwell.histogram": "base",
    "dwell.prometheus": "status",
    "dwell.retries": "base",
    "dwell.slices": "base",
    "dwell.tasks": "base",
    "dwell.urls": "base",
    "dwell.version": "base",
    "dwell.clock": "clock",
    "dwell.batch": "batch",
    "dwell.calendar": "calendar",
    "dwell.given": "given",
    "dwell.store": "contract",
    "dwell.store.memory": "memory",
    "dwell.store.embedded": "embedded",
    "dwell.store.redis": "redis",
    "dwell.queue": "queue",
    "dwell.threads": "threads",
    "dwell.handle": "open",
    "dwell.asgi": "asgi",
    "dwell.celery": "celery",
    "dwell.django": "django",
    "dwell.status": "status",
    "dwell.tracing": "tracing",
    "dwell.server": "server",
    "dwell.wire": "wire",
    "dwell.client": "client",
    "dwell.timer": "timer",
    "dwell.worker": "worker",
    "dwell.once": "once",
    "dwell.outbox": "outbox",
    "dwell.relay": "relay",
    "dwell.takeover": "takeover",
    "dwell.testing": "testing",
    "dwell.cli": "cli",
    "dwell.spark": "spark",
    "pyspark_dwell": "spark",
}

#: What each room may import, beside itself. Imports run downward only.
MAY_IMPORT = {
    "base": set(),
    "clock": set(),
    "batch": {"base"},
    "calendar": {"base"},
    "given": {"base", "batch"},
    "contract": {"base", "batch", "clock"},
    "memory": {"base", "batch", "clock", "contract"},
    "embedded": {"base", "batch", "clock", "contract"},
    "redis": {"base", "batch", "clock", "contract"},
    "queue": {"base", "batch", "calendar", "clock", "contract", "given"},
    "threads": {"base", "batch", "queue"},
    "wire": {"base", "batch", "given"},
    "client": {"base", "batch", "clock", "contract", "embedded", "wire"},
    "open": {
        "base",
        "client",
        "clock",
        "contract",
        "embedded",
        "memory",
        "queue",
        "redis",
        "threads",
    },
    "door": {"base", "batch", "clock", "given", "open", "queue", "threads"},
    "timer": {"base", "clock", "given", "memory", "queue", "threads"},
    "status": {"base"},
    "worker": {
        "base",
        "batch",
        "clock",
        "contract",
        "given",
        "open",
        "queue",
        "status",
        "threads",
    },
    "asgi": {"base", "open", "queue", "worker"},
    "celery": {"base", "batch", "given", "open", "queue", "threads"},
    "django": {"base", "given", "open", "queue", "threads", "worker"},
    "tracing": {"base", "batch", "given", "queue", "worker"},
    "once": {"base"},
    "outbox": {"base", "batch", "clock", "given", "queue"},
    "relay": {"base", "batch", "clock", "given", "open", "outbox", "queue", "status"},
    "takeover": {
        "base",
        "batch",
        "calendar",
        "celery",
        "clock",
        "given",
        "open",
        "queue",
        "relay",
    },
    "testing": {"base", "batch", "clock", "contract", "embedded"},
    "server": {
        "base",
        "batch",
        "clock",
        "contract",
        "embedded",
        "given",
        "open",
        "queue",
        "status",
        "wire",
    },
    "spark": {"base", "batch", "door", "given", "open", "queue", "threads"},
    "cli": {
        "base",
        "batch",
        "clock",
        "door",
        "embedded",
        "given",
        "queue",
        "redis",
        "relay",
        "server",
        "spark",
        "takeover",
        "threads",
        "wire",
        "worker",
    },
}


def name_of(path: Path) -> str:
    """Return the name of a module."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


@cache
def trees() -> dict[str, ast.Module]:
    """Return what each module is made of."""
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def place(name: str, node: ast.AST) -> str:
    """Return where something stands, as an editor opens it."""
    return f"{MODULES[name].relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def room_of(name: str) -> str:
    """Return the room of a module: that of its longest known prefix."""
    while name not in ROOMS:
        name = name.rpartition(".")[0]
    return ROOMS[name]


def imports_of(name: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield what a module imports: the module, if it is one of ours, or the name's package."""
    for node in ast.walk(trees()[name]):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place(name, node)}: relative import"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield node, full if full in MODULES else node.module


def floors() -> list[list[str]]:
    """Return the rooms by floor, the lowest first: each imports from lower ones only."""
    left, built = dict(MAY_IMPORT), list[list[str]]()
    while left:
        floor = sorted(room for room, below in left.items() if not below & set(left))
        built.append(floor)
        left = {room: below for room, below in left.items() if room not in floor}
    return built


def arrows() -> dict[str, set[str]]:
    """Return which rooms each room imports from."""
    found: dict[str, set[str]] = {room: set() for room in MAY_IMPORT}
    for name in MODULES:
        for _, module in imports_of(name):
            if module.partition(".")[0] == "dwell" and room_of(module) != room_of(name):
                found[room_of(name)].add(room_of(module))
    return found
