"""Measure Dwell and its peers in turn: ``python -m bench.peers --peers sql,nats --small``.

Every round measures each peer once. What a peer cannot do, and where it failed or took too long, is
told in its place, and the others go on. The last line is one object of JSON, as of all benchmarks.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.catalogue import PEERS, Peer
from bench.peers.driver import PeerCannot, PeerFailed
from bench.peers.measures import COUNTS, FULL, MEASURES, SMALL, Figures, Measure, Sizes, fill
from bench.peers.stand import Stand, stand

_MINUTES = 55.0


class Table:
    """What all rounds found: figures by measure and peer, or why there are none."""

    def __init__(self, measures: Sequence[Measure], peers: Sequence[Peer]) -> None:
        self._measures, self._peers = measures, peers
        self._found: dict[tuple[str, str], list[Figures]] = {}
        self._why: dict[tuple[str, str], str] = {}
        self.versions: dict[str, str] = {}

    def add(self, measure: Measure, peer: Peer, figures: Figures) -> None:
        """Keep what a round found."""
        self._found.setdefault((measure.name, peer.name), []).append(figures)

    def give_up(self, measure: Measure, peer: Peer, why: str) -> None:
        """Keep why there is no figure; later rounds do not try again."""
        self._why.setdefault((measure.name, peer.name), why)

    def has_given_up(self, measure: Measure, peer: Peer) -> bool:
        """Return whether an earlier round found no figure."""
        return (measure.name, peer.name) in self._why

    def as_dict(self) -> dict[str, Any]:
        """Return all measures; figures are medians over the rounds."""
        return {
            measure.name: {
                "unit": measure.unit,
                "what": measure.what,
                "more_is_better": measure.more,
                "peers": {peer.name: self._cell(measure, peer) for peer in self._peers},
            }
            for measure in self._measures
        }

    def _cell(self, measure: Measure, peer: Peer) -> dict[str, Any]:
        """Return median and spread of a peer, and of Dwell's ratio to it round by round."""
        found = self._found.get((measure.name, peer.name), [])
        why = self._why.get((measure.name, peer.name))
        if why or not found:
            return {"why": why or "not measured"}
        name = next(iter(found[0]))
        figures = {key: _together(key, [one[key] for one in found]) for key in found[0]}
        values = [one[name] for one in found]
        cell: dict[str, Any] = {"value": _rounded(figures.pop(name)), "rounds": len(values)}
        cell |= {"low": _rounded(min(values)), "high": _rounded(max(values)), **figures}
        ours = [one[name] for one in self._found.get((measure.name, peer.beside), [])]
        ratios = sorted(a / b for a, b in zip(ours, values, strict=False) if b)
        if ratios and peer.name != peer.beside:
            some = statistics.median(ratios), ratios[0], ratios[-1]
            cell["ratio"], cell["ratio_low"], cell["ratio_high"] = map(_rounded, some)
        return cell


def _together(name: str, values: list[float]) -> float:
    return sum(values) if name in COUNTS else _rounded(statistics.median(values))


def _rounded(value: float) -> float:
    """Return a figure with three digits that count, and all before the point."""
    return float(f"{value:.0f}") if abs(value) >= 100 else float(f"{value:.3g}")


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def run(
    peers: Sequence[Peer],
    measures: Sequence[Measure],
    sizes: Sizes,
    rounds: int,
    minutes: float = _MINUTES,
) -> dict[str, Any]:
    """Measure all in turn, in as many rounds as the minutes allow; return what is printed."""
    table, began = Table(measures, peers), time.strftime("%Y-%m-%d")
    known: dict[str, dict[str, float]] = {peer.name: {} for peer in peers}
    load, start, took_s = [os.getloadavg()[0]], time.monotonic(), 0.0
    for number in range(rounds):
        begun = time.monotonic()
        if begun - start + took_s > 60 * minutes:
            _say(f"no more rounds in {minutes:g} minutes")
            break
        for peer in peers:
            _say(f"round {number + 1}: {peer.name}")
            for filled in (False, True):
                some = [m for m in measures if m.filled == filled]
                some = [m for m in some if number == 0 or not (m.once or m.filled)]
                _round(table, peer, some, sizes, known)
            load.append(os.getloadavg()[0])
        took_s = time.monotonic() - begun
    found = table.as_dict()
    first = found[measures[0].name]
    cells = {name: cell for name, cell in first["peers"].items() if "value" in cell}
    others = {name: cell for name, cell in cells.items() if name != "dwell"}
    return {
        "bench": "peers",
        "params": {"small": sizes == SMALL, "rounds": rounds, **vars(sizes)},
        "unit": f"{first['unit']} of {measures[0].name}",
        "dwell": cells.get("dwell", {}).get("value"),
        "peers": {name: cell["value"] for name, cell in others.items()},
        "ratio": {name: cell["ratio"] for name, cell in others.items() if "ratio" in cell},
        "date": began,
        "machine": _machine(),
        "load": [round(min(load), 1), round(max(load), 1)],
        "versions": table.versions,
        "notes": {peer.name: peer.note for peer in peers},
        "measures": found,
    }


