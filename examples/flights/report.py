"""The report of the flights job: on the terminal, and as one HTML page with charts."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from dwell.spark.pipelines.charts import BLUE, GREY, RED, chart, legend_above
from dwell.spark.pipelines.page import render
from examples.flights.audit import Books


def show(books: Books) -> None:
    """Print the report."""
    print(f"\n{books.line}\n")
    for check in books.checks:
        mark = "ok " if check.holds else "NO "
        print(f"{mark} {check.what:42} {check.queue:>9,}   data set {check.data:>9,}")
    print()
    for name, value in _sums(books):
        print(f"{name:45} {value}")
    print("\ndeliveries beyond the first, by reason:")
    for reason, count in sorted(books.again.items()):
        print(f"  {count:>7,}  {reason}")
    verdict = "The books balance." if books.is_balanced else "THE BOOKS DO NOT BALANCE."
    print(f"\n{verdict}")


def page(books: Books, audit: str) -> str:
    """Return the report as one HTML page; ``audit`` is where the page of the audit is."""
    charts = {
        "When the reminders fell due": chart(lambda axes: _draw_load(axes, books)),
        "How late they were taken": chart(lambda axes: _draw_lateness(axes, books)),
    }
    values = {
        "books": books,
        "audit": audit,
        "sums": _sums(books),
        "charts": charts,
        "again": sorted(books.again.items()),
    }
    return render(_PAGE, values)


def _sums(books: Books) -> list[tuple[str, str]]:
    sums = [
        ("deliveries", f"{books.deliveries:,}"),
        ("late, p50 / p99 / max (ms)", _late(books.late_ms)),
    ]
    if books.outage:
        seconds = (books.outage.up_ms - books.outage.down_ms) / 1000
        sums.append((f"late, around the {seconds:.1f} s outage (ms)", _late(books.outage_ms)))
    return sums


def _late(counts: Mapping[int, int]) -> str:
    late_ms, each = _arrays(counts)
    every = int(each.sum())
    if not every:
        return "none"
    places = np.searchsorted(each.cumsum(), [every * part for part in (0.5, 0.99, 1)])
    return " / ".join(f"{late_ms[place]:,}" for place in places) + f" of {every:,}"


def _arrays(counts: Mapping[int, int]) -> "tuple[np.ndarray, np.ndarray]":
    """Return values in their order, and how often each is there."""
    pairs = np.array(sorted(counts.items()), dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _draw_load(axes: Axes, books: Books) -> None:
    days = np.array([day.day for day in books.days], dtype="datetime64[D]")
    planned = [day.planned for day in books.days]
    axes.fill_between(days, planned, color=BLUE, alpha=0.25)
    axes.plot(days, planned, color=BLUE, label="scheduled")
    axes.plot(days, [day.cancelled for day in books.days], color=RED, label="cancelled")
    axes.plot(days, [day.moved for day in books.days], color=GREY, label="rescheduled")
    axes.set(ylabel="reminders a day", ylim=(0, None))
    legend_above(axes, 3)


def _draw_lateness(axes: Axes, books: Books) -> None:
    largest = max([1, *books.late_ms, *books.outage_ms])
    # Lateness is in whole milliseconds, so the edges are too.
    edges = np.unique(np.geomspace(1, largest + 2, 40).astype(int) - 1).tolist()
    parts = (("in normal work", books.late_ms, BLUE), ("around the kill", books.outage_ms, RED))
    for label, counts, colour in parts:
        late_ms, each = _arrays(counts)
        axes.hist(late_ms, bins=edges, weights=each, color=colour, alpha=0.7, label=label)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_yscale("log")
    axes.set(xlabel="milliseconds from due to taken", ylabel="reminders", xlim=(0, None))
    legend_above(axes, 2)


_PAGE = """{% extends "base" %}
{% block title %}a year of flights{% endblock %}
{% block body %}
<h1>A year of flights</h1>
<p>{{ books.checks[0].queue|number }} reminders, one for each flight that was to leave New York in
2013, due two hours before departure. Spark scheduled them and brought the news; the year was
replayed{% if books.outage %}, and the server was killed on the way{% endif %}.</p>
<p class="verdict{{ '' if books.is_balanced else ' bad' }}">{{ "The books balance: nothing lost,
nothing early, every second delivery explained." if books.is_balanced else
"The books do not balance." }}</p>
<p>The books themselves: <a href="{{ audit }}">the report of the audit</a>.</p>
<table><tr><th>Check</th><th class="n">queue</th><th class="n">data set</th><th></th></tr>
{% for check in books.checks %}<tr><td>{{ check.what }}</td>
<td class="n">{{ check.queue|number }}</td>
<td class="n">{{ check.data|number }}</td>
<td>{{ "ok" if check.holds else "differs" }}</td></tr>
{% endfor %}</table>
<h2>Sums</h2>
<table>{% for name, value in sums %}<tr><td>{{ name }}</td><td class="n">{{ value }}</td></tr>
{% endfor %}</table>
<h2>Deliveries beyond the first</h2>
<table>{% for reason, count in again %}<tr><td>{{ reason }}</td>
<td class="n">{{ count|number }}</td></tr>{% endfor %}</table>
{% for title, image in charts.items() %}<h2>{{ title }}</h2>
<img alt="{{ title }}" src="{{ image }}">{% endfor %}
{% endblock %}
"""
