"""Style is a test: lengths, docstrings, imports between rooms, the public names, the texts."""

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dwell
from tools import fieldlists
from tools.rooms import MAY_IMPORT, MODULES, ROOMS, ROOT, arrows, imports_of, place, room_of, trees

MOST_FILE_LINES = 800
MOST_FUNCTION_LINES = 60
P90_FUNCTION_LINES = 25

#: The foreign packages, and the rooms that may import each; None for all of them.
FOREIGN = {
    "msgspec": None,
    "numpy": None,
    "aio_pika": {"relay"},
    "aiohttp": {"client", "status"},
    "aiormq": {"relay"},
    "amqp": {"celery"},
    "celery": {"celery"},
    "confluent_kafka": {"relay"},
    "cronsim": {"calendar"},
    "cryptography": {"server"},
    "dateutil": {"calendar"},
    "httptools": {"server"},
    "django": {"django"},
    "django_tasks": {"django"},
    "hypothesis": {"testing"},
    "jmespath": {"queue"},
    "kombu": {"celery"},
    "psycopg": {"relay", "takeover"},
    "opentelemetry": {"tracing"},
    "prometheus_client": {"relay", "server", "status", "worker"},
    "jinja2": {"spark"},
    "matplotlib": {"spark"},
    "py4j": {"spark"},
    "pydantic": {"queue"},
    "pyarrow": {"cli", "queue", "server", "spark"},
    "pyspark": {"spark"},
    "pytest": {"testing"},
    "redis": {"redis", "takeover"},
    "sqlalchemy": {"outbox"},
    "starlette": {"asgi"},
    "watchfiles": {"cli"},
    "yarl": {"client"},
    "rich": {"cli"},
    "typer": {"cli"},
    "uvloop": {"server"},
}

#: The hosts that a text of the project may name in an address.
HOSTS = {
    "keepachangelog.com",
    "msgpack.org",
    "example.org",
    "127.0.0.1",
    "ho",
    "host",
    "localhost",
    "no.such.host.invalid",
    "prometheus",
    "dwell",
    "queue",
    "semver.org",
    "user",
    "www.apache.org",
    "www.w3.org",
    "x",
}

_WEB = re.compile(r"\bhttps?://([A-Za-z0-9.-]+)")
_HOME = re.compile(r"(?<![\w.$}/-])/(?:root|work|home|Users)(?![\w-])")
_REGISTRY = re.compile(r"py" + r"pi\.org|python" + r"hosted\.|npm" + r"js\.|crates" + r"\.io")


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Function, int]]:
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                assert node.end_lineno is not None
                yield name, node, node.end_lineno - node.lineno + 1


# --- lengths ----------------------------------------------------------------------------------


def test_files_are_short():
    sizes = {path: len(path.read_text().splitlines()) for path in MODULES.values()}
    long = [f"{p.relative_to(ROOT)}: {n} lines" for p, n in sizes.items() if n > MOST_FILE_LINES]
    assert not long, long


def test_functions_are_short():
    long = [
        f"{place(name, node)}: {node.name} has {size} lines"
        for name, node, size in functions()
        if size > MOST_FUNCTION_LINES
    ]
    assert not long, long


