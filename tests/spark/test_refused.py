"""Rows that are refused, and columns of every type: each row's verb is sent once, or is told."""

from datetime import UTC, datetime
from decimal import Decimal

import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructType, VariantType, YearMonthIntervalType

import dwell
from dwell.errors import InvalidSettings
from dwell.spark import DwellSource, register
from dwell.spark.badrows import BadRow
from dwell.spark.plain import moments_in
from tests.spark.tasks import Write

KEYED = pa.schema([("id", pa.string()), ("topic", pa.string())])
FULL = pa.schema([*KEYED, ("body", pa.string()), ("due", pa.int64())])
DUE = 4_102_444_800_000


@pytest.fixture(scope="module")
def queue(shared):
    with dwell.open(shared.url) as queue:
        yield queue


def totals(queue):
    return queue.stats().totals


def write(shared, schema, columns, **options):
    rows = pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )
    one = Write(schema, {"url": shared.url, **options})
    message = one.run(0, [rows])
    one.commit([message])
    return message.results


def two_topics(name, count, bad):
    """Ids and topics of rows of two topics, of which one row has no due."""
    ids, topics = [f"r{n}" for n in range(count)], [f"{name}{n % 2}" for n in range(count)]
    return [ids, topics, ["x"] * count, [None if n == bad else DUE for n in range(count)]]


@pytest.mark.parametrize("conflict", ["keep", "replace", "error"])
def test_one_bad_row_of_several_topics_repeats_nothing(shared, queue, tmp_path, conflict):
    before = totals(queue)
    columns = two_topics(f"b-{conflict}", 200, 77)
    given = {"badRows": str(tmp_path), "onConflict": conflict}
    assert write(shared, FULL, columns, **given) == {"created": 199, "bad": 1}
    after = totals(queue)
    assert after["put"] - before.get("put", 0) == 199
    assert after.get("replace", 0) == before.get("replace", 0)


@pytest.mark.parametrize("op", ["cancel", "kick", "reschedule"])
def test_verbs_are_sent_once_beside_a_bad_row(shared, queue, tmp_path, op):
    columns = two_topics(f"v-{op}", 100, None)
    assert write(shared, FULL, columns) == {"created": 100}
    if op == "kick":
        queue.kick("v-kick0", [], delay=0)
        for topic in ("v-kick0", "v-kick1"):
            queue.reschedule(topic, columns[0], delay=0)
            queue.bury(queue.take(topic, 100), "no")
    before = totals(queue)
    columns[0][77] = None
    schema, given = (FULL, columns) if op == "reschedule" else (KEYED, columns[:2])
    if op == "reschedule":
        schema = pa.schema([*KEYED, ("due", pa.int64())])
        given = [*columns[:2], [DUE + 1] * 100]
    word, kind = {
        "cancel": ("cancelled", "cancel"),
        "kick": ("kicked", "kick"),
        "reschedule": ("moved", "move"),
    }[op]
    found = write(shared, schema, given, op=op, badRows=str(tmp_path))
    assert found == {word: 99, "bad": 1}
    assert totals(queue)[kind] - before.get(kind, 0) == 99


def test_a_kick_with_a_bad_delay_is_refused_before_any_is_sent(shared, queue, tmp_path):
    ids = [f"r{n}" for n in range(50)]
    queue.put_many("kicks", ["x"] * 50, ids=ids)
    queue.bury(queue.take("kicks", 50), "no")
    schema = pa.schema([("id", pa.string()), ("delay", pa.string())])
    delays = ["1h" if n % 3 else "2h" for n in range(49)] + ["soon"]
    before = totals(queue).get("kick", 0)
    found = write(shared, schema, [ids, delays], op="kick", topic="kicks", badRows=str(tmp_path))
    assert found == {"kicked": 49, "bad": 1}
    assert totals(queue)["kick"] - before == 49


def test_rows_without_a_topic_are_bad_rows(shared, queue, tmp_path):
    columns = [["a", "b", "c"], ["good-1", None, "no topic"], ["x"] * 3, [DUE] * 3]
    found = write(shared, FULL, columns, badRows=str(tmp_path))
    assert found == {"created": 1, "bad": 2}


