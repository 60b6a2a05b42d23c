"""``dwell schedule``: put, changed and shown."""

from pathlib import Path

import pytest

from dwell.queue.schedules import TOPIC

PUT = ("schedule", "put", "report", "jobs", "daily")


def test_a_change_leaves_what_it_does_not_name(cli):
    words = ("--zone", "Europe/Berlin", "--ttl", "10m", "--header", "a=1", "--jitter", "5s")
    assert cli.out(*PUT, "--cron", "0 9 * * *", *words) == ["created  report"]
    assert cli.out("schedule", "change", "report", "--cron", "0 10 * * *") == ["replaced  report"]
    assert cli.out("schedule", "change", "report", "--header", "b=2") == ["replaced  report"]
    assert cli.out("schedule", "change", "report", "--header", "b=2") == ["kept  report"]
    assert cli.out("schedule", "change", "report", "other", "new") == ["replaced  report"]
    (row,) = cli.json("schedule", "show", "report")
    assert (row["cron"], row["zone"], row["ttl_ms"]) == ("0 10 * * *", "Europe/Berlin", 600_000)
    assert (row["headers"], row["topic"], row["body"]) == ({"b": "2"}, "other", "new")
    assert cli.out(*PUT, "--every", "1h") == ["replaced  report"]
    (row,) = cli.json("schedule", "show", "report")
    assert (row["cron"], row["zone"], row["ttl_ms"], row["jitter_ms"]) == (None, "UTC", 0, 0)


def test_an_empty_text_gives_a_default_back(cli):
    rule = (*PUT, "--cron", "0 9 * * *")
    words = ["--zone", "Europe/Berlin", "--start", "2095-01-01T00:00:00Z", "--jitter", "5s"]
    words += ["--end", "2099-01-01T00:00:00Z", "--day-off", "sun", "--when-off", "after"]
    words += ["--misfire", "all", "--overlap", "skip", "--grace", "1h", "--key", "k"]
    words += ["--header", "a=1", "--lease", "5m", "--ttl", "10m"]
    words += ["--max-attempts", "3", "--priority", "1"]
    cli.run(*rule)
    (plain,) = cli.json("schedule", "show", "report")
    cli.run(*rule, *words)
    emptied = [part for word in words[::2] for part in (word, "")]
    assert cli.out("schedule", "change", "report", *emptied) == ["replaced  report"]
    (row,) = cli.json("schedule", "show", "report")
    assert row == plain
    for word in ("--cron", "--every", "--rrule", "--dialect"):
        assert "Invalid" in cli.error("schedule", "change", "report", word, "")
    assert "header: got" in cli.error(*rule, "--header", "")


def test_a_list_shortens_a_long_rule(cli):
    rule = "FREQ=DAILY;BYMINUTE=" + ",".join(map(str, range(60)))
    cli.run(*PUT, "--rrule", rule)
    (line,) = [line for line in cli.out("schedule", "list") if "report" in line]
    assert rule[:59] + "…" in line
    (row,) = cli.json("schedule", "list")
    assert row["rrule"] == rule


def test_a_schedule_is_shown_as_people_give_it(cli):
    cli.run(*PUT, "--every", "1h30m", "--ttl", "2h", "--start", "2096-01-01T00:00:00Z")
    shown = cli.out("schedule", "show", "report")
    fields = dict(line.split(maxsplit=1) for line in shown)
    assert (fields["every"], fields["ttl"], fields["last"]) == ("1h30m", "2h", "never")
    runs = [line.split()[1] for line in shown if line.startswith("next ")]
    assert runs == [f"2096-01-01T0{time}:00+00:00" for time in ("0:00", "1:30", "3:00")]


def test_a_dead_schedule_shows_its_reason_and_no_next_runs(cli):
    cli.run(*PUT, "--every", "1h")
    with cli.queue() as queue:
        queue.reschedule(TOPIC, "report", delay=0)
        queue.bury(queue.take(TOPIC), "not reckoned")
    done = cli.run("schedule", "next", "report")
    assert (done.stdout, done.stderr.count("dead (not reckoned), so nothing comes next")) == ("", 1)
    shown = cli.out("schedule", "show", "report")
    assert not [line for line in shown if line.startswith("next ")]


def test_past_runs_say_what_became_of_each_message(cli):
    cli.run(*PUT, "--every", "1h")
    assert cli.out("schedule", "runs", "report") == []
    for _ in range(3):
        cli.run("schedule", "run", "report")
    with cli.queue() as queue:
        first, second = queue.take("jobs", 2)
        queue.ack(first)
        queue.bury(second, "no paper")
    rows = cli.json("schedule", "runs", "report")
    assert [row["state"] for row in rows] == ["waiting", "dead", "done"]
    assert [row["id"] for row in rows[1:]] == [second.id, first.id]
    assert [row["attempt"] for row in rows] == [0, 1, 1]
    assert [line.split()[2] for line in cli.out("schedule", "runs", "report", "--count", "2")][
        -2:
    ] == ["waiting", "dead"]


@pytest.mark.parametrize(
    "ask",
    [
        ("show",),
        ("next",),
        ("runs",),
        ("pause",),
        ("resume",),
        ("remove",),
        ("change", "--ttl", "1h"),
    ],
)
def test_a_schedule_that_is_not_there_is_unknown_to_each_action(cli, ask):
    cli.run(*PUT, "--every", "1h")
    action, *words = ask
    assert cli.out("schedule", action, "nosuch", *words, code=1) == ["unknown  nosuch"]