def test_most_functions_are_very_short():
    sizes = sorted(size for _, _, size in functions())
    assert sizes[len(sizes) * 9 // 10] <= P90_FUNCTION_LINES


@pytest.mark.parametrize("kind", fieldlists.KINDS, ids=lambda kind: kind.name)
def test_fields_are_written_out_in_few_places(kind: fieldlists.Kind) -> None:
    """A field that is added is added in each of them."""
    found = fieldlists.places(kind)
    assert 0 < len(found) <= kind.most, found


# --- docstrings and names ---------------------------------------------------------------------


def is_public(name: str) -> bool:
    return not name.startswith("_")


def without_docstring(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield public classes, functions and methods that say nothing of themselves."""
    for node in body:
        if isinstance(node, ast.ClassDef) and is_public(node.name):
            if ast.get_docstring(node) is None:
                yield node
            yield from without_docstring(node.body)
        elif isinstance(node, Function) and is_public(node.name):
            overload = any(ast.unparse(mark) == "overload" for mark in node.decorator_list)
            if ast.get_docstring(node) is None and not overload:
                yield node


def test_every_public_name_has_a_docstring():
    missing = [
        place(name, node)
        for name, tree in trees().items()
        for node in ([tree] if ast.get_docstring(tree) is None else [])
        + list(without_docstring(tree.body))
    ]
    assert not missing, missing


def test_the_door_names_everything_in_order():
    assert sorted(dwell.__all__) == dwell.__all__
    assert len(set(dwell.__all__)) == len(dwell.__all__)
    missing = [name for name in dwell.__all__ if not hasattr(dwell, name)]
    assert not missing, missing
    imported = {
        alias.asname or alias.name
        for node in trees()["dwell"].body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == set(dwell.__all__)


def test_what_is_raised_has_a_class_of_its_own():
    bare = [
        place(name, node)
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
        and node.exc is not None
        and ast.unparse(node.exc).split("(")[0] in ("Exception", "BaseException")
    ]
    assert not bare, bare


# --- imports between rooms --------------------------------------------------------------------


def test_every_module_has_a_room():
    homeless = [name for name in MODULES if room_of(name) == "door" and name != "dwell"]
    assert not homeless, homeless
    assert set(MAY_IMPORT) == set(ROOMS.values())


def test_imports_run_downward():
    wrong = []
    for name in MODULES:
        room = room_of(name)
        for node, module in imports_of(name):
            if module.partition(".")[0] == "dwell":
                other = room_of(module)
                if other != room and other not in MAY_IMPORT[room]:
                    wrong.append(f"{place(name, node)}: {room} imports {other} ({module})")
    assert not wrong, wrong


def test_what_a_room_may_import_it_does():
    used = arrows()
    assert {room: below - used[room] for room, below in MAY_IMPORT.items()} == {
        room: set() for room in MAY_IMPORT
    }


def test_the_rooms_have_an_order():
    """No room can reach itself, so that none of them needs the others to be understood."""
    list(graphlib.TopologicalSorter(MAY_IMPORT).static_order())


def test_no_file_imports_itself_by_others():
    graph = {name: {module for _, module in imports_of(name)} & set(MODULES) for name in MODULES}
    list(graphlib.TopologicalSorter(graph).static_order())


def test_foreign_packages_stay_in_their_rooms():
    wrong = []
    for name in MODULES:
        for node, module in imports_of(name):
            package = module.partition(".")[0]
            if package == "dwell" or package in sys.stdlib_module_names:
                continue
            rooms = FOREIGN.get(package, set())
            if rooms is not None and room_of(name) not in rooms:
                wrong.append(f"{place(name, node)}: {package}")
    assert not wrong, wrong


# --- texts ------------------------------------------------------------------------------------


def tracked_texts() -> Iterator[tuple[Path, str]]:
    """Yield the text files that belong to the project."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    for name in filter(None, done.stdout.split("\0")):
        path = ROOT / name
        if path.is_file():
            data = path.read_bytes()
            if b"\0" not in data[:4096]:
                yield path.relative_to(ROOT), data.decode(errors="replace")


def lines_with(pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    for path, text in tracked_texts():
        for number, line in enumerate(text.splitlines(), 1):
            for found in pattern.finditer(line):
                yield f"{path}:{number}: {found[0]}", found


def test_no_text_knows_the_machine_it_was_written_on():
    assert not [where for where, _ in lines_with(_HOME)]


def test_no_text_names_a_package_registry():
    assert not [where for where, _ in lines_with(_REGISTRY)]


def test_addresses_lead_to_known_hosts():
    wrong = [where for where, found in lines_with(_WEB) if found[1].rstrip(".") not in HOSTS]
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("pattern", "text", "is_found"),
    [
        (_HOME, "in /" + "root/x", True),
        (_HOME, '"/' + 'work"', True),
        (_HOME, "/" + "home/ann", True),
        (_HOME, "dwell/work.py, ./work, /worker", False),
        (_REGISTRY, "py" + "pi.org/simple", True),
        (_WEB, "http://example.org/", True),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern, text, is_found):
    assert bool(pattern.search(text)) is is_found
