"""Rows become messages: once, when SQL says, paced, and whatever is killed on the way."""

import datetime
import os
import signal
import subprocess
import sys
import time

import pytest
from pyspark.sql import functions as F  # noqa: N812

import dwell
import dwell.spark
from dwell.errors import InvalidInput, InvalidSettings
from dwell.spark.pipelines import schedule
from tests.spark.test_pace import most_in, plainly

pytestmark = pytest.mark.usefixtures("registered")

NINE = "2030-01-01T09:00:00Z"
NINE_MS = 1_893_488_400_000


@pytest.fixture(scope="module")
def queue(shared):
    with dwell.open(shared.url) as queue:
        yield queue


@pytest.fixture
def run(spark, shared):
    def go(source, **given):
        given = {"url": shared.url, "source": str(source), "id": "id", **given}
        return schedule.run(spark, schedule.ScheduleSettings(**given)).removeprefix("schedule: ")

    return go


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "flights.csv"
    lines = (f"{n},2030-01-0{1 + n % 9} 09:00:00,{n % 3},name {n}" for n in range(90))
    path.write_text("id,at,carrier,name\n" + "\n".join(lines) + "\n")
    return path


def dues(queue, topic):
    return {m.id: m.due_ms for page in queue.pages(topic) for m in page}


def test_a_second_run_changes_nothing(queue, run, csv):
    given = {"due": "at", "topic": "twice"}
    assert run(csv, **given) == "90 rows; 90 created, 0 kept, 0 bad"
    first = dues(queue, "twice")
    assert first["1"] == NINE_MS + 86_400_000
    assert run(csv, **given) == "90 rows; 0 created, 90 kept, 0 bad"
    assert dues(queue, "twice") == first
    assert queue.get("twice", "4").json() == {
        "id": "4", "at": "2030-01-05 09:00:00", "carrier": "1", "name": "name 4"
    }  # fmt: skip


def test_all_of_a_message_is_said_in_sql(queue, run, csv):
    line = run(
        csv,
        id="concat('f-', id)",
        due="unix_millis(timestamp '2030-01-01 09:00:00 UTC') + int(id)",
        topic_expr="concat('air-', carrier)",
        key="carrier",
        priority="int(id)",
        headers="map('name', name)",
        body="named_struct('n', int(id), 'none', null)",
        where="id < 10",
    )
    assert line == "10 rows; 10 created, 0 kept, 0 bad"
    message = queue.get("air-1", "f-7")
    assert message.due_ms == NINE_MS + 7
    assert (message.key, message.priority, message.headers) == ("1", 7, {"name": "name 7"})
    assert message.json() == {"n": 7, "none": None}


def test_other_sources(spark, queue, run, tmp_path):
    rows = spark.createDataFrame(
        [(1, datetime.date(2030, 1, 1), "5m"), (2, datetime.date(2030, 1, 2), "1h30m")],
        "id INT, day DATE, late STRING",
    )
    rows.write.parquet(str(tmp_path / "a.parquet"))
    rows.write.json(str(tmp_path / "json"))
    rows.createOrReplaceTempView("days")
    midnight_ms = NINE_MS - 9 * 3_600_000
    assert run(tmp_path / "a.parquet", due="day", topic="s1").startswith("2 rows; 2 created")
    assert dues(queue, "s1") == {"1": midnight_ms, "2": midnight_ms + 86_400_000}
    assert run(tmp_path / "json", format="json", delay="late", start=NINE, topic="s2")[0] == "2"
    assert dues(queue, "s2") == {"1": NINE_MS + 300_000, "2": NINE_MS + 5_400_000}
    assert run("days", delay="id", start=NINE, topic="s3").startswith("2 rows; 2 created")
    assert dues(queue, "s3") == {"1": NINE_MS + 1000, "2": NINE_MS + 2000}
    with pytest.raises(InvalidSettings, match=r"--format: got none, and '.*/data' does not say"):
        run(tmp_path / "data", delay="0", topic="s4")


