"""The page of the forecast: charts and tables."""

import numpy as np
from matplotlib.axes import Axes

from dwell.spark.pipelines.backlog import MINUTE_MS
from dwell.spark.pipelines.charts import BLUE, GREY, RED, chart, legend_above
from dwell.spark.pipelines.load import DAY_MS, HOUR_MS, Load
from dwell.spark.pipelines.page import render

# More points than this are indistinguishable in a chart of this width.
_MOST_POINTS = 2_000
_MOST_ROWS = 24 * 14
_MOST_TOPICS = 100
_MOST_STRETCHES = 100


def page(load: Load) -> str:
    """Return the page, self-contained."""
    charts = {"Due by minute (UTC)": chart(lambda axes: _draw_due(axes, load))}
    if load.backlog is not None:
        charts["Messages that wait (UTC)"] = chart(lambda axes: _draw_backlog(axes, load))
    peak, peak_ms = load.peak
    values = {
        "load": load,
        "peak": peak,
        "peak_ms": peak_ms,
        "end_ms": load.start_ms + len(load.due) * MINUTE_MS,
        "charts": charts,
        "stretches": load.backlog.stretches if load.backlog else [],
        "most_stretches": _MOST_STRETCHES,
        "hours": load.by(HOUR_MS)[:_MOST_ROWS],
        "days": load.by(DAY_MS)[:_MOST_ROWS],
        "topics": load.topics[:_MOST_TOPICS],
    }
    return render(_PAGE, values)


def _points(load: Load, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return times and values, few enough to draw; the largest of each stretch is kept."""
    step = -(-len(values) // _MOST_POINTS)
    starts = np.arange(0, len(values), step)
    times = (load.start_ms + starts * MINUTE_MS).astype("datetime64[ms]")
    return times, np.maximum.reduceat(values, starts)


def _draw_due(axes: Axes, load: Load) -> None:
    times, due = _points(load, load.due)
    axes.fill_between(times, due, color=BLUE, alpha=0.25, step="post")
    axes.plot(times, due, color=BLUE, drawstyle="steps-post", label="due a minute")
    if load.capacity is not None:
        axes.axhline(load.capacity * 60, color=RED, label="capacity")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set(ylabel="messages", ylim=(0, None))
    legend_above(axes, 2)


def _draw_backlog(axes: Axes, load: Load) -> None:
    assert load.backlog is not None
    times, waiting = _points(load, load.backlog.waiting)
    axes.fill_between(times, waiting, color=GREY, alpha=0.4)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set(ylabel="messages", ylim=(0, None))


_PAGE = """{% extends "base" %}
{% block title %}forecast{% endblock %}
{% block body %}
<h1>What falls due</h1>
<p>From {{ load.now_ms|moment }} to {{ end_ms|moment }} (UTC): {{ load.total|number }} messages in
{{ load.topic_count|number }} topics, {{ load.overdue|number }} of them overdue: they count in the
first minute.{% if load.total %} Most fall due in the minute of {{ peak_ms|moment }}:
{{ peak|number }}.{% endif %}</p>
{% if load.backlog is not none %}
<p class="verdict{{ ' bad' if stretches else '' }}">
{% if stretches %}At {{ load.capacity }} a second, {{ load.backlog.minutes_over|number }} minutes
are over the capacity, and messages are late until {{ stretches[-1].end_ms|moment }}.
{% else %}At {{ load.capacity }} a second, nothing is late for longer than its minute.
{% endif %}</p>{% endif %}
{% for title, image in charts.items() %}<h2>{{ title }}</h2>
<img alt="{{ title }}" src="{{ image }}">
{% endfor %}
{% if stretches %}<h2>When messages are late</h2>
<table><tr><th>From (UTC)</th><th>until</th><th class="n">most that wait</th>
<th class="n">late at most (s)</th></tr>
{% for late in stretches[:most_stretches] %}<tr><td>{{ late.start_ms|moment }}</td>
<td>{{ late.end_ms|moment }}</td><td class="n">{{ late.most|number }}</td>
<td class="n">{{ "{:,.0f}".format(late.late_ms / 1000) }}</td></tr>{% endfor %}</table>
{% if stretches|length > most_stretches %}<p>{{ stretches|length - most_stretches }} more.</p>
{% endif %}{% endif %}
<h2>Topics</h2>
<table><tr><th>Topic</th><th class="n">due</th><th class="n">overdue</th>
<th class="n">peak a minute</th><th>at (UTC)</th></tr>
{% for topic in topics %}<tr><td>{{ topic.name }}</td><td class="n">{{ topic.due|number }}</td>
<td class="n">{{ topic.overdue|number }}</td><td class="n">{{ topic.peak|number }}</td>
<td>{{ topic.peak_ms|moment }}</td></tr>{% endfor %}</table>
{% if load.topic_count > topics|length %}<p>{{ (load.topic_count - topics|length)|number }} more
topics are in the table <code>minutes</code>.</p>{% endif %}
<h2>Days</h2>
<table><tr><th>Day (UTC)</th><th class="n">due</th></tr>
{% for start_ms, due in days %}<tr><td>{{ (start_ms|moment)[:10] }}</td>
<td class="n">{{ due|number }}</td></tr>{% endfor %}</table>
<h2>Hours</h2>
<table><tr><th>Hour (UTC)</th><th class="n">due</th></tr>
{% for start_ms, due in hours %}<tr><td>{{ (start_ms|moment)[:16] }}</td>
<td class="n">{{ due|number }}</td></tr>{% endfor %}</table>
{% endblock %}
"""
