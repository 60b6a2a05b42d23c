"""Crontabs become schedules; python-crontab has written some of them."""

import time
from datetime import datetime
from itertools import islice, product
from zoneinfo import ZoneInfo

import msgspec
import pytest
from croniter import croniter
from crontab import CronTab

from dwell.calendar.epoch import from_ms
from dwell.errors import InvalidUrl
from dwell.message import MAX_BODY_BYTES
from tests.takeover.copies import copied, reasons, schedules

_LINES = (
    "*/7 * * * *",
    "30 2 * * *",
    "0 9 * * mon-fri",
    "15 */4 1,15 * *",
    "0 0 29 2 *",
    "5 4 * jan-mar 0,7",
    "10 10 13 * fri",
)


def _file(folder, text, name="tab"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return f"crontab:{path}"


def _bodies(store):
    return [msgspec.json.decode(one.body) for one in schedules(store).values()]


def test_lines_of_a_library_fire_when_it_says(tmp_path):
    tab = CronTab(tab="")
    for number, line in enumerate(_LINES):
        tab.new(command=f"job {number}").setall(line)
    tab.write(str(tmp_path / "tab"))
    report = copied(tmp_path / "store", f"crontab:{tmp_path}/tab?zone=Asia/Tokyo")
    assert (report.found, report.put["created"], report.is_whole) == (7, 7, True)
    assert report.balances
    put = schedules(tmp_path / "store").values()
    found = {msgspec.json.decode(one.body)["command"]: one for one in put}
    begin = datetime(2027, 2, 26, 23, 58, tzinfo=ZoneInfo("Asia/Tokyo"))
    for number, line in enumerate(_LINES):
        expected = list(islice(croniter(line, begin).all_next(datetime), 6))
        times = found[f"job {number}"].times.following(int(begin.timestamp() * 1000))
        assert [from_ms(ms) for ms in islice(times, 6)] == expected, line


def test_a_body_holds_what_cron_runs(tmp_path):
    url = _file(
        tmp_path,
        "# a comment\n"
        "\n"
        "  \tPATH = /bin:/usr/bin  \n"
        'MAILTO=""\n'
        "'odd name'='  kept  '\n"
        "0 1 * * *\tmail -s 100\\% ann%first%second\n"
        "  -0 2 * * * date +\\%F # no comment\n"
        "TZ=Asia/Tokyo\n"
        "0 3 * * * A=b run%\n",
    )
    assert copied(tmp_path / "store", f"{url}?zone=UTC").put["created"] == 3
    environment = {"PATH": "/bin:/usr/bin", "MAILTO": "", "odd name": "  kept  "}
    found = {one["command"]: one for one in _bodies(tmp_path / "store")}
    assert found == {
        "mail -s 100% ann": {
            "command": "mail -s 100% ann",
            "stdin": "first\nsecond\n",
            "environment": environment,
        },
        "date +%F # no comment": {
            "command": "date +%F # no comment",
            "environment": environment,
        },
        "A=b run": {
            "command": "A=b run",
            "stdin": "",
            "environment": environment | {"TZ": "Asia/Tokyo"},
        },
    }
    # TZ is for commands alone.
    assert {one.zone for one in schedules(tmp_path / "store").values()} == {"UTC"}


def _as_cron_splits(text):
    """Return a command and its input as the two loops of cronie's do_command.c find them."""
    command, at, is_escaped = "", 0, False
    while at < len(text) and (is_escaped or text[at] != "%"):
        if is_escaped and text[at] == "%":
            command = command[:-1]
        command += text[at]
        is_escaped = not is_escaped and text[at] == "\\"
        at += 1
    if at == len(text):
        return {"command": command}
    stdin, is_escaped = "", False
    for one in text[at + 1 :]:
        if is_escaped and one != "%":
            stdin += "\\"
        elif not is_escaped and one == "%":
            one = "\n"
        is_escaped = one == "\\"
        if not is_escaped:
            stdin += one
    stdin += "\\" if is_escaped else ""
    is_ended = not stdin or stdin.endswith("\n")
    return {"command": command, "stdin": stdin if is_ended else f"{stdin}\n"}


def test_backslashes_and_percent_signs_are_read_as_by_cron(tmp_path):
    texts = ["a" + "".join(rest) for count in range(7) for rest in product("\\%b", repeat=count)]
    url = _file(tmp_path, "".join(f"0 1 * * * {text}\n" for text in texts))
    report = copied(tmp_path / "store", f"{url}?zone=UTC")
    assert report.put["created"] == len(texts)
    found = schedules(tmp_path / "store")
    # A report lists the first thousand.
    for told, text in zip(report.told, texts, strict=False):
        body = msgspec.json.decode(found[told.name].body)
        assert body == _as_cron_splits(text), text


def test_a_zone_holds_for_the_lines_below_it(tmp_path):
    text = "0 1 * * * a\nCRON_TZ=Asia/Tokyo\n0 1 * * * b\nCRON_TZ=Mars/Base\n0 1 * * * c\n"
    report = copied(tmp_path / "store", f"{_file(tmp_path, text)}?zone=Europe/Berlin")
    assert sorted(one.zone for one in schedules(tmp_path / "store").values()) == [
        "Asia/Tokyo",
        "Europe/Berlin",
    ]
    assert list(reasons(report)) == ["line 5"]
    assert "Mars/Base" in reasons(report)["line 5"]


def test_a_random_delay_holds_for_the_lines_below_it(tmp_path):
    text = "0 1 * * * a\nRANDOM_DELAY=30\n0 2 * * * b\nRANDOM_DELAY=soon\n0 3 * * * c\n"
    text += "RANDOM_DELAY=0\n0 4 * * * d\n"
    report = copied(tmp_path / "store", _file(tmp_path, text))
    found = schedules(tmp_path / "store").values()
    jitters = {msgspec.json.decode(one.body)["command"]: one.jitter_ms for one in found}
    assert jitters == {"a": 0, "b": 30 * 60_000, "d": 0}
    assert reasons(report) == {"line 5": "RANDOM_DELAY: got 'soon', expected minutes"}


def test_a_system_crontab_names_users(tmp_path):
    text = "17 * * * * root cd / && run-parts /etc/cron.hourly\n@daily www\n@daily bin  true\n"
    url = _file(tmp_path, text)
    report = copied(tmp_path / "store", f"{url}?format=system")
    assert report.put["created"] == 2
    assert list(reasons(report)) == ["line 2"]
    told = {(one["user"], one["command"]) for one in _bodies(tmp_path / "store")}
    assert told == {("root", "cd / && run-parts /etc/cron.hourly"), ("bin", "true")}


def test_a_repeat_puts_nothing_and_a_change_is_told(tmp_path):
    text = "0 1 * * * a\n0 1 * * * a\n0 1 * * * b\n"
    url, store = _file(tmp_path, text), tmp_path / "store"
    assert copied(store, url).put == {"created": 3}
    # Above other lines, and in another file.
    url = _file(tmp_path, f"\n# moved\n{text}0 2 * * * a\n", "other")
    assert copied(store, url).put == {"kept": 3, "created": 1}
    report = copied(store, _file(tmp_path, f"SHELL=/bin/sh\n{text}"))
    assert (report.others, report.put.total(), report.balances) == (3, 0, True)
    assert all("environment" not in body for body in _bodies(store))
    assert copied(store, f"{url}?prefix=web2").put == {"created": 4}


def test_bad_lines_are_refused_with_their_numbers_and_hold_up_nothing(tmp_path):
    text = (
        b"@reboot start\n0 1 * * * good\n* * * *\n0 1 * * *\n99 1 * * * late\n"
        b"0 1 * * * caf\xe9\n@fortnightly x\n=x\n0 0 30 2 * never\n"
        b"0 1 * * * " + b"x" * MAX_BODY_BYTES + b"\n0 2 * * * last"
    )
    store = tmp_path / "store"
    report = copied(store, _file(tmp_path, text))
    assert (report.found, report.put["created"], report.refused) == (11, 2, 9)
    assert report.balances
    assert {body["command"] for body in _bodies(store)} == {"good", "last"}
    said = reasons(report)
    assert list(said) == [f"line {n}" for n in (1, 3, 4, 5, 6, 7, 8, 9, 10)]
    assert "does not start with a machine" in said["line 1"]
    assert "UTF-8" in said["line 6"]


def test_a_dry_run_puts_nothing_and_tells_the_next_moments(tmp_path):
    url, store = _file(tmp_path, "@daily a\n0 1 * * * b\n"), tmp_path / "store"
    report = copied(store, f"{url}?zone=Asia/Tokyo", dry_run=True)
    assert [told.next_at[11:] for told in report.told] == ["00:00:00+09:00", "01:00:00+09:00"]
    assert {told.result for told in report.told} == {"created"}
    assert schedules(store) == {}
    copied(store, f"{url}?zone=Asia/Tokyo")
    report = copied(store, f"{url}?zone=Asia/Tokyo", dry_run=True)
    assert {told.result for told in report.told} == {"kept"}


@pytest.mark.parametrize("rest", ["", "?format=both", "{}?zone=", "{}?colour=red", "{}/none"])
def test_an_address_without_a_crontab_is_refused(tmp_path, rest):
    (tmp_path / "tab").touch()
    with pytest.raises(InvalidUrl):
        copied(tmp_path / "store", f"crontab:{rest.format(tmp_path / 'tab')}")


def test_a_long_run_of_blanks_takes_no_time(tmp_path):
    blanks = " " * 40_000
    text = f"A={blanks}b{blanks}c\n0{blanks}1 * * *\n0 1 * * * a{blanks}b%{blanks}\n"
    begin = time.process_time()
    report = copied(tmp_path / "store", _file(tmp_path, text))
    assert (report.found, report.put["created"]) == (2, 1)
    # All pairs of blanks take many seconds.
    assert time.process_time() - begin < 2


def test_commands_of_odd_blanks_stop_no_other(tmp_path):
    lines = ["1 2 * * * \r", "1 3 * * * \f", "1 4 * * * \u00a0", "1 5 * * * plain"]
    report = copied(tmp_path / "store", _file(tmp_path, "\n".join(lines)))
    assert report.balances
    assert "1 5 * * *" in {one.cron for one in schedules(tmp_path / "store").values()}
