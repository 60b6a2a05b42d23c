"""The report of the flights job: on the terminal, and as one HTML page with charts."""

import base64
import io

import matplotlib as mpl
import numpy as np
from jinja2 import Environment
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from examples.flights.audit import Books, percentile
from examples.flights.plan import Flights

mpl.use("Agg")

_BLUE, _RED, _GREY = "#2563a8", "#b8402a", "#8a8f98"


def show(books: Books) -> None:
    """Print the report."""
    print()
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


def page(books: Books, flights: Flights) -> str:
    """Return the report as one HTML page that needs nothing else."""
    charts = [
        ("When the reminders fell due", _chart(lambda axes: _draw_load(axes, flights))),
        ("How late they were taken", _chart(lambda axes: _draw_lateness(axes, books))),
        ("What became of them", _chart(lambda axes: _draw_outcomes(axes, books))),
    ]
    template = Environment(autoescape=True).from_string(_PAGE)
    return template.render(
        books=books, sums=_sums(books), charts=charts, again=sorted(books.again.items())
    )


def _sums(books: Books) -> list[tuple[str, str]]:
    whole = books.acked + books.cancelled + books.dead + books.pending
    late, down = books.late_ms, books.outage_ms
    sums = [
        ("accepted", f"{books.accepted:,}"),
        ("acked + cancelled + dead + pending", f"{whole:,}"),
        ("lost", f"{books.lost:,}"),
        ("early", f"{books.early:,}"),
        ("deliveries", f"{books.deliveries:,}"),
        ("late, p50 / p99 / max (ms)", _late(late)),
    ]
    if books.outage:
        seconds = (books.outage.up_ms - books.outage.down_ms) / 1000
        sums.append((f"late, due around the {seconds:.1f} s outage (ms)", _late(down)))
    return sums


def _late(late_ms: list[int]) -> str:
    figures = [percentile(late_ms, part) for part in (50, 99, 100)]
    return " / ".join(f"{figure:,}" for figure in figures) + f" of {len(late_ms):,}"


def _chart(draw) -> str:  # type: ignore[no-untyped-def]
    figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    draw(axes)
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=120)
    plt.close(figure)
    return base64.b64encode(data.getvalue()).decode()


def _draw_load(axes: Axes, flights: Flights) -> None:
    days = flights.due // (24 * 60)
    moved = (flights.due + flights.delay)[flights.delay > 0] // (24 * 60)
    first = int(days.min())
    size = int(max(days.max(), moved.max(initial=0))) - first + 1
    dates = np.arange(first, first + size).astype("datetime64[D]")
    axes.fill_between(dates, np.bincount(days - first, minlength=size), color=_BLUE, alpha=0.25)
    axes.plot(dates, np.bincount(days - first, minlength=size), color=_BLUE, label="scheduled")
    gone = np.bincount(days[flights.cancelled] - first, minlength=size)
    axes.plot(dates, gone, color=_RED, label="cancelled")
    axes.plot(dates, np.bincount(moved - first, minlength=size), color=_GREY, label="rescheduled")
    axes.set(ylabel="reminders a day", ylim=(0, None))
    axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.18))


def _draw_lateness(axes: Axes, books: Books) -> None:
    everything = books.late_ms + books.outage_ms
    # Lateness is in whole milliseconds, so the edges are too.
    edges = np.unique(np.geomspace(1, max([2, *everything]) + 1, 40).astype(int) - 1)
    axes.hist(books.late_ms, bins=edges.tolist(), color=_BLUE, label="in normal work")
    axes.hist(books.outage_ms, bins=edges.tolist(), color=_RED, alpha=0.7, label="around the kill")
    axes.set_xscale("symlog", linthresh=1)
    axes.set_yscale("log")
    axes.set(xlabel="milliseconds from due to taken", ylabel="reminders", xlim=(0, None))
    axes.legend(frameon=False)


def _draw_outcomes(axes: Axes, books: Books) -> None:
    names = ["acked", "cancelled", "dead", "pending", "lost"]
    values = [getattr(books, name) for name in names]
    bars = axes.barh(names, values, color=[_BLUE, _GREY, _RED, _GREY, _RED])
    axes.bar_label(bars, labels=[f"{value:,}" for value in values], padding=4)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set(xlabel="reminders", xlim=(0, max(values) * 1.15))


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Dwell: a year of flights</title>
<style>
 body { font: 16px/1.5 system-ui, sans-serif; color: #1d232b; max-width: 60rem; margin: 2rem auto;
        padding: 0 1rem; }
 h1 { font-size: 1.6rem; margin-bottom: .2rem } h2 { font-size: 1.1rem; margin-top: 2rem }
 table { border-collapse: collapse; width: 100% }
 td, th { padding: .3rem .6rem; border-bottom: 1px solid #dfe3e8; text-align: left }
 td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
 .verdict { padding: .6rem 1rem; border-left: 4px solid #2e8b57; background: #eef7f1 }
 .verdict.bad { border-color: #b8402a; background: #fbeeea }
 img { width: 100%; height: auto }
</style></head><body>
<h1>A year of flights</h1>
<p>{{ "{:,}".format(books.accepted) }} reminders, one for each flight that was to leave New York in
2013, due two hours before departure; the year was replayed{% if books.outage %}, and the process
was killed on the way{% endif %}.</p>
<p class="verdict{{ '' if books.is_balanced else ' bad' }}">{{ "The books balance: nothing lost,
nothing early, every second delivery explained." if books.is_balanced else
"The books do not balance." }}</p>
<table><tr><th>Check</th><th class="n">queue</th><th class="n">data set</th><th></th></tr>
{% for check in books.checks %}<tr><td>{{ check.what }}</td>
<td class="n">{{ "{:,}".format(check.queue) }}</td>
<td class="n">{{ "{:,}".format(check.data) }}</td>
<td>{{ "ok" if check.holds else "differs" }}</td></tr>
{% endfor %}</table>
<h2>Sums</h2>
<table>{% for name, value in sums %}<tr><td>{{ name }}</td><td class="n">{{ value }}</td></tr>
{% endfor %}</table>
<h2>Deliveries beyond the first</h2>
<table>{% for reason, count in again %}<tr><td>{{ reason }}</td>
<td class="n">{{ "{:,}".format(count) }}</td></tr>{% endfor %}</table>
{% for title, image in charts %}<h2>{{ title }}</h2>
<img alt="{{ title }}" src="data:image/png;base64,{{ image }}">{% endfor %}
</body></html>
"""