def test_jdbc(spark, queue, run, tmp_path):
    url = f"jdbc:derby:{tmp_path}/db;create=true"
    given = {"url": url, "driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"}
    rows = spark.range(20).select("id", F.lit(NINE_MS).alias("at"))
    rows.write.format("jdbc").options(**given).option("dbtable", "calls").save()
    line = run("calls", format="jdbc", option=given, due="at", topic="jdbc")
    assert line == "20 rows; 20 created, 0 kept, 0 bad"
    assert set(dues(queue, "jdbc").values()) == {NINE_MS}


@pytest.mark.campaign
def test_a_campaign_at_nine_is_paced_and_spread_the_same_in_every_run(spark, queue, run, tmp_path):
    path = tmp_path / "campaign.parquet"
    spark.range(20_000).select(F.col("id").cast("string").alias("id")).write.parquet(str(path))
    nine = f"timestamp '{NINE}'"
    run(path, due=nine, topic="paced", pace="4000/s", on_conflict="replace")
    first = dues(queue, "paced")
    assert most_in(first.values(), 1000) == 4000
    assert first == plainly([(NINE_MS, str(n)) for n in range(20_000)], 4000, 1000)
    # The dues are put anew, and are the same.
    line = run(path, due=nine, topic="paced", pace="4000/s", on_conflict="replace")
    assert line == "20,000 rows; 0 created, 20,000 replaced, 0 bad"
    assert dues(queue, "paced") == first

    run(path, due=nine, topic="spread", spread="10s", pace="3000/s")
    first = dues(queue, "spread")
    run(path, due=nine, topic="spread", spread="10s", pace="3000/s", on_conflict="replace")
    assert dues(queue, "spread") == first
    assert most_in(first.values(), 1000) <= 3000
    assert min(first.values()) >= NINE_MS
    assert max(first.values()) - NINE_MS > 9_000


