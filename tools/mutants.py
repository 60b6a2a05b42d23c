"""Bring each known defect back, and check that the tests catch it.

``python -m tools.mutants [NAME ...]``: for each mutant in tests/mutants, apply it to a copy of the
project and run the tests that it names; a mutant that survives is a hole in the tests. A mutant is
a table of a TOML file: ``what`` is the defect, ``caught_by`` the arguments of pytest (or
``simulation N``, for as many seeds of the simulation), and in ``file`` the text ``old``, which
occurs once, becomes ``new``. Further replacements stand in its array ``also``.
"""

import contextlib
import json
import multiprocessing
import os
import queue
import re
import runpy
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from bench.brokers import kafka_server, rabbitmq_server
from bench.postgres import postgres_server

ROOT = Path(__file__).parents[1]
_PARTS = (
    "src",
    "tests",
    "examples",
    "bench",
    "tools",
    "docs",
    "deploy",
    "pyproject.toml",
    "README.md",
)
#: Tests wait often, and those that a defect keeps waiting do nothing else.
_AT_ONCE = 3 * (os.cpu_count() or 1) + 1
_MOST_S = 600
#: How long their tests wait for what does not come.
_PATIENCE_S = 20
#: What runs import and no mutant changes is loaded once, in the process that each run is a fork of.
_LOADED = ["pytest", "pytest_asyncio.plugin", "schemathesis.pytest.plugin", "hypothesis.stateful"]
_LOADED += ["httptools", "msgspec", "pyarrow.compute", "pyarrow.parquet", "redis.asyncio", "uvloop"]
#: What pytest and the simulation end with when tests have failed; anything else is an error of the
#: run, as is the second, which a run ends with that raised.
_FAILED, _RAISED = 1, 101
#: A failure counts as it is found: nobody reads the smallest one.
_OPTIONS = ["-q", "-x", "-p", "no:cacheprovider", "--hypothesis-profile", "first", "--timeout=100"]
_OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
#: The processes of the present runs.
_running: set[int] = set()


class _CampaignsLast:
    """Runs the tests that take minutes after all others."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: item.get_closest_marker("campaign") is not None)


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One replacement: in ``file``, the only occurrence of ``old`` becomes ``new``."""

    file: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        """Return the file's text with the defect; raises ValueError if it does not apply."""
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"old: occurs {count} times in {self.file}, expected once")
        return text.replace(self.old, self.new)


class Mutant(Edit, frozen=True, kw_only=True):
    """One defect: what it does wrong, and the tests that must fail with it."""

    name: str
    what: str
    caught_by: str
    also: list[Edit] = []

    def texts(self, root: Path) -> dict[Path, str]:
        """Return the texts of the files that it changes; raises ValueError if it does not apply."""
        texts: dict[Path, str] = {}
        for edit in (self, *self.also):
            path = root / edit.file
            texts[path] = edit.applied(texts.get(path) or path.read_text())
        return texts


def mutants() -> Iterator[Mutant]:
    """Yield all mutants; raises msgspec.ValidationError."""
    for path in sorted((ROOT / "tests" / "mutants").glob("*.toml")):
        for name, table in tomllib.loads(path.read_text()).items():
            yield msgspec.convert({"name": name, **table}, Mutant)


def _named(names: list[str]) -> list[Mutant]:
    found = {mutant.name: mutant for mutant in mutants()}
    if unknown := set(names) - set(found):
        raise SystemExit(f"got {', '.join(sorted(unknown))}, expected names of tests/mutants")
    if names:
        return [found[name] for name in names]
    # Those that wait and those that compute lie together, and run beside each other so.
    return sorted(found.values(), key=lambda mutant: zlib.crc32(mutant.name.encode()))


def copy_of_the_project(folder: Path) -> Path:
    """Return a copy whose files mutants may change."""
    for part in _PARTS:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "node_modules")
            shutil.copytree(ROOT / part, folder / part, ignore=ignored)
        else:
            shutil.copy(ROOT / part, folder / part)
    # What ``make setup`` fetched is only read.
    for part in (".brokers", "bench/bullmq/node_modules"):
        (folder / part).symlink_to(ROOT / part)
    return folder


