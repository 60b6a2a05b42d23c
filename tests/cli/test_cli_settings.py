import pytest

from dwell import TopicSettings


def test_show(cli):
    cli.run("put", "t", "x")
    lines = dict(line.split() for line in cli.out("settings", "t")[1:])
    assert set(lines) == {*TopicSettings.__struct_fields__}
    assert lines["lease_ms"] == "1m"
    assert lines["retry_delays_ms"].startswith("10s,30s,1m,")
    assert (lines["paused"], lines["on_full"]) == ("false", "refuse")


def test_what_is_shown_can_be_given(cli):
    cli.run("settings", "t", "lease_ms=90s", "retry_delays_ms=1s,250ms", "paused=true")
    shown = [line.split() for line in cli.out("settings", "t")[1:]]
    assert cli.json("settings", "u", *(f"{name}={value}" for name, value in shown)) == [
        {**cli.json("settings", "t")[0], "topic": "u"}
    ]


def test_change(cli):
    (found,) = cli.json(
        *("settings", "t", "lease_ms=5000", "max_attempts=3", "retry_delays_ms=[1000, 2000]"),
        *("delay_levels_ms=", "max_pending=9", "on_full=drop", "remember_ms=1h"),
    )
    assert (found["topic"], found["lease_ms"], found["max_attempts"]) == ("t", 5000, 3)
    assert (found["retry_delays_ms"], found["delay_levels_ms"]) == ([1000, 2000], [])
    assert (found["max_pending"], found["on_full"]) == (9, "drop")
    assert (found["remember_ms"], found["paused"]) == (3_600_000, False)
    with cli.queue() as queue:
        assert queue.settings("t").retry_delays_ms == (1000, 2000)


def test_quiet_is_for_changes_only(cli):
    assert cli.out("--quiet", "settings", "t", "paused=true") == []
    assert len(cli.out("--quiet", "settings", "t")) == 1 + len(TopicSettings.__struct_fields__)


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["a b"], "InvalidTopic: "),
        (["t", "paused"], "InvalidSettings: settings: got str 'paused', expected name=value"),
        (["t", "lease=5"], "InvalidSettings: settings: got 'lease'"),
        (["t", "lease_ms=soon"], "InvalidSettings: lease_ms: got str 'soon'"),
        (["t", "lease_ms=0"], "InvalidSettings: lease_ms: got int 0"),
        (["t", "retry_delays_ms=1s,x"], "InvalidSettings: retry_delays_ms: got str 'x'"),
        (["t", "paused=perhaps"], "InvalidSettings: settings: Expected `bool`, got `str`"),
        (["t", "on_full=burst"], "InvalidSettings: on_full: got str 'burst'"),
        (["t", "max_attempts=2.5"], "InvalidSettings: max_attempts: got float 2.5"),
        ([], "UsageError: Missing argument 'TOPIC'"),
    ],
)
def test_bad_input(cli, args, error):
    cli.run("put", "t", "x")
    assert cli.error("settings", *args).startswith(error)