def test_a_change_of_nothing_is_refused(cli):
    cli.run(*PUT, "--every", "1h")
    assert "change: got nothing to change" in cli.error("schedule", "change", "report")
    told = cli.error("schedule", "change", "report", "--zone", "Nowhere/Nothing")
    assert told.startswith("InvalidSchedule: zone: got 'Nowhere/Nothing'")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["preview", "0 9 * * *", "--ttl", "1h"], "preview: got --ttl, expected --count, --cron"),
        (["preview", "0 9 * * *", "--every", "1h"], "got cron and every, expected one of"),
        (["preview", "--zone", "UTC"], "preview: got no rule, expected one"),
        (["preview", "0 9 * * *", "jobs"], "preview: got topic"),
        (["preview", "s", "--cron", "0 9 * * *"], "preview: got 's' and --cron, expected one line"),
        (["pause", "report", "--header", "a=1"], "got --header, expected nothing but a name"),
        (["next", "report", "--zone", "UTC"], "next: got --zone, expected --count"),
        (["put", "report", "jobs", "x", "--count", "2", "--every", "1h"], "put: got --count"),
    ],
)
def test_what_an_action_would_pass_over_is_refused(cli, words, told):
    assert told in cli.error("schedule", *words)


def test_a_rule_may_be_the_lines_of_a_calendar(cli):
    text = "DTSTART;TZID=Asia/Tokyo:20960101T090000\nRRULE:FREQ=DAILY;COUNT=2\n"
    text += "EXDATE;TZID=Asia/Tokyo:20960101T090000\n"
    assert cli.out(*PUT, "--rrule", text) == ["created  report"]
    assert cli.out("schedule", "next", "report") == ["2096-01-02T09:00:00+09:00"]
    (row,) = cli.json("schedule", "show", "report")
    assert (row["rrule"], row["zone"]) == (text, "Asia/Tokyo")
    # Each field is on a line of its own.
    assert sum("RRULE:FREQ=DAILY" in line for line in cli.out("schedule", "list")) == 1
    told = cli.error("schedule", "change", "report", "--rrule", "DTSTART:now\nRRULE:FREQ=DAILY")
    assert told.startswith("InvalidSchedule: rrule: got 'DTSTART:now' in line 1, expected a time")


def test_runs_on_days_off_are_on_other_days(cli):
    days = ("--day-off", "sun", "--day-off", "sat", "--day-off", "2096-01-02")
    rule = ("--cron", "0 9 1 1 *", "--start", "2096-01-01T00:00:00Z", "--when-off", "after")
    # 1 January 2096 is a Sunday.
    assert cli.out(*PUT, *rule, *days) == ["created  report"]
    assert cli.out("schedule", "next", "report", "--count", "1") == ["2096-01-03T09:00:00+00:00"]
    (row,) = cli.json("schedule", "show", "report")
    assert (row["days_off"], row["when_off"]) == (["sat", "sun", "2096-01-02"], "after")
    assert "days_off      sat sun 2096-01-02" in cli.out("schedule", "show", "report")
    assert cli.out("schedule", "change", "report", "--day-off", "sun") == ["replaced  report"]
    assert cli.out("schedule", "next", "report", "--count", "1") == ["2096-01-02T09:00:00+00:00"]
    told = cli.error("schedule", "change", "report", "--day-off", "sonntag")
    assert told.startswith("InvalidSchedule: days_off: got 'sonntag', expected one of mon, tue")
    assert "list: got --day-off" in cli.error("schedule", "list", "--day-off", "sun")


@pytest.mark.parametrize(
    "rule",
    [
        ["--cron", "0 9 * * *", "--day-off", "sat", "--day-off", "sun", "--when-off", "before"],
        ["--rrule", "FREQ=MONTHLY;BYDAY=-1FR", "--end", "2096-01-01T00:00:00Z"],
        ["--every", "90m", "--start", "2095-01-01T00:00:00Z"],
        ["--cron", "0 0 9 ? * 2-6", "--dialect", "quartz"],
    ],
)
def test_a_preview_shows_the_runs_that_the_schedule_has(cli, rule):
    where = ["--zone", "Australia/Lord_Howe"]
    previewed = [one["run"] for one in cli.json("schedule", "preview", *rule, *where)]
    assert not Path(cli.folder).exists()
    cli.run(*PUT, *rule, *where)
    assert previewed == cli.out("schedule", "next", "report")
    assert len(previewed) == 5


def test_a_preview_tells_the_zone_of_its_runs(cli):
    rule = "DTSTART;TZID=Asia/Tokyo:20950102T090000\nRRULE:FREQ=DAILY"
    done = cli.run("schedule", "preview", "--rrule", rule)
    assert ("zone Asia/Tokyo" in done.stderr, "+09:00" in done.stdout) == (True, True)
    assert "zone UTC" in cli.run("schedule", "preview", "--every", "1h").stderr


def test_a_preview_marks_runs_beside_a_change_of_clocks(cli):
    start = ["--start", "2095-03-26T12:00:00Z", "--count", "3"]
    found = cli.json("schedule", "preview", "0 12 * * *", "--zone", "Europe/Berlin", *start)
    assert [one["is_near_change"] for one in found] == [True, False, False]