ODD_COLUMNS = {
    "reason": ["why", "else"],
    "Reason": ["why", "else"],
    "nothing": pa.array([{}, {}], pa.struct([])),
    "nothings": pa.array([[{}], []], pa.list_(pa.struct([]))),
}


@pytest.mark.parametrize("name", ODD_COLUMNS)
def test_bad_rows_with_any_column_are_kept_and_can_be_read(spark, shared, tmp_path, name):
    column = pa.array(ODD_COLUMNS[name])
    schema = pa.schema([*KEYED, ("due", pa.int64()), (name, column.type)])
    columns = [[f"{name} 1", f"{name} 2"], ["odd"] * 2, [None, DUE], column]
    found = write(shared, schema, columns, badRows=str(tmp_path / "bad"))
    assert found == {"created": 1, "bad": 1}
    (row,) = spark.read.parquet(str(tmp_path / "bad")).collect()
    is_taken = name.lower() == "reason"
    assert "due" in row["bad_reason" if is_taken else "reason"]
    assert row["id"] == f"{name} 1"
    assert row[name] is not None


# --- types ----------------------------------------------------------------------------------------

ODD = {
    # column, its value, its type in Arrow: what the message has, None where the row is refused
    "a text as priority": ("priority", "7", pa.string(), None),
    "a part as priority": ("priority", Decimal("5.5"), pa.decimal128(5, 1), None),
    "a whole decimal as priority": ("priority", Decimal("7.0"), pa.decimal128(5, 1), 7),
    "a boolean as priority": ("priority", True, pa.bool_(), None),
    "a double as priority": ("priority", 7.5, pa.float64(), None),
    "no priority of another type": ("priority", None, pa.decimal128(5, 1), 1024),
    "a decimal as max_attempts": ("max_attempts", Decimal(3), pa.decimal128(5, 0), 3),
    "a text as max_attempts": ("max_attempts", "3", pa.string(), None),
    "a decimal as lease": ("lease", Decimal("1.5"), pa.decimal128(5, 1), 1500),
    "a moment as topic": ("topic", 0, pa.timestamp("us", "PST"), None),
    "a moment as id": ("id", 0, pa.timestamp("us", "PST"), None),
    "a date after the year 9999 as priority": ("priority", 2_932_897, pa.date32(), None),
    "a date after the year 9999 as delay": ("delay", 2_932_897, pa.date32(), None),
    "bytes that are no text as topic": ("topic", b"\xff", pa.binary(), None),
    "a large text as body": ("body", "x", pa.large_string(), b"x"),
    "large bytes as body": ("body", b"x", pa.large_binary(), b"x"),
    "a large text as key": ("key", "k", pa.large_string(), "k"),
}


@pytest.mark.parametrize("case", ODD)
def test_a_column_of_an_odd_type_is_right_or_a_bad_row(shared, queue, tmp_path, case):
    name, value, kind, wanted = ODD[case]
    fields = {"id": (case, pa.string()), "body": ("x", pa.string()), "due": (DUE, pa.int64())}
    fields |= {"topic": ("odd", pa.string()), name: (value, kind)}
    if name == "delay":
        del fields["due"]
    schema = pa.schema([(field, kind) for field, (_, kind) in fields.items()])
    columns = [[value] for value, _ in fields.values()]
    found = write(shared, schema, columns, badRows=str(tmp_path), topic="odd")
    assert found == ({"bad": 1} if wanted is None else {"created": 1})
    if wanted is not None:
        message = queue.get("odd", case)
        assert getattr(message, {"lease": "lease_ms"}.get(name, name)) == wanted


