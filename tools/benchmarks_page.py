"""Write docs/benchmarks-peers.md, its charts and the README's figures from ``make bench-peers``.

``python -m tools.benchmarks_page [JSON]``: docs/benchmarks/peers.json, unless another is given.
"""

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools.states_docs import table

DOCS = Path(__file__).parents[1] / "docs"
README = DOCS.parent / "README.md"
PAGE = DOCS / "benchmarks-peers.md"
FOUND = DOCS / "benchmarks" / "peers.json"
Cell = dict[str, Any]


class Section(NamedTuple):
    """Measures that share a table, and those of them that are charts."""

    title: str
    words: str
    measures: list[str]
    charts: list[str]


SECTIONS = [
    Section(
        "Whole lives",
        "Messages of 200 bytes a second, from the first put until nine tenths were delivered: put "
        "singly by 64 callers and taken by 1, 2 or 16 takers, or in batches of up to 1,000 by 4 "
        "callers and taken by 2. Takers ask for as many as they may have, up to 1,000.",
        ["singles 1", "singles 2", "singles 16", "batches"],
        ["singles 2", "batches"],
    ),
    Section(
        "Lateness",
        "Milliseconds from due to taken, by 2 takers: p50 / p99 / longest. *Pending* is with "
        "many others that fall due on another day. Early is counted over all rounds.",
        ["late 100", "late 2000", "late 10000", "late 2000 pending", "late 10000 pending"],
        ["late 2000"],
    ),
    Section(
        "A burst",
        "Many messages fall due at one moment: seconds until the last was delivered.",
        ["burst"],
        ["burst"],
    ),
    Section(
        "By id",
        "Verbs a second, by 64 callers of one id each, or in batches, with the others pending.",
        ["cancel", "move", "cancel batches", "move batches"],
        [],
    ),
    Section(
        "Pending messages",
        "Memory (of the server and of one worker, without pages of files) and disk for each, in "
        "bytes, and how many seconds longer a start after SIGKILL takes than an empty one. Each "
        "peer has as many pending as there should be, or as it took in the time for that.",
        ["memory", "disk", "restart"],
        [],
    ),
    Section(
        "SIGKILL",
        "The engine is killed in the middle of 200 puts a second, each 300 ms before its due, and "
        "started again at once: longest gap between deliveries in ms; of the confirmed messages "
        "how many are missing (not delivered within 75 s), doubled and early; and how many calls "
        "raised an error. A message that was just being taken comes back at once where a "
        "connection holds it and where its taker asks again (Dwell over HTTP), else when its lease "
        "ends: after a minute in Dwell in one process.",
        ["kill"],
        [],
    ),
]

#: The measures in the README, and the names of the peers there.
_README_MEASURES = {
    "singles 2": "single messages a second, 64 callers and 2 takers",
    "batches": "messages a second in batches of up to 1,000",
    "late 2000": "p99 of lateness at 2,000 due a second, ms",
    "burst": "50,000 due at one moment, until the last is delivered, s",
    "move": "single messages moved to another due, a second",
    "memory": "memory a pending message, bytes",
}
_README_PEERS = {
    "dwell": "Dwell over HTTP",
    "dwell embedded": "Dwell in the process",
    "sql": "PostgreSQL, SKIP LOCKED",
    "nats": "NATS, synced later",
    "nats sync": "NATS, synced",
    "river": "River",
    "bullmq": "BullMQ",
}
_BEGIN, _END = "<!-- made: peers -->\n", "<!-- /made -->"

_FAIRNESS = """\
- A confirmed put is one whose call returned. Dwell, SQL, River, procrastinate, awa, beanstalkd
  `-f 0` and NATS with `sync always` have then synced it; Redis with `everysec` within a second,
  NATS as it comes within two minutes, and what is *in memory* never. RabbitMQ confirms durable
  messages once they are synced.
- Acks of Dwell, SQL, River, procrastinate, awa, BullMQ and beanstalkd are confirmed, acks of
  NATS and RabbitMQ are sent. RQ and huey take a job off its list before it runs, and so does
  Celery with its default: nothing is left to be acked.
- Takers of Dwell, SQL, NATS, RabbitMQ and beanstalkd are loops or callbacks that note a message
  and ack it. The others are frameworks: they call a handler for each job, with retries and states
  that the loops do not have, and whoever needs those pays for them elsewhere.
- Drivers are in their users' languages: Go and Node use less of a core for a message than Python
  does, whose clients (Dwell's among them) share two cores with the servers here.
- Bodies begin with a number, and deliveries are written to a file with the time of the same
  machine: all counts and percentiles come from there, by the same code.
- A ratio is Dwell's figure divided by the peer's in the same round, as a median over the rounds;
  a library in one process is compared with Dwell in one process.
"""


def _wrapped(words: str) -> str:
    return textwrap.fill(words, 100, break_on_hyphens=False, break_long_words=False)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:g}"


def _cell(cell: Cell) -> str:
    """Return what a table says of a peer."""
    if "why" in cell:
        return str(cell["why"])
    if "p50" in cell:
        text = " / ".join(_number(cell[key]) for key in ("p50", "value", "max"))
    else:
        text = _number(cell["value"])
    if "pending" in cell:
        text += f" of {cell['pending']:,.0f}"
    counts = ("missing", "doubled", "early", "errors") if "missing" in cell else ("early",)
    told = [f"{cell[key]:,.0f} {key}" for key in counts if "missing" in cell or cell.get(key)]
    return ", ".join([text, *told]) + _ratio(cell)