def test_a_run_that_was_killed_is_ended_as_it_was_though_the_source_has_changed(
    queue, run, csv, tmp_path, monkeypatch
):
    given = {"due": "at", "topic": "resumed", "pace": "1/m", "checkpoint": str(tmp_path / "check")}
    plain = schedule.sink.write

    def dies(rows, *words, **options):
        plain(rows.where("id < '5'"), *words, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(schedule.sink, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            run(csv, **given)
    lines = csv.read_text().splitlines()
    more = [f"{n},2030-01-01 09:00:00,0,new" for n in range(100, 140)]
    csv.write_text("\n".join([lines[0], *more, *lines[1:80]]) + "\n")
    with pytest.raises(InvalidSettings, match="a run with other settings was not ended"):
        run(csv, **given | {"pace": "2/m"})
    assert run(csv, **given).startswith("90 rows; ")
    found = dues(queue, "resumed")
    assert set(found) == {str(n) for n in range(90)}
    assert most_in(sorted(found.values()), 60_000) == 1
    # What is ended is over: the next run looks at the source.
    assert run(csv, **given).startswith("119 rows; 40 created")


def test_a_source_that_has_changed_is_read_anew_in_the_same_session(queue, run, csv):
    given = {"due": "at", "topic": "anew", "pace": "1/s"}
    assert run(csv, **given).startswith("90 rows; 90 created")
    csv.write_text(csv.read_text() + "1000,2030-01-01 09:00:00,0,new\n")
    assert run(csv, **given).startswith("91 rows; 1 created")


def test_nothing_is_due_before_the_start(queue, run, csv):
    start = "2030-01-04T09:00:00Z"
    run(csv, due="at", topic="start", start=start)
    found = sorted(set(dues(queue, "start").values()))
    assert found == [NINE_MS + day * 86_400_000 for day in range(3, 9)]


def test_quotes_inside_quotes_arrive_whole(queue, run, tmp_path):
    path = tmp_path / "quotes.csv"
    path.write_text('id,text\n1,"he said ""hi"", ok"\n2,back\\slash\n')
    assert run(path, delay="'1h'", body="text", topic="quotes").startswith("2 rows; 2 created")
    found = {m.id: m.body for page in queue.pages("quotes") for m in page}
    assert found == {"1": b'he said "hi", ok', "2": b"back\\slash"}


def test_bad_rows_are_named_or_set_aside(spark, queue, run, csv, tmp_path):
    given = {"due": "if(id = '5', 'noon', at)", "topic": "bad", "pace": "10/s"}
    with pytest.raises(Exception, match="due: got 'noon', expected a timestamp"):
        run(csv, **given)
    bad = tmp_path / "bad"
    line = run(csv, **given, bad_rows=str(bad))
    assert line.startswith("90 rows; ")
    assert line.endswith(", 1 bad")
    assert len(dues(queue, "bad")) == 89
    (row,) = spark.read.parquet(str(bad)).collect()
    assert (row.id, row.reason) == (
        "5",
        "due: got 'noon', expected a timestamp, or epoch milliseconds",
    )
    assert "due_refused" not in row.asDict()
    delays = {"delay": "if(id = '5', 'long', '5m')", "bad_rows": str(tmp_path / "bad2")}
    assert run(csv, **delays, topic="bad2").endswith(", 1 bad")


IMPOSSIBLE = {
    # an id, a due that no message can have, and what is expected in its place
    "0": (NINE_MS * 1_000_000, "a time from 1970 to"),
    "1": (2**63 - 1, "a time from 1970 to"),
    "2": (-1, "a time from 1970 to"),
    "3": (NINE_MS // 1000, "milliseconds: those are seconds"),
}


@pytest.mark.parametrize("given", [{}, {"pace": "50000/s"}, {"spread": "30d"}])
def test_a_due_out_of_range_is_set_aside_before_anything_is_computed_with_it(
    spark, queue, run, csv, tmp_path, given
):
    topic = f"far-{''.join(given)}"
    whens = " ".join(f"WHEN '{id_}' THEN {due}" for id_, (due, _) in IMPOSSIBLE.items())
    given = {"due": f"CASE id {whens} ELSE {NINE_MS} END", "topic": topic, **given}
    assert run(csv, **given, bad_rows=str(tmp_path / "bad")) == "90 rows; 86 created, 0 kept, 4 bad"
    reasons = {row.id: row.reason for row in spark.read.parquet(str(tmp_path / "bad")).collect()}
    assert set(reasons) == set(IMPOSSIBLE)
    for id_, (due, allowed) in IMPOSSIBLE.items():
        assert reasons[id_].startswith(f"due: got '{due}', expected {allowed}")
    assert not dues(queue, topic).keys() & IMPOSSIBLE.keys()


def test_a_sentinel_timestamp_is_named_where_a_pace_is_given(run, csv):
    due = "if(id = '7', timestamp '9999-12-31', at)"
    with pytest.raises(Exception, match="due: got '9999-12-31 00:00:00', expected a time from"):
        run(csv, due=due, topic="sentinel", pace="50000/s")


def test_a_delay_of_whole_seconds_may_have_a_narrow_type(queue, run, csv):
    line = run(csv, delay="3000000", start=NINE, topic="narrow")
    assert line == "90 rows; 90 created, 0 kept, 0 bad"
    assert set(dues(queue, "narrow").values()) == {NINE_MS + 3_000_000_000}


FAILING = {
    # an option, and SQL that fails in the row with the id 7 and in no other
    "id": "if(id = '7', raise_error('no'), id)",
    "due": "to_utc_timestamp(at, if(id = '7', 'CET/CEST', 'UTC'))",
    "delay": "1 / (id - 7) + 100",
    "body": "cast(if(id = '7', 'x', id) AS INT)",
    "topic_expr": "if(id = '7', raise_error('no'), 'sql')",
    "key": "element_at(array('a'), if(id = '7', 2, 1))",
    "priority": "if(id = '7', 'high', '5')",
    "headers": "map('a', 1 / (id - 7))",
}


@pytest.mark.parametrize(
    ("option", "codegen"), [*((option, "false") for option in FAILING), ("due", "true")]
)
def test_a_row_whose_sql_fails_is_set_aside_and_the_rest_is_put(
    spark, queue, run, csv, tmp_path, option, codegen
):
    given = {"due": "at", "topic": f"sql-{option}-{codegen}", option: FAILING[option]}
    for name, other in (("delay", "due"), ("topic_expr", "topic")):
        if option == name:
            del given[other]
    before = spark.conf.get("spark.sql.codegen.wholeStage")
    spark.conf.set("spark.sql.codegen.wholeStage", codegen)
    spark.conf.set(
        "spark.sql.codegen.factoryMode", "FALLBACK" if codegen == "true" else "NO_CODEGEN"
    )
    try:
        line = run(csv, **given, on_conflict="replace", bad_rows=str(tmp_path / "bad"))
    finally:
        spark.conf.set("spark.sql.codegen.wholeStage", before)
        spark.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    assert line.startswith("90 rows; ")
    assert line.endswith(" 1 bad")
    (row,) = spark.read.parquet(str(tmp_path / "bad")).collect()
    name = {"topic_expr": "topic", "delay": "due"}.get(option, option)
    assert row.reason == f"{name}: got SQL that fails for the row, expected a value"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"due": "nope"}, r"--due: got 'nope': .*`nope`.* cannot be resolved"),
        ({"due": "at +"}, r"--due: got 'at \+': .*Syntax error"),
        ({"due": "at", "where": "name"}, r"--where: got 'name': .*"),
        ({"due": "at", "id": "ids"}, r"--id: got 'ids': .*Did you mean.*`id`"),
        ({"due": "array(1)"}, r"--due: got array<int>, expected a timestamp, a date"),
        ({}, r"--due, --delay: got neither, expected one of them"),
        ({"due": "at", "delay": "1"}, r"--due, --delay: got both, expected one of them"),
        ({"due": "at", "topic_expr": "id"}, r"--topic, --topic-expr: got both"),
        ({"due": "at", "spread": "x"}, r"--spread: got str 'x'"),
        (
            {"due": "at", "start": "2030-01-01T09:00:00"},
            r"--start: got str .* a time with its zone",
        ),
    ],
)
def test_bad_settings_name_the_option(run, csv, given, error):
    with pytest.raises(InvalidInput, match=error):
        run(csv, **{"topic": "never", **given})


