"""The command of the simulation: many seeds, a summary, and the shortest history that fails."""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import time
from collections import Counter

from tools.simulation.plan import plan_of
from tools.simulation.run import Outcome, run_many_relays, run_seeds, run_timetables, shorten

_CHUNK = 8
#: What a run may find, in the order of a summary; all others are told under their own names.
_BREACHES = {
    "lost": "lost",
    "early": "early",
    "expired": "expired but taken",
    "doubled": "doubled unexplained",
    "hang": "hangs",
}
_RUNS = {"plans": run_seeds, "timetables": run_timetables, "relays": run_many_relays}
_TALLIES = (
    "answered puts",
    "moments",
    "takes",
    "delivered again",
    "power cuts",
    "kills",
    "faults",
    "full disks",
    "slow disks",
    "restarts",
    "partitions",
    "clock steps",
    "relays killed",
    "lanes taken",
)


def main(words: list[str] | None = None) -> int:
    """Run the seeds; return 1 when any fails."""
    given = _parser().parse_args(words)
    _allow_many_files()
    begun = time.monotonic()
    tally: Counter[str] = Counter()
    failed: list[Outcome] = []
    count = 0
    run = _RUNS[given.what]
    for outcome in _outcomes(run, given.first, given.seeds, given.processes):
        count += 1
        tally += outcome.tally
        if outcome.failure:
            failed.append(outcome)
            if not given.json:
                print(f"seed {outcome.seed}: {outcome.words[:300]}", flush=True)
            if len(failed) >= given.most_failures:
                break
    summary = _summary(count, tally, failed, time.monotonic() - begun)
    print(json.dumps(summary) if given.json else _lines(summary))
    if failed and not given.json and given.shorten and given.what == "plans":
        _tell_short(failed[0])
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--what", choices=_RUNS, default="plans", help="what is run")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--most-failures", type=int, default=20, help="when to stop")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--no-shorten", dest="shorten", action="store_false")
    return parser


def _allow_many_files() -> None:
    """Allow as many open files as the system does: each simulated file is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _outcomes(run, first: int, seeds: int, processes: int):  # type: ignore[no-untyped-def]
    chunks = [
        range(start, min(start + _CHUNK, first + seeds))
        for start in range(first, first + seeds, _CHUNK)
    ]
    if processes <= 1 or len(chunks) <= 1:
        for seed in range(first, first + seeds):
            yield from run(range(seed, seed + 1))
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for outcomes in pool.imap(run, chunks):
            yield from outcomes


def _summary(
    count: int, tally: Counter[str], failed: list[Outcome], seconds: float
) -> dict[str, object]:
    kinds = Counter(outcome.failure for outcome in failed)
    return {
        "seeds": count,
        "seconds": round(seconds, 1),
        **{name: tally[name] for name in _TALLIES},
        **{name: kinds.pop(kind, 0) for kind, name in _BREACHES.items()},
        "other": dict(kinds),
        "failed": [outcome.seed for outcome in failed],
    }


def _lines(summary: dict[str, object]) -> str:
    return "\n".join(f"{name:>20}  {value}" for name, value in summary.items())


def _tell_short(outcome: Outcome) -> None:
    print(f"\nseed {outcome.seed} is made short", flush=True)
    short = shorten(plan_of(outcome.seed), outcome.failure)
    print(f"fails: {short.outcome.words}")
    print(f"settings: {short.plan.settings}")
    for number, step in enumerate(short.plan.steps):
        print(f"#{number:<3} {step}")
    print("what happened:")
    print("\n".join(short.trace[-60:]))
    print(f"again: make simulate SEEDS=1 FIRST={outcome.seed}")


if __name__ == "__main__":
    sys.exit(main())
