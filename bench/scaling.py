"""A store of four shards on clusters of 1, 2 and 4 masters: messages a second on four of them.

It shows what parting a store costs, and how the commands and the work are shared: the processes
of Redis, and the one of Dwell that drives them, need as many processors to be faster together.
"""

import statistics
from dataclasses import dataclass, field

from bench.lifecycle import Life, dwell_on_redis
from bench.redis_servers import Cluster, redis_cluster
from bench.result import Result

_CALLERS = 64
_SHARDS = 4
_MASTERS = (1, 2, 4)
_HEADS = ("masters", "messages/s", "commands", "server us", "single/s", "commands", "server us")


@dataclass(slots=True)
class Row:
    """What was measured on one cluster: batches of 1,000, and single messages of 64 callers."""

    batches: list[Life] = field(default_factory=list)
    singles: list[Life] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Return the medians by name; all but the speeds are for one message."""
        return {
            f"{kind}{name}": statistics.median(getattr(life, name) for life in lives)
            for kind, lives in (("", self.batches), ("single_", self.singles))
            for name in Life._fields
        }


def run(*, messages: int, rounds: int) -> Result:
    """Measure one cluster after the other, each with a new store a round."""
    result = Result("scaling", {"shards": _SHARDS, "messages": messages}, "messages/s")
    result.table.append(" ".join(f"{head:>10}" for head in _HEADS))
    for masters in _MASTERS:
        row = Row()
        with redis_cluster(masters) as cluster:
            for _ in range(rounds):
                row.batches.append(_measure(cluster, messages, 1000))
                row.singles.append(_measure(cluster, messages // 10, 1))
        figures = row.figures()
        numbers = " ".join(f"{value:>10,.{_digits(value)}f}" for value in figures.values())
        result.table.append(f"{masters:>10} {numbers}")
        result.more |= {f"{name}_{masters}": round(value, 4) for name, value in figures.items()}
    for life in row.batches:
        result.add("dwell", life.speed)
    return result


def _measure(cluster: Cluster, messages: int, batch: int) -> Life:
    for node in cluster.nodes:
        node.ask("FLUSHALL")
    url, pids = f"{cluster.url}?shards={_SHARDS}", [node.pid for node in cluster.nodes]
    return dwell_on_redis(url, pids, messages, batch, "queue", _CALLERS)


def _digits(value: float) -> int:
    return 0 if value >= 1000 else 3