def _ratio(cell: Cell) -> str:
    if "ratio" not in cell:
        return ""
    if cell["rounds"] == 1:
        return f" ({cell['ratio']:g})"
    return f" ({cell['ratio']:g}; {cell['ratio_low']:g} to {cell['ratio_high']:g})"


def _section(section: Section, measures: dict[str, Any]) -> Iterator[str]:
    names = [name for name in section.measures if name in measures]
    if not names:
        return
    yield from (f"## {section.title}", "", _wrapped(section.words), "")
    for name in section.charts:
        if name in measures:
            what = f"{measures[name]['what']}, {measures[name]['unit']}"
            yield from (f"![{what}](images/{_chart(name)})", "")
    peers = measures[names[0]]["peers"]
    rows = ([peer, *(_cell(measures[name]["peers"][peer]) for name in names)] for peer in peers)
    yield from (*table(["", *names], rows), "")


def _losses(found: dict[str, Any]) -> list[list[str]]:
    """Return where a peer is ahead in each round, the largest distance first."""
    rows = []
    for name, measure in found["measures"].items():
        for peer, cell in measure["peers"].items():
            if "ratio" not in cell:
                continue
            more = measure["more_is_better"]
            worst = cell["ratio_high"] if more else cell["ratio_low"]
            behind = 1 / cell["ratio"] if more and cell["ratio"] else cell["ratio"]
            if (worst < 1) == more and worst != 1 and behind > 1:
                beside = "dwell embedded" if peer == "river sqlite" else "dwell"
                values = [
                    f"{_number(one['value'])} {measure['unit']}"
                    for one in (measure["peers"][beside], cell)
                ]
                rows.append((behind, [name, values[0], f"{peer}: {values[1]}", f"{behind:.1f}"]))
    return [row for _, row in sorted(rows, key=lambda row: -row[0])]


def render(found: dict[str, Any]) -> str:
    """Return the page."""
    params, load = found["params"], found["load"]
    small = "**This was a small run: it shows that all runs, and its figures say little.** "
    lines = [
        "# Benchmarks beside peers",
        "",
        _wrapped(
            "Other queues that people pick, measured in turn with Dwell by `make bench-peers`; "
            "this page is made from [its figures](benchmarks/peers.json) by "
            "`python -m tools.benchmarks_page`. [Benchmarks](benchmarks.md) has Dwell's own."
        ),
        "",
        _wrapped(
            f"{small if params['small'] else ''}{found['date']}, rounds: {params['rounds']}, "
            f"{found['machine']}, load {load[0]} to {load[1]}. Figures are medians; in parentheses "
            "is the ratio of Dwell to the peer, with its spread over the rounds. Above 1, Dwell "
            "does more in a second, or takes longer or needs more."
        ),
        "",
        "## Where Dwell loses",
        "",
        "In every round, by the distance:",
        "",
        *table(["measure", "Dwell", "peer", "times"], _losses(found)),
        "",
    ]
    for section in SECTIONS:
        lines += _section(section, found["measures"])
    lines += [
        "## What was measured",
        "",
        *table(["peer", "how"], map(list, found["notes"].items())),
    ]
    versions = (f"{name.removeprefix('github.com/')} {v}" for name, v in found["versions"].items())
    lines += ["", f"Versions: {', '.join(versions)}.", "", "## What is fair", "", _FAIRNESS]
    return "\n".join(lines)


def in_readme(found: dict[str, Any], text: str) -> str:
    """Return the README with the figures of the best known peers in its block."""
    peers = [peer for peer in _README_PEERS if peer in found["notes"]]
    rows = []
    for name, words in _README_MEASURES.items():
        cells = [found["measures"][name]["peers"][peer] for peer in peers]
        rows.append([words, *(_number(c["value"]) if "value" in c else "–" for c in cells)])
    lines = table(["", *(_README_PEERS[peer] for peer in peers)], rows)
    before, rest = text.split(_BEGIN)
    after = rest.partition(_END)[2]
    return "".join((before, _BEGIN, *(f"{line}\n" for line in lines), _END, after))


def _chart(name: str) -> str:
    return f"peers-{name.replace(' ', '-')}.svg"


def draw(name: str, measure: dict[str, Any], folder: Path) -> None:
    """Write the chart of a measure: a bar a peer, on a scale of powers of ten."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    values = {p: c["value"] for p, c in measure["peers"].items() if c.get("value", 0) > 0}
    ordered = sorted(values, key=values.__getitem__, reverse=not measure["more_is_better"])
    # Text stays text, and the same figures are the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9}):
        figure = Figure(figsize=(7, 0.6 + 0.26 * len(ordered)), layout="constrained")
        axes = figure.subplots()
        colours = ["#c2410c" if peer.startswith("dwell") else "#94a3b8" for peer in ordered]
        bars = axes.barh(ordered, [values[peer] for peer in ordered], color=colours)
        axes.bar_label(bars, [_number(values[peer]) for peer in ordered], padding=3)
        axes.set_xscale("log")
        axes.margins(x=0.15)
        axes.set_xlabel(f"{measure['what']}, {measure['unit']}")
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(
            folder / _chart(name), metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )


def main() -> None:
    """Write the page, its charts and the block of the README."""
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else FOUND
    found = json.loads(place.read_text())
    for section in SECTIONS:
        for name in section.charts:
            if name in found["measures"]:
                draw(name, found["measures"][name], DOCS / "images")
    PAGE.write_text(render(found))
    README.write_text(in_readme(found, README.read_text()))


if __name__ == "__main__":
    main()