# --- killed ---------------------------------------------------------------------------------------

COUNT = 150_000
GIVEN = {
    "topic": "killed", "id": "id", "due": f"timestamp '{NINE}'", "pace": "5000/s",
    "body": "repeat('x', 200)",
}  # fmt: skip


def start(url, folder):
    command = [sys.executable, "-m", "dwell.spark.pipelines.schedule", "--master", "local[2]"]
    command += ["--url", url, "--source", f"{folder}/many.parquet"]
    command += [word for name, value in GIVEN.items() for word in (f"--{name}", value)]
    with (folder / "schedule.log").open("ab") as log:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )


@pytest.mark.campaign
def test_a_run_that_is_killed_is_run_again(spark, server, queue, tmp_path):
    name = F.format_string("%06d", "id").alias("id")
    spark.range(COUNT).select(name).write.parquet(str(tmp_path / "many.parquet"))
    with dwell.open(server.url) as queue:
        first = start(server.url, tmp_path)
        while "killed" not in (topics := queue.stats().topics) or not topics["killed"].delayed:
            assert first.poll() is None, (tmp_path / "schedule.log").read_text()[-3000:]
            time.sleep(0.01)
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
        put = queue.stats().topics["killed"].delayed
        assert 0 < put < COUNT, "too fast or too slow to be killed halfway"
        source = f"{tmp_path}/many.parquet"
        again = schedule.ScheduleSettings(url=server.url, source=source, **GIVEN)
        out = schedule.run(spark, again)
        put = COUNT - int(out.split()[3].replace(",", ""))
        assert out == f"schedule: {COUNT:,} rows; {COUNT - put:,} created, {put:,} kept, 0 bad"
        assert put > 0
        found = dues(queue, "killed")
    assert found == {f"{n:06}": NINE_MS + n // 5 for n in range(COUNT)}