def _round(
    table: Table,
    peer: Peer,
    measures: Sequence[Measure],
    sizes: Sizes,
    known: dict[str, dict[str, float]],
) -> None:
    """Measure a peer once; an engine that failed is not used any further."""
    todo = [measure for measure in measures if not table.has_given_up(measure, peer)]
    while todo:
        try:
            with stand(peer, known[peer.name]) as place:
                if todo[0].filled:
                    fill(place, sizes)
                else:
                    place.begin()
                table.versions |= place.versions
                while todo and _measured(table, peer, todo.pop(0), place, sizes):
                    pass
        except (
            PeerFailed,
            OSError,
            AssertionError,
            SystemExit,
            subprocess.SubprocessError,
        ) as error:
            for measure in todo:
                _give_up(table, peer, measure, str(error))
            return


def _measured(table: Table, peer: Peer, measure: Measure, place: Stand, sizes: Sizes) -> bool:
    """Run one measure; return whether the engine can be used for the next one."""
    try:
        figures = measure.run(place, sizes)
    except (PeerFailed, OSError, AssertionError, SystemExit) as error:
        _give_up(table, peer, measure, str(error))
        return isinstance(error, PeerCannot)
    table.add(measure, peer, figures)
    told = ", ".join(f"{_rounded(value):,g} {name}" for name, value in figures.items())
    _say(f"  {measure.name}: {told}")
    return True


def _give_up(table: Table, peer: Peer, measure: Measure, why: str) -> None:
    table.give_up(measure, peer, why.strip().splitlines()[0][:200] if why else "failed")
    _say(f"  {measure.name}: {why}")


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    words = f"{os.cpu_count()} cores of {model or platform.machine()}, {memory:.0f} GB of memory"
    return (
        f"{words}, Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}"
    )


def _chosen(option: str, given: str, all_: Sequence[Any]) -> list[Any]:
    """Return what a list of names with commas between them means; all without one."""
    names = given.split(",") if given else [one.name for one in all_]
    unknown = {*names} - {one.name for one in all_}
    if unknown:
        known = ", ".join(one.name for one in all_)
        raise SystemExit(f"{option}: got {', '.join(sorted(unknown))}, expected some of {known}")
    return [one for one in all_ if one.name in names]


def main(words: list[str] | None = None) -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--peers", default="", help="names with commas between them; all without")
    parser.add_argument("--measures", default="", help="the same")
    parser.add_argument("--rounds", type=int, default=0, help="how often each peer is measured")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="begin no round after")
    parser.add_argument("--small", action="store_true", help="little of everything, one round")
    parser.add_argument("--out", type=Path, help="a file for the object that is printed")
    given = parser.parse_args(words)
    # Whoever ends this program wants its servers to end, too, and their folders to go.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    peers = _chosen("--peers", given.peers, PEERS)
    measures = _chosen("--measures", given.measures, MEASURES)
    rounds = given.rounds or (1 if given.small else 5)
    sizes = SMALL if given.small else FULL
    found = run(peers, measures, sizes, rounds, given.minutes)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
