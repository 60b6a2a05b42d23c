"""Local times become the moments that Spark's own cast makes of them, in every zone and year."""

import random
from datetime import datetime, timedelta

import pyarrow as pa
import pytest

from dwell.errors import InvalidSettings
from dwell.spark.plain import moments_in
from dwell.spark.zones import zone_of

#: Names that Spark takes beside those of tzdata.
ODD = (
    *("Z", "UT", "UTC+02:00", "GMT+2", "GMT-3:30", "UT+5", "+2", "-7", "+05:30", "+5:45"),
    *("-0330", "+01:23:45", "+18:00", "-18:00"),
    *("ACT", "AET", "AGT", "ART", "AST", "BET", "BST", "CAT", "CNT", "CST", "CTT", "EAT", "ECT"),
    *("EST", "HST", "IET", "IST", "JST", "MIT", "MST", "NET", "NST", "PLT", "PNT", "PRT", "PST"),
    *("SST", "VST"),
)
#: Names of old systems whose history tzdata changed in 2024: Java and Python may differ there.
RENAMED = {"CET", "EET", "MET", "WET"}
#: Times that are written for never.
NEVER = (datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999))


def are_alike(spark, zone, moment_us):
    """Tell whether Java's tzdata and Python's have the same offsets around a moment.

    One of them may be newer, and history is corrected in both.
    """
    java = spark._jvm.java.time
    rules, ours = java.ZoneId.of(zone).getRules(), zone_of(zone)
    for hours in range(-30, 31):
        second = moment_us // 1_000_000 + 3600 * hours
        theirs = rules.getOffset(java.Instant.ofEpochSecond(second)).getTotalSeconds()
        offset = datetime.fromtimestamp(second, ours).utcoffset()
        if offset.total_seconds() != theirs:
            return False
    return True


def locals_of(chance):
    """Return local times from 1970 to 2199, many of them near a change of the offset."""
    found = []
    for _ in range(12):
        year = chance.randrange(1970, 2200)
        found.append(datetime(year, 1, 1) + timedelta(minutes=chance.randrange(365 * 1440)))
        for month in (3, 4, 9, 10, 11):
            day = datetime(year, month, chance.choice((1, *range(7, 15), *range(24, 31))))
            found.append(day + timedelta(minutes=15 * chance.randrange(16)))
    return found


def test_a_local_time_is_the_moment_of_sparks_cast_in_every_zone(spark):
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    java = spark._jvm.java.time.ZoneId.getAvailableZoneIds()
    known = sorted(name for name in java if not name.startswith("SystemV/"))
    zones = [*(name for name in known if name not in RENAMED), *ODD]
    rows = [(zone, local) for zone in zones for local in locals_of(chance)]
    frame = spark.createDataFrame(rows, "zone STRING, local TIMESTAMP_NTZ")
    cast = "unix_micros(cast(convert_timezone(zone, 'UTC', local) AS TIMESTAMP)) moment"
    wanted = frame.selectExpr("zone", "local", cast).toArrow()
    for zone in zones:
        rows = wanted.filter(pa.compute.equal(wanted["zone"], zone))
        found = moments_in(rows["local"].combine_chunks(), zone).cast(pa.int64())
        both = zip(found.to_pylist(), rows["moment"].to_pylist(), strict=True)
        differing = [
            (local, got, expected)
            for local, (got, expected) in zip(rows["local"].to_pylist(), both, strict=True)
            if got != expected and are_alike(spark, zone, got)
        ]
        assert not differing, (seed, zone, len(differing), differing[:3])


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "+02:00", None])
@pytest.mark.parametrize("local", NEVER)
def test_the_first_and_the_last_time_have_a_moment(zone, local):
    column = moments_in(pa.array([local, None], pa.timestamp("us")), zone)
    assert column.null_count == 1
    away_us = column.cast(pa.int64())[0].as_py() - (local - datetime(1970, 1, 1)) // timedelta(
        microseconds=1
    )
    assert abs(away_us) < 86_400_000_000


def test_times_beyond_the_years_of_a_datetime_have_a_moment():
    year_us = 31_556_952_000_000
    column = pa.array([year_us * 50_000, -year_us * 50_000], pa.int64()).cast(pa.timestamp("us"))
    found = moments_in(column, "Europe/Berlin").cast(pa.int64()).to_pylist()
    assert abs(found[0] - year_us * 50_000) < 86_400_000_000
    assert abs(found[1] + year_us * 50_000) < 86_400_000_000


def test_an_offset_in_digits_of_another_script_is_refused():
    with pytest.raises(InvalidSettings, match="timeZone: got"):
        zone_of("+\u0660\u0662:00")


def test_a_zone_that_is_none_is_refused_by_name():
    with pytest.raises(InvalidSettings, match="timeZone: got 'Nowhere/City'"):
        zone_of("Nowhere/City")
