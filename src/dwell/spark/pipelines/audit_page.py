"""The report of the audit: one page with charts."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dwell.spark.pipelines.books import MOST_LISTED, Books, Entry
from dwell.spark.pipelines.charts import BLUE, GREY, RED, chart, legend_above
from dwell.spark.pipelines.closing import Check
from dwell.spark.pipelines.page import render

_MOST_TOPICS = 100
_MOST_BARS = 20
_OUTCOMES = {"acked": BLUE, "cancelled": GREY, "dead": RED, "pending": "#d9a441"}


def page(books: Books, checks: Sequence[Check], lost: int, meanwhile: int = 0) -> str:
    """Return the report, self-contained; ``lost`` also counts messages missing in the server.

    ``meanwhile`` is how many events happened while the server counted.
    """
    topics = sorted(books.topics.items(), key=lambda item: -item[1].accepted)
    charts = {
        "Events by hour (UTC)": chart(lambda axes: _draw_load(axes, books)),
        "How late first deliveries were": chart(lambda axes: _draw_lateness(axes, books)),
        "What became of the messages, by topic": chart(lambda axes: _draw_outcomes(axes, books)),
        "Attempts of the acked messages": chart(lambda axes: _draw_attempts(axes, books)),
    }
    values = {
        "books": books,
        "total": books.total,
        "checks": checks,
        "lost": lost,
        "meanwhile": meanwhile,
        "holds": all(check.holds for check in checks),
        "topics": topics[:_MOST_TOPICS],
        "charts": charts,
        "lists": _lists(books),
        "most_listed": MOST_LISTED,
    }
    return render(_PAGE, values)


def _lists(books: Books) -> list[tuple[str, int, Sequence[Entry]]]:
    total = books.total
    return [
        ("Lost: events that the states do not allow", total.broken, books.broken),
        ("Early: taken before the due", total.early, books.early),
        ("Doubled: taken while leased, or after the end", total.doubled, books.doubled),
        ("Deliveries beyond the first", total.again, books.delivered_again),
    ]


def _draw_load(axes: Axes, books: Books) -> None:
    times = np.array([hour.start_ms for hour in books.hours], dtype="datetime64[ms]")
    for kind, colour in (("put", GREY), ("take", BLUE), ("cancel", RED)):
        counts = [hour.kinds[kind] for hour in books.hours]
        axes.plot(times, counts, color=colour, label=kind, marker="." if len(times) < 50 else "")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set(ylabel="events an hour", ylim=(0, None))
    if len(times):
        # Otherwise the axis for a single hour would span years.
        hour = np.timedelta64(1, "h")
        axes.set_xlim(times[0] - hour, times[-1] + hour)
        legend_above(axes, 3)


def _draw_lateness(axes: Axes, books: Books) -> None:
    late = np.array(list(books.late_ms), dtype=np.int64)
    counts = np.array(list(books.late_ms.values()), dtype=np.int64)
    # Lateness is in whole milliseconds, so the edges are too.
    edges = np.unique(np.geomspace(1, max(2, late.max(initial=0) + 1) + 1, 40).astype(int) - 1)
    axes.hist(late, bins=edges.tolist(), weights=counts, color=BLUE)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_yscale("symlog", linthresh=1)
    axes.set(xlabel="milliseconds from due to taken", ylabel="deliveries", xlim=(0, None))


def _draw_outcomes(axes: Axes, books: Books) -> None:
    largest = sorted(books.topics.items(), key=lambda item: -item[1].accepted)[:_MOST_BARS]
    names = [name if len(name) < 30 else name[:27] + "..." for name, _ in largest]
    places, left = np.arange(len(largest)), np.zeros(len(largest))
    for outcome, colour in _OUTCOMES.items():
        counts = np.array([getattr(account, outcome) for _, account in largest], dtype=float)
        axes.barh(places, counts, left=left, color=colour, label=outcome)
        left = left + counts
    axes.set_yticks(places, names, fontsize=8 if len(names) > 10 else 10)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set(xlabel="messages")
    legend_above(axes, len(_OUTCOMES))


def _draw_attempts(axes: Axes, books: Books) -> None:
    bars = axes.bar(list(books.attempts), list(books.attempts.values()), color=BLUE)
    axes.bar_label(bars, labels=[f"{n:,}" for n in books.attempts.values()], padding=2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set(xlabel="attempt that was acked", ylabel="messages")


_PAGE = """{% extends "base" %}
{% block title %}audit{% endblock %}
{% block body %}
<h1>Audit of a queue</h1>
<p>{{ books.events|number }} events, from position {{ books.first_position|number }} to before
{{ books.next_position|number }}; {{ total.accepted|number }} messages.
{% if not books.is_from_start %}What happened before position
{{ books.first_position|number }} is not in the books: the store had dropped it before an audit
read it, or the books were told to begin here. {{ total.known|number }} messages whose put lies
before it count as known from before.{% endif %}</p>
<p class="verdict{{ '' if holds else ' bad' }}">{{ "The books balance: nothing lost, nothing early,
every second delivery explained." if holds else "The books do not balance." }}</p>
<table><tr><th>Accepted</th><th class="n">acked</th><th class="n">cancelled</th>
<th class="n">dead</th><th class="n">pending</th><th class="n">lost</th><th class="n">early</th>
<th class="n">doubled</th></tr>
<tr><td>{{ total.accepted|number }}</td><td class="n">{{ total.acked|number }}</td>
<td class="n">{{ total.cancelled|number }}</td><td class="n">{{ total.dead|number }}</td>
<td class="n">{{ total.pending|number }}</td><td class="n">{{ lost|number }}</td>
<td class="n">{{ total.early|number }}</td><td class="n">{{ total.doubled|number }}</td></tr>
</table>
<h2>Checks</h2>
{% if meanwhile %}<p>The server was in use: {{ meanwhile|number }} events happened while it counted.
Its counts have an unknown part of them, and are compared as exactly as this allows.</p>{% endif %}
<table><tr><th>Check</th><th class="n">books</th><th class="n">must be</th><th></th></tr>
{% for check in checks %}<tr><td>{{ check.what }}</td><td class="n">{{ check.books|number }}</td>
<td class="n">{{ check.other|number }}</td><td>{{ "ok" if check.holds else "NO" }}</td></tr>
{% endfor %}</table>
{% for title, image in charts.items() %}<h2>{{ title }}</h2>
<img alt="{{ title }}" src="{{ image }}">
{% endfor %}
<h2>Topics</h2>
<table><tr><th>Topic</th><th class="n">accepted</th><th class="n">acked</th>
<th class="n">cancelled</th><th class="n">dead</th><th class="n">pending</th>
<th class="n">deliveries</th><th class="n">again</th>
<th class="n">late p50 / p90 / p99 / max (ms)</th></tr>
{% for name, account in topics %}<tr><td>{{ name }}</td>
<td class="n">{{ account.accepted|number }}</td><td class="n">{{ account.acked|number }}</td>
<td class="n">{{ account.cancelled|number }}</td><td class="n">{{ account.dead|number }}</td>
<td class="n">{{ account.pending|number }}</td><td class="n">{{ account.deliveries|number }}</td>
<td class="n">{{ account.again|number }}</td><td class="n">{{ account.late.p50_ms|number }} /
{{ account.late.p90_ms|number }} / {{ account.late.p99_ms|number }} /
{{ account.late.max_ms|number }}</td></tr>
{% endfor %}</table>
{% if books.topics|length > topics|length %}<p>{{ (books.topics|length - topics|length)|number }}
more topics are in the table <code>hours</code>.</p>{% endif %}
<h2>Why messages were delivered again</h2>
<table>{% for reason, count in books.again.items() %}<tr><td>{{ reason }}</td>
<td class="n">{{ count|number }}</td></tr>{% else %}<tr><td>None was.</td></tr>{% endfor %}</table>
{% if books.gaps %}<h2>Positions without an event</h2>
<table>{% for first, last in books.gaps %}<tr><td>{{ first|number }} to {{ last|number }}</td>
</tr>{% endfor %}</table>{% endif %}
{% for title, count, entries in lists %}<h2>{{ title }}: {{ count|number }}</h2>
{% if entries %}<details{{ ' open' if not loop.last else '' }}>
<summary>{{ "the first " ~ most_listed|number if count > most_listed else "all" }}</summary>
<table><tr><th>Topic</th><th>id</th><th class="n">position</th><th>time (UTC)</th>
<th>due (UTC)</th><th class="n">attempt</th><th>why</th></tr>
{% for entry in entries %}<tr><td>{{ entry.topic }}</td><td>{{ entry.id }}</td>
<td class="n">{{ entry.position|number }}</td><td>{{ entry.time_ms|moment }}</td>
<td>{{ entry.due_ms|moment }}</td><td class="n">{{ entry.attempt }}</td><td>{{ entry.why }}</td>
</tr>{% endfor %}</table></details>{% endif %}
{% endfor %}
{% endblock %}
"""
