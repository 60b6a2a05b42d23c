"""Dues that are spread and paced, over many partitions, against the same rule as a plain loop."""

import random

import pytest
from pyspark.sql import functions as F  # noqa: N812

from dwell.errors import InvalidSettings
from dwell.spark.pipelines import pace

NINE_MS = 1_900_000_000_000


def plainly(rows, most, unit_ms):
    """Return the dues by id, one row after the other."""
    dues, last = {}, None
    for due_ms, name in sorted(rows):
        scaled = due_ms * most if last is None else max(due_ms * most, last + unit_ms)
        dues[name], last = scaled // most, scaled
    return dues


def frame(spark, rows):
    return spark.createDataFrame(rows, "due BIGINT, id STRING").repartition(5)


def paced(spark, rows, text):
    done = pace.paced(frame(spark, rows), "due", pace.pace(text), [F.col("id")])
    assert done.columns == ["due", "id"]
    return {row.id: row.due for row in done.collect()}


def most_in(dues_ms, span_ms):
    """Return the most dues that fall into any window of a length, wherever it begins."""
    dues_ms = sorted(dues_ms)
    first = most = 0
    for last, due_ms in enumerate(dues_ms):
        while due_ms - dues_ms[first] >= span_ms:
            first += 1
        most = max(most, last - first + 1)
    return most


@pytest.mark.parametrize(("text", "most", "unit_ms"), [("7/s", 7, 1000), ("600/m", 600, 60_000)])
def test_a_pace_over_many_partitions_is_that_of_a_plain_loop(spark, text, most, unit_ms):
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    # Some all at once, some that the pace need not touch, and some beside a burst.
    rows = [
        (NINE_MS + chance.choice((0, 0, 5_000, chance.randrange(10**7))), f"{n}")
        for n in range(3000)
    ]
    dues = paced(spark, rows, text)
    assert dues == plainly(rows, most, unit_ms), seed
    assert most_in(dues.values(), unit_ms) == most
    assert all(dues[name] >= due_ms for due_ms, name in rows)


def test_the_window_finds_what_is_too_fast():
    assert most_in([0, 0, 999, 1000], 1000) == 3


def test_a_pace_is_the_same_in_every_run(spark):
    rows = [(NINE_MS, f"{n:05}") for n in range(2000)]
    first = paced(spark, rows, "1000/s")
    assert first == paced(spark, list(reversed(rows)), "1000/s")
    assert (min(first.values()), max(first.values())) == (NINE_MS, NINE_MS + 1999)


def test_rows_without_a_due_stay_without_and_take_no_place(spark):
    rows = [(NINE_MS, "a"), (NINE_MS, "b"), (None, "c"), (None, "d")]
    assert paced(spark, rows, "1/s") == {"a": NINE_MS, "b": NINE_MS + 1000, "c": None, "d": None}
    assert paced(spark, [(None, "c")], "1/s") == {"c": None}
    assert paced(spark, [], "1/s") == {}


def test_places_count_over_all_partitions(spark):
    rows = frame(spark, [(NINE_MS + n % 10, f"{n:04}") for n in range(1000)])
    found = pace.numbered(rows, "place", [F.col("due").desc(), F.col("id")]).collect()
    expected = sorted(found, key=lambda row: (-row.due, row.id))
    assert [row.place for row in expected] == list(range(1000))


def test_the_jitter_follows_from_the_id(spark):
    names = spark.range(1000).select(F.col("id").cast("string").alias("id"))
    seen = [
        {
            row.id: row.jitter
            for row in names.repartition(count)
            .withColumn("jitter", pace.jitter_ms(F.col("id"), "30m"))
            .collect()
        }
        for count in (1, 7)
    ]
    assert seen[0] == seen[1]
    jitters = sorted(seen[0].values())
    assert 0 <= jitters[0] < 10_000
    assert 1_790_000 < jitters[-1] < 1_800_000
    assert len(set(jitters)) > 900
    assert names.select(pace.jitter_ms(F.col("id"), None)).distinct().collect() == [(0,)]


@pytest.mark.parametrize("text", ["0/s", "5000", "5000/d", "1.5/s", "-1/s", "1000001/s", ""])
def test_what_is_no_pace_is_refused(text):
    with pytest.raises(InvalidSettings, match=r'--pace: got str .*"5000/s"'):
        pace.pace(text)