def survives(mutant: Mutant, place: Path) -> str | None:
    """Return what is wrong with a mutant, None when it was caught."""
    try:
        texts = mutant.texts(place)
    except ValueError as error:
        return f"it does not apply: {error}"
    originals = {path: path.read_text() for path in texts}
    try:
        for path, text in texts.items():
            path.write_text(text)
        return _verdict(mutant.caught_by.split(), place)
    finally:
        for path, text in originals.items():
            path.write_text(text)


def _verdict(caught_by: list[str], place: Path) -> str | None:
    """Run the tests in the place, and return what is wrong with them, None when they failed."""
    output = place / "output"
    run = multiprocessing.get_context("forkserver").Process(
        target=_run, args=(caught_by, place, output)
    )
    run.start()
    assert run.pid is not None
    _running.add(run.pid)
    run.join(_MOST_S)
    _running.discard(run.pid)
    _kill(run.pid)
    run.join()
    if run.exitcode == _FAILED:
        return None
    if run.exitcode == 0:
        return "it survived"
    if run.exitcode == -signal.SIGKILL:
        return f"its run did not end within {_MOST_S} s"
    return f"its run failed:\n{output.read_text(errors='replace')[-2000:]}"


def _failed(place: Path) -> str:
    """Return which test failed in a run that has ended, if its output says so."""
    output = (place / "output").read_text(errors="replace")
    found = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", output, re.MULTILINE)
    return f" by {found[1]}" if found else ""


def _kill(pid: int) -> None:
    """End a run, with the servers that its tests started: they are of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _run(caught_by: list[str], place: Path, output: Path) -> None:
    """Become the program that runs the tests of the copy in ``place``."""
    os.setsid()
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(place)
    os.environ["DWELL_PATIENCE_S"] = f"{_PATIENCE_S}"
    parts = [f"{place / 'src'}", f"{place}"]
    os.environ["PYTHONPATH"] = ":".join(parts)
    sys.path[:0] = parts
    # The tools that it imports are those of the copy.
    for name in [name for name in sys.modules if name.split(".")[0] == "tools"]:
        del sys.modules[name]
    try:
        if caught_by[0] == "simulation":
            sys.argv = ["tools.simulation", "--seeds", caught_by[1]]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.exit(pytest.main([*_OPTIONS, *caught_by], plugins=[_CampaignsLast()]))
    except Exception:
        traceback.print_exc()
        sys.exit(_RAISED)


@contextlib.contextmanager
def _brokers(folder: Path, chosen: list[Mutant]) -> Iterator[None]:
    """Run the brokers that all tests of relays use, if there are any."""
    starts = {"kafka": kafka_server, "postgres": postgres_server, "rabbitmq": rabbitmq_server}
    with contextlib.ExitStack() as running:
        if any(mutant.caught_by.startswith("tests/relay") for mutant in chosen):
            for name, start in starts.items():
                state = {"hosts": running.enter_context(start()).hosts, "users": 1}
                (folder / f"{name}.json").write_text(json.dumps(state))
            os.environ["DWELL_BROKERS"] = f"{folder}"
        yield


def main() -> None:
    """Try each, some at once, and end with status 1 if one survives."""
    chosen = _named(sys.argv[1:])
    wrong: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(_brokers(folder, chosen))
        multiprocessing.get_context("forkserver").set_forkserver_preload(_LOADED)
        places: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(_AT_ONCE):
            (folder / f"{number}").mkdir()
            places.put(copy_of_the_project(folder / f"{number}"))

        def attempt(mutant: Mutant) -> None:
            place = places.get()
            began_s = time.monotonic()
            try:
                problem = survives(mutant, place)
                verdict = problem or f"caught{_failed(place)}"
            finally:
                places.put(place)
            took_s = time.monotonic() - began_s
            print(f"{verdict}: {mutant.name}, {took_s:.1f} s", flush=True)
            if problem is not None:
                wrong[mutant.name] = problem

        # Who ends this program ends its runs and brokers.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            try:
                list(pool.map(attempt, chosen))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for pid in _running:
                    _kill(pid)
                raise
    print(f"mutants: {len(chosen) - len(wrong)} passed, {len(wrong)} failed")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
