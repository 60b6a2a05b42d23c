"""Running plans: one to its end, many side by side, and one that fails made as short as it goes."""

import gc
import logging
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from tools.simulation.history import Broken
from tools.simulation.loop import NothingLeft, Spinning
from tools.simulation.plan import Plan, Step, plan_of
from tools.simulation.relays import Relays
from tools.simulation.served import Served
from tools.simulation.timetable import Timetable
from tools.simulation.world import World

#: How long a run may take of the processor, in seconds; most take less than one.
_MOST_S = 20.0


class Outcome(NamedTuple):
    """What came of a run: the kind of failure and its words, empty when there was none."""

    seed: int
    failure: str
    words: str
    trace_hash: str
    tally: Counter[str]


class Short(NamedTuple):
    """The shortest plan that was found to fail, with the trace of its run."""

    plan: Plan
    outcome: Outcome
    trace: list[str]


class Endless(KeyboardInterrupt):
    """Something never ends, and never lets the loop go on."""


def _stop_endless(*_: object) -> None:
    raise Endless


def run_plan(plan: Plan, trace: list[str] | None = None) -> Outcome:
    """Run a plan; add the lines of its trace to a list."""
    world = World(plan, keeps_trace=trace is not None)
    outcome = _outcome(plan.seed, world.run, world.ledger.tally)
    if trace is not None and world.trace is not None:
        trace += world.trace
    return outcome


def run_timetable(seed: int) -> Outcome:
    """Run the timetable of a seed."""
    return _run_served(Timetable(seed), seed)


def run_relays(seed: int) -> Outcome:
    """Run the relays of a seed."""
    return _run_served(Relays(seed), seed)


def _run_served(served: Served, seed: int) -> Outcome:
    return _outcome(seed, served.run, served.tally)


def _outcome(seed: int, run: Callable[[], str], tally: Counter[str]) -> Outcome:
    signal.signal(signal.SIGVTALRM, _stop_endless)
    signal.setitimer(signal.ITIMER_VIRTUAL, _MOST_S)
    try:
        return _run(seed, run, tally)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _run(seed: int, run: Callable[[], str], tally: Counter[str]) -> Outcome:
    failure, words, trace_hash = "", "", ""
    # Whatever the store warns of is on purpose.
    logging.disable(logging.CRITICAL)
    try:
        trace_hash = run()
    except Broken as broken:
        failure, words = broken.kind, str(broken)
    except (Spinning, NothingLeft) as error:
        failure, words = "hang", str(error)
    except Endless:
        failure, words = "hang", f"a call that does not end within {_MOST_S} s"
    except Exception as error:
        failure, words = "error", repr(error)
    finally:
        logging.disable(logging.NOTSET)
    return Outcome(seed, failure, words, trace_hash, tally)


def run_seed(seed: int) -> Outcome:
    """Run the plan of a seed."""
    return run_plan(plan_of(seed))


def run_seeds(seeds: range) -> list[Outcome]:
    """Run the plans of some seeds, one after another."""
    return _run_each(run_seed, seeds)


def run_timetables(seeds: range) -> list[Outcome]:
    """Run the timetables of some seeds, one after another."""
    return _run_each(run_timetable, seeds)


def run_many_relays(seeds: range) -> list[Outcome]:
    """Run the relays of some seeds, one after another."""
    return _run_each(run_relays, seeds)


def _run_each(run: Callable[[int], Outcome], seeds: range) -> list[Outcome]:
    """Run some seeds; memory is cleared now and then only, as it takes long."""
    outcomes = []
    # What ended processes were about to await never is, and may be told when memory is cleared.
    warnings.simplefilter("ignore", RuntimeWarning)
    gc.collect()
    gc.freeze()
    gc.disable()
    for number, seed in enumerate(seeds):
        outcomes.append(run(seed))
        if number % 16 == 15:
            gc.collect()
    gc.collect()
    gc.unfreeze()
    gc.enable()
    return outcomes


def shorten(plan: Plan, failure: str, most_s: float = 60.0) -> Short:
    """Leave out what a plan that fails does not need to fail in the same way."""
    until_s = time.monotonic() + most_s

    def fails(candidate: Plan) -> bool:
        return time.monotonic() < until_s and run_plan(candidate).failure == failure

    plan = _fewer_steps(plan, fails)
    plan = _fewer_limits(plan, fails)
    plan = _fewer_steps(plan, fails)
    trace: list[str] = []
    outcome = run_plan(plan, trace)
    return Short(plan, outcome, trace)


def _fewer_steps(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    size = len(plan.steps)
    while size:
        start = 0
        while start < len(plan.steps):
            steps = plan.steps[:start] + plan.steps[start + size :]
            candidate = plan._replace(steps=steps)
            if fails(candidate):
                plan = candidate
            else:
                start += size
        size //= 2
    return _smaller_steps(plan, fails)


def _smaller_steps(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Leave out what steps say that need not be said."""
    for index, step in enumerate(plan.steps):
        for name, value in _PLAIN.items():
            if step.args.get(name, value) == value:
                continue
            candidate = _with_step(plan, index, step._replace(args={**step.args, name: value}))
            if fails(candidate):
                plan, step = candidate, plan.steps[index]
                step = candidate.steps[index]
    return plan


#: What a step says when it says nothing special.
_PLAIN = {"count": 1, "size_bytes": 0, "limit": 1, "busy_ms": 0}


def _with_step(plan: Plan, index: int, step: Step) -> Plan:
    return plan._replace(steps=(*plan.steps[:index], step, *plan.steps[index + 1 :]))


def _fewer_limits(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    for name in plan.settings.limits:
        limits = {n: v for n, v in plan.settings.limits.items() if n != name}
        candidate = plan._replace(settings=plan.settings._replace(limits=limits))
        if fails(candidate):
            plan = candidate
    return plan