#: 0001-01-01 and 9999-12-31 23:59:59 as microseconds of UTC.
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_000_000
HOUR_US = 3_600_000_000
UNPACKABLE = {
    # type, a value that JSON or a calendar cannot say, and one that they can
    "before the year 1": (pa.timestamp("us", "Europe/Berlin"), FIRST_US - HOUR_US, 0),
    "after the year 9999": (pa.timestamp("us", "America/New_York"), LAST_US + HOUR_US, 0),
    "a date after the year 9999": (pa.date32(), 2_932_897, 0),
    "a local time after the year 9999": (pa.timestamp("us"), LAST_US + HOUR_US, 0),
    "a struct as a key": (pa.map_(pa.struct([("a", pa.int64())]), pa.int64()), [({"a": 1}, 1)], []),
    "no number": (pa.float64(), float("nan"), 0.5),
    "an infinite number": (pa.float32(), float("-inf"), 0.5),
    "no number in a list": (pa.list_(pa.float32()), [1.0, float("nan")], [1.0]),
    "no number in a map": (pa.map_(pa.string(), pa.float64()), [("a", float("inf"))], []),
    "no number in a struct": (pa.struct([("a", pa.float64())]), {"a": float("inf")}, {"a": 1.0}),
}


@pytest.mark.parametrize("case", UNPACKABLE)
def test_a_value_that_no_body_can_have_is_a_bad_row_with_its_column(shared, queue, tmp_path, case):
    kind, bad, good = UNPACKABLE[case]
    schema = pa.schema([("id", pa.string()), ("due", pa.int64()), ("odd", kind)])
    ids = [f"{case} {at}" for at in range(9)]
    columns = [ids, [DUE] * 9, [bad if at == 4 else good for at in range(9)]]
    given = {"badRows": str(tmp_path / "bad"), "topic": "unpackable"}
    assert write(shared, schema, columns, **given) == {"created": 8, "bad": 1}
    (path,) = (tmp_path / "bad").glob("*.parquet")
    kept = pyarrow.parquet.read_table(path)
    assert kept["id"].to_pylist() == [ids[4]]
    assert kept["reason"][0].as_py().startswith(("odd: ", "body: "))
    with pytest.raises(BadRow, match=f"{case} 4.*odd"):
        write(shared, schema, columns, topic="unpackable")


def test_a_due_that_is_written_for_never_is_a_bad_row(shared, queue, tmp_path):
    for name, kind in (("due", pa.timestamp("us", "UTC")), ("due", pa.timestamp("us"))):
        schema = pa.schema([("id", pa.string()), ("body", pa.string()), (name, kind)])
        dues = [FIRST_US, DUE * 1000, LAST_US, 2**62]
        columns = [[f"{kind} {at}" for at in range(4)], ["x"] * 4, dues]
        given = {"badRows": str(tmp_path / str(kind)), "topic": "never"}
        assert write(shared, schema, columns, **given) == {"created": 1, "bad": 3}


NUMBERS = {
    "a decimal": (pa.decimal128(9, 2), Decimal("19.99"), b"19.99"),
    "a large decimal": (pa.decimal128(38, 0), Decimal(10**37), b"1" + b"0" * 37),
    "a float": (pa.float32(), 0.1, b"0.1"),
    "a double": (pa.float64(), 0.1, b"0.1"),
    "booleans as keys": (pa.map_(pa.bool_(), pa.int64()), [(True, 1)], b'{"true":1}'),
    "decimals as keys": (pa.map_(pa.decimal128(3, 1), pa.float32()), [(Decimal("1.5"), 0.1)],
                         b'{"1.5":0.1}'),
    "a moment": (pa.timestamp("us", "GMT+2"), 0, b'"1970-01-01T02:00:00+02:00"'),
    "moments in a list": (pa.list_(pa.timestamp("us", "PST")), [0],
                          b'["1969-12-31T16:00:00-08:00"]'),
}  # fmt: skip


@pytest.mark.parametrize("case", NUMBERS)
def test_a_value_is_packed_as_it_was_written(shared, queue, case):
    kind, value, wanted = NUMBERS[case]
    schema = pa.schema([("id", pa.string()), ("due", pa.int64()), ("v", kind)])
    assert write(shared, schema, [[case], [DUE], [value]], topic="numbers") == {"created": 1}
    assert queue.get("numbers", case).body == b'{"v":' + wanted + b"}"


