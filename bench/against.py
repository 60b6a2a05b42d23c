"""Run a benchmark on this revision and another one, in turn: ``python -m bench.against REV NAME``.

Both run with the packages of this checkout's environment, each with its own benchmarks. What
follows the name is passed on to it.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.__main__ import BENCHES

_ROOT = Path(__file__).parents[1]


def main(words: list[str] | None = None) -> int:
    """Print each round, and one line of JSON with the medians and their ratio at the end."""
    parser = argparse.ArgumentParser(prog="python -m bench.against", description=__doc__)
    parser.add_argument("revision", help="a commit, a branch or a tag of this repository")
    parser.add_argument("name", choices=BENCHES, metavar="name", help="a benchmark")
    parser.add_argument("--rounds", type=int, default=5, help="how often each runs")
    given, options = parser.parse_known_args(words)
    found: dict[str, list[dict[str, Any]]] = {"here": [], "there": []}
    with checkout(given.revision) as there:
        for round_ in range(given.rounds):
            trees = [("here", _ROOT), ("there", there)]
            # Whatever gets slower or faster with time is the same for both.
            for who, tree in trees if round_ % 2 == 0 else reversed(trees):
                found[who].append(_measured(tree, given.name, options))
            here, other = (found[who][-1]["dwell"] for who in ("here", "there"))
            print(f"{given.name}: {here:.4g} here, {other:.4g} at {given.revision}", flush=True)
    print(json.dumps(_summary(given.revision, found["here"], found["there"])))
    return 0


@contextlib.contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Give a checkout of a revision, with the environment and the brokers of this one."""
    git = ["git", "-C", str(_ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run([*git, "add", "--quiet", "--detach", tree, revision], check=True)
        try:
            for name in (".venv", ".brokers"):
                (tree / name).symlink_to(_ROOT / name)
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", tree], check=True)


def _measured(tree: Path, name: str, options: list[str]) -> dict[str, Any]:
    """Return what one round of a benchmark tells in its last line."""
    python = tree / ".venv" / "bin" / "python"
    once = ["--rounds", "1"] if "rounds" in BENCHES[name][1] else []
    command = [str(python), "-m", "bench", name, "--json", *once, *options]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _summary(revision: str, here: list[Any], there: list[Any]) -> dict[str, Any]:
    ours, theirs = ([result["dwell"] for result in results] for results in (here, there))
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    mine, other = statistics.median(ours), statistics.median(theirs)
    return {
        **{name: here[0][name] for name in ("bench", "params", "unit")},
        "dwell": mine,
        "peers": {revision: other},
        "ratio": {revision: round(mine / other, 3)},
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


if __name__ == "__main__":
    sys.exit(main())
