import re
from datetime import datetime
from pathlib import Path

import pytest

from dwell.cli import texts
from dwell.cli.session import folder_of
from dwell.given import values

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("away_ms", "said"),
    [
        (0, "now"),
        (999, "now"),
        (-999, "now"),
        (1000, "in 1s"),
        (59_999, "in 59s"),
        (60_000, "in 1m"),
        (29 * 60_000 + 59_000, "in 29m"),
        (3_600_000, "in 1h 0m"),
        (47 * 3_600_000, "in 47h 0m"),
        (48 * 3_600_000, "in 2d"),
        (-125 * 60_000, "2h 5m ago"),
    ],
)
def test_how_far_away(away_ms, said):
    assert texts.away_text(NOW_MS + away_ms, NOW_MS) == said


@pytest.mark.parametrize("ms", [0, 1, NOW_MS, NOW_MS + 873, 4_102_444_799_999])
def test_a_time_is_local_and_exact(ms):
    said = texts.time_text(ms)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", said)
    assert values.due_ms(datetime.fromisoformat(said), NOW_MS) == ms


@pytest.mark.parametrize("count", [1, 7, 99, 10_000_000])
@pytest.mark.parametrize("span", ["ms", "s", "m", "h", "d", "5s", "250ms", "1h30m", "7d"])
def test_a_rate_can_be_given_as_it_is_said(count, span):
    if span == "7d" or count * 1000 < 10**9:
        rate = values.rate(f"{count}/{span}")
        said = texts.rate_text(rate)
        assert values.rate(said if "/" in said else float(said)) == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize("said", ["0", "50", "1/7d", "1/7s", "100/m", "7/h", "1000000000"])
def test_a_rate_is_said_as_people_write_it(said):
    assert texts.rate_text(values.rate(said if "/" in said else int(said))) == said


@pytest.mark.parametrize("ms", [0, 1, 250, 60_000, 90_000, 5_400_000, 93_784_005])
def test_a_span_can_be_given_as_it_is_said(ms):
    assert values.delay_ms(texts.span_text(ms)) == ms


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (5 << 30, "5.0 GiB"),
        (5 << 40, "5120.0 GiB"),
    ],
)
def test_sizes(size, said):
    assert texts.size_text(size) == said


def test_texts_of_strangers_do_not_reach_the_terminal_as_they_are():
    assert texts.printable("a\x1b[31m\n\t\x9b\u202e\u2028é 漢\u3000") == (
        "a\\x1b[31m\\n\\t\\x9b\\u202e\\u2028é 漢\u3000"
    )
    assert texts.printable("a\n\tb\r\x00", lines=True) == "a\n\tb\\r\\x00"


def test_bodies():
    assert texts.body_text("é\n".encode()) == "é\\n"
    assert texts.body_text(b"\xff\x00") == "base64:/wA="
    assert texts.body_fields(b"\x00") == {"body": "\x00"}
    assert texts.body_fields(b"\xff") == {"body_base64": "/w=="}


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("./data", "data"),
        ("/a b", "/a b"),
        ("file:///a%20b", "/a b"),
        ("file:data", "data"),
        ("FILE:data", "data"),
        ("C:\\data", "C:\\data"),
        ("memory:", None),
        ("http://localhost", None),
        ("redis://localhost", None),
    ],
)
def test_the_folder_that_a_url_names(url, folder):
    assert folder_of(url) == (None if folder is None else Path(folder))
