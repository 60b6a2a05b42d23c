"""Attack a served store in every way that was ever found, and say whether one gets through.

``python -m tools.attack [--only WORDS] [--store redis]``: each attack has a ``dwell serve`` of
its own, over a new folder or a new Redis, and an honest client beside it. An attack got through
when the server does what it must not, when its memory grows by more than 64 MB, when an honest call
fails, or when one in a hundred takes 100 ms longer than while this machine is only busy, which is
looked at once more where only that is wrong. Then each is done to a server that has 256 MB of
memory to spare: it may refuse, but not end, and has to serve afterwards. Status 1 says that an
attack got through.
"""

import argparse
import contextlib
import math
import resource
import sys
from collections.abc import Iterator

from bench.redis_servers import redis_server
from tools.attack import (
    answers,
    bodies,
    connections,
    expressions,
    files,
    filters,
    metrics,
    pages,
    pipelines,
    quotas,
    rights,
    streams,
    tenants,
    watchers,
)
from tools.attack.attack import Attack
from tools.attack.run import MOST_MS, NOTHING, SPARE_MB, Outcome, outlive, run

ATTACKS = [
    attack
    for room in (
        pipelines,
        connections,
        pages,
        bodies,
        answers,
        expressions,
        filters,
        metrics,
        streams,
        tenants,
        rights,
        quotas,
        files,
        watchers,
    )
    for attack in room.ATTACKS
]
_HEAD = f"{'attack':<50} {'memory':>9} {'calls':>6} {'p50':>8} {'p99':>8} {'longest':>9}  outcome"


def _line(outcome: Outcome) -> str:
    seen = outcome.seen
    times = f"{seen.p50_ms:>5.1f} ms {seen.p99_ms:>5.1f} ms {seen.longest_ms:>6.1f} ms"
    told = f"GOT THROUGH: {outcome.wrong}" if outcome.wrong else outcome.told
    return f"{outcome.name:<50} {outcome.grown_mb:>+6.1f} MB {seen.calls:>6} {times}  {told}"


@contextlib.contextmanager
def _store(*, is_redis: bool) -> Iterator[str]:
    if not is_redis:
        yield ""
        return
    with redis_server() as engine:
        yield engine.url


def _run(attack: Attack, most_ms: float, *, is_redis: bool) -> Outcome:
    with _store(is_redis=is_redis) as store:
        return run(attack, most_ms, store)


def _run_fairly(attack: Attack, most_ms: float, *, is_redis: bool) -> Outcome:
    """Run an attack, and again where only calls took long: what else a machine does takes time."""
    outcome = _run(attack, most_ms, is_redis=is_redis)
    if outcome.is_only_slow:
        usual = _run(NOTHING, math.inf, is_redis=is_redis)
        outcome = _run(attack, MOST_MS + usual.seen.p99_ms, is_redis=is_redis)
    if outcome.wrong:
        return outcome
    with _store(is_redis=is_redis) as store:
        wrong = outlive(attack, outcome.idle_bytes, store)
    return outcome._replace(wrong=wrong and f"with {SPARE_MB} MB to spare: {wrong}")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tools.attack", description=__doc__)
    parser.add_argument("--only", default="", help="words in the names of attacks")
    parser.add_argument("--store", default="embedded", choices=("embedded", "redis"))
    args = parser.parse_args()
    words, is_redis = args.only.split(), args.store == "redis"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    chosen = [attack for attack in ATTACKS if all(word in attack.name for word in words)]
    chosen = [attack for attack in chosen if not (is_redis and attack.needs_folder)]
    print(_HEAD, flush=True)
    outcomes = [_run(NOTHING, math.inf, is_redis=is_redis)]
    print(_line(outcomes[0]), flush=True)
    for attack in chosen:
        most_ms = MOST_MS + outcomes[0].seen.p99_ms
        outcomes.append(_run_fairly(attack, most_ms, is_redis=is_redis))
        print(_line(outcomes[-1]), flush=True)
    through = sum(bool(outcome.wrong) for outcome in outcomes)
    print(f"{len(chosen)} attacks, {through} got through")
    sys.exit(through > 0)


if __name__ == "__main__":
    main()