NEW_YORK = "America/New_York"
ZONES = {
    # zone, what a clock showed, the hour and minute of UTC: as Spark casts it
    "winter": (NEW_YORK, datetime(2026, 1, 1, 9), (14, 0)),
    "twice": (NEW_YORK, datetime(2026, 11, 1, 1, 30), (5, 30)),
    "never": (NEW_YORK, datetime(2026, 3, 8, 2, 30), (7, 30)),
    "offset": ("+05:30", datetime(2026, 1, 1, 9), (3, 30)),
    "offset of GMT": ("GMT+1", datetime(2026, 1, 1, 9), (8, 0)),
    "Z": ("Z", datetime(2026, 1, 1, 9), (9, 0)),
}


@pytest.mark.parametrize("case", ZONES)
def test_a_time_without_a_zone_is_one_of_the_session(case):
    zone, shown, (hour, minute) = ZONES[case]
    moment = shown.replace(hour=hour, minute=minute, tzinfo=UTC)
    found = moments_in(pa.array([shown, None], pa.timestamp("us")), zone).to_pylist()
    assert found == [moment, None]


def test_months_are_refused_before_anything_is_written(shared):
    schema = StructType().add("id", StringType()).add("delay", YearMonthIntervalType())
    source = DwellSource({"url": shared.url, "topic": "t"})
    with pytest.raises(InvalidSettings, match="got delay of type interval year to month"):
        source.writer(schema, False)


def test_a_column_with_parts_is_refused_before_anything_is_written(shared):
    schema = StructType().add("body", StringType()).add("delay", VariantType())
    with pytest.raises(InvalidSettings, match="got delay of type variant, expected a single value"):
        DwellSource({"url": shared.url, "topic": "t"}).writer(schema, False)


# --- through Spark --------------------------------------------------------------------------------


def save(frame, shared, **options):
    given = {"url": shared.url, "topic": "typed", **options}
    frame.write.format("dwell").mode("append").options(**given).save()


@pytest.fixture
def ready(spark):
    register(spark)
    before = spark.conf.get("spark.sql.session.timeZone")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)
    spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


def test_a_timestamp_ntz_is_read_as_spark_casts_it(ready, shared, queue):
    ready.conf.set("spark.sql.session.timeZone", "America/New_York")
    times = ("2090-01-01 09:00:00", "2026-11-01 01:30:00", "2027-03-14 02:30:00")
    many = [f"SELECT 'z{n}' id, timestamp_ntz'{text}' due" for n, text in enumerate(times)]
    rows = ready.sql(" UNION ALL ".join(many)).selectExpr("id", "'x' body", "due", "due AS expires")
    save(rows.drop("expires"), shared)
    cast = rows.selectExpr("concat('cast-', id) id", "body", "cast(due AS TIMESTAMP) due")
    save(cast, shared)
    for n in range(len(times)):
        found, wanted = queue.get("typed", f"z{n}"), queue.get("typed", f"cast-z{n}")
        assert found.due_ms == wanted.due_ms


def test_large_texts_and_variants_are_written(ready, shared, queue):
    ready.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    save(ready.sql("SELECT 'large' id, 'body' body, '1h' delay, 'k' key"), shared)
    assert queue.get("typed", "large").body == b"body"
    packed = ready.sql(
        """SELECT 'packed' id, '1h' delay, parse_json('{"a": [1, null, "x"]}') plain,
        array(parse_json('2'), null) many, named_struct('v', parse_json('{"b": true}')) inner"""
    )
    save(packed, shared)
    body = msgspec.json.decode(queue.get("typed", "packed").body)
    assert body == {"plain": {"a": [1, None, "x"]}, "many": [2, None], "inner": {"v": {"b": True}}}


def test_a_span_of_months_is_refused_by_name(ready, shared):
    with pytest.raises(PySparkException, match="whose months differ in length"):
        save(ready.sql("SELECT 'a' id, 'x' body, INTERVAL '1' MONTH delay"), shared)
