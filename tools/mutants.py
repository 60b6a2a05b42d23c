"""Show that the tests see what they should: bring each known defect back, and see one fail.

``python -m tools.mutants [NAME ...]``: for each patch in tests/mutants, apply it to a copy of the
project and run what it names; a mutant that survives is a hole in the tests. The first lines of a
patch, which ``git apply`` passes over, say ``# what:`` and ``# caught by:``: tests of pytest, or
``simulation N`` for as many seeds of the simulation.
"""

import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_PARTS = ("src", "tests", "examples", "bench", "tools", "docs", "pyproject.toml", "README.md")
_AT_ONCE = 2
_MOST_S = 600
#: What pytest ends with when tests have failed; anything else is an error of the run.
_FAILED = 1


class Mutant(NamedTuple):
    """One patch: its name, what it does wrong, and what has to fail with it."""

    path: Path
    what: str
    caught_by: list[str]

    @property
    def name(self) -> str:
        """Its file's name."""
        return self.path.stem


def mutants(names: list[str]) -> Iterator[Mutant]:
    """Yield the patches, or those of some names."""
    paths = {path.stem: path for path in sorted((ROOT / "tests" / "mutants").glob("*.patch"))}
    if unknown := set(names) - set(paths):
        raise SystemExit(f"got {', '.join(sorted(unknown))}, expected names of tests/mutants")
    for path in paths.values():
        text = path.read_text()
        what = re.search(r"^# what: (.+)$", text, re.MULTILINE)
        caught_by = re.search(r"^# caught by: (.+)$", text, re.MULTILINE)
        if what is None or caught_by is None:
            raise SystemExit(f"{path}: has no lines '# what:' and '# caught by:'")
        if not names or path.stem in names:
            yield Mutant(path, what[1], caught_by[1].split())


def copy_of_the_project(folder: Path) -> Path:
    """Return a copy in which a patch can be applied."""
    for part in _PARTS:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "node_modules")
            shutil.copytree(ROOT / part, folder / part, ignore=ignored)
        else:
            shutil.copy(ROOT / part, folder / part)
    # What ``make setup`` fetched is only read.
    (folder / ".brokers").symlink_to(ROOT / ".brokers")
    return folder


def survives(mutant: Mutant, place: Path) -> str | None:
    """Return what is wrong with a mutant, None when it was caught."""
    patch = ["git", "apply", str(mutant.path)]
    applied = subprocess.run(patch, cwd=place, capture_output=True, text=True, check=False)
    if applied.returncode:
        return f"it does not apply: {applied.stderr.strip()}"
    try:
        done = _run(mutant.caught_by, place)
    except subprocess.TimeoutExpired:
        return f"its run did not end within {_MOST_S} s"
    finally:
        subprocess.run([*patch, "--reverse"], cwd=place, check=True)
    if done.returncode == _FAILED:
        return None
    return "it survived" if done.returncode == 0 else f"its run failed:\n{done.stdout[-2000:]}"


def _run(caught_by: list[str], place: Path) -> "subprocess.CompletedProcess[str]":
    if caught_by[0] == "simulation":
        command = ["-m", "tools.simulation", "--seeds", caught_by[1]]
    else:
        command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *caught_by]
    return subprocess.run(
        [sys.executable, *command],
        cwd=place,
        env={**os.environ, "PYTHONPATH": f"{place / 'src'}:{place}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_MOST_S,
        check=False,
    )


def main() -> None:
    """Try each, some at once, and end with status 1 if one survives."""
    all_of_them = list(mutants(sys.argv[1:]))
    wrong: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(_AT_ONCE) as pool:
        places: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(_AT_ONCE):
            (Path(folder) / f"{number}").mkdir()
            places.put(copy_of_the_project(Path(folder) / f"{number}"))

        def attempt(mutant: Mutant) -> None:
            place = places.get()
            try:
                problem = survives(mutant, place)
            finally:
                places.put(place)
            print(f"{'caught' if problem is None else problem}: {mutant.name}", flush=True)
            if problem is not None:
                wrong[mutant.name] = problem

        list(pool.map(attempt, all_of_them))
    print(f"mutants: {len(all_of_them) - len(wrong)} passed, {len(wrong)} failed")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
