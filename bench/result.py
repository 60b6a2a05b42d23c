"""What a benchmark says at its end: for people, or one object of JSON."""

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Result:
    """The figures of one benchmark: rounds of Dwell and of each peer, and more by name."""

    def __init__(self, bench: str, params: dict[str, Any], unit: str) -> None:
        self.bench = bench
        self.params = params
        self.unit = unit
        self._rounds: dict[str, list[float]] = {}
        self.more: dict[str, Any] = {}
        #: Lines that say for people what ``more`` says.
        self.table: list[str] = []

    def in_turn(self, rounds: int, systems: Mapping[str, Callable[[], float]]) -> None:
        """Run every system once a round, in turn, and keep what each returns."""
        for number in range(rounds):
            for name, run in systems.items():
                self.add(name, run())
                value = self._rounds[name][-1]
                print(f"  round {number + 1}: {name} {_number(value)} {self.unit}", file=sys.stderr)

    def add(self, system: str, value: float) -> None:
        """Keep one figure of a system."""
        self._rounds.setdefault(system, []).append(value)

    def median(self, system: str) -> float:
        """Return the median over the rounds."""
        return statistics.median(self._rounds[system])

    def as_dict(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        dwell = self.median("dwell")
        peers = {name: self.median(name) for name in self._rounds if name != "dwell"}
        return {
            "bench": self.bench,
            "params": self.params,
            "unit": self.unit,
            "dwell": round(dwell, 3),
            "peers": {name: round(value, 3) for name, value in peers.items()},
            "ratio": {name: round(dwell / value, 3) for name, value in peers.items() if value},
            **self.more,
        }

    def show(self, *, as_json: bool) -> None:
        """Print the figures."""
        figures = self.as_dict()
        if as_json:
            print(json.dumps(figures), flush=True)
            return
        params = " ".join(f"{name}={value}" for name, value in self.params.items())
        print(f"{self.bench} ({params}), {self.unit}, median of {len(self._rounds['dwell'])}")
        print(f"  dwell {_number(figures['dwell'])}")
        for name, value in figures["peers"].items():
            print(f"  {name} {_number(value)}  dwell/{name} = {figures['ratio'].get(name)}")
        for line in self.table or [f"{name} {more}" for name, more in self.more.items()]:
            print(f"  {line}")


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return a percentile of values in order."""
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
