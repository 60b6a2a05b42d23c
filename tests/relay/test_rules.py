"""When a record falls due and where it goes, or why it is a dead letter."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dwell.errors import InvalidInput
from dwell.message import DELAY_LEVELS_MS, MAX_DELAY_MS
from dwell.relay.envelope import TO
from dwell.relay.record import Record
from dwell.relay.rules import Cancelled, Held, Rules

NOW_MS = 1_800_000_000_000


def record(headers=(), *, topic="in", body=b"{}", at_ms=0) -> Record:
    return Record(topic, "in-0-1", body, None, list(headers), at_ms, "in-0", None, "in-0-1")


def due_of(rules: Rules, one: Record) -> int:
    found = rules.read(one, NOW_MS)
    assert isinstance(found, Held)
    return found.due_ms - NOW_MS


@pytest.mark.parametrize(
    ("name", "value", "after_ms"),
    [
        ("dwell-due-ms", b"1800000005000", 5_000),
        ("dwell-due-ms", b"2027-01-15T08:00:01Z", 1_000),
        ("dwell-delay", b"1h30m", 5_400_000),
        ("dwell-delay", b"90", 90_000),
        ("dwell-delay-level", b"3", DELAY_LEVELS_MS[2]),
        ("x-delay", b"1500", 1_500),
        ("x-delay", b"-1500", 0),
    ],
)
def test_a_header_says_when(name, value, after_ms):
    assert due_of(Rules(to="out"), record([(name, value)])) == after_ms


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dwell-due-ms", b"1800000005"),
        ("dwell-due-ms", b"9" * 13),
        ("dwell-due-ms", "١٢٣٤٥٦٧٨٩٠١٢٣".encode()),
        ("dwell-due-ms", b""),
        ("dwell-delay", b"soon"),
        ("dwell-delay", b"-1s"),
        ("dwell-delay-level", b"19"),
        ("dwell-delay-level", b"0"),
        ("x-delay", b"1.5"),
        ("x-delay", b"\xff"),
        ("x-delay", b"--5"),
        ("dwell-id", b"~mine"),
        ("dwell-id", b""),
        ("dwell-cancel", b""),
    ],
)
def test_what_says_it_badly_is_told_which_header(name, value):
    with pytest.raises(InvalidInput, match=name):
        Rules(to="out").read(record([(name, value)]), NOW_MS)


@settings(deadline=None)
@given(st.integers(0, 2 * NOW_MS), st.integers(0, MAX_DELAY_MS // 10))
def test_a_span_counts_from_when_it_was_sent_and_never_from_later(at_ms, delay_ms):
    one = record([("dwell-delay", f"{delay_ms}ms".encode())], at_ms=at_ms)
    found = Rules(to="out").read(one, NOW_MS)
    assert found.due_ms == (min(at_ms, NOW_MS) if at_ms else NOW_MS) + delay_ms


@pytest.mark.parametrize(
    ("topic", "after_ms"),
    [
        ("delay-30m", 1_800_000),
        ("orders.delay-1h30m", 5_400_000),
        ("orders_delay-5s", 5_000),
        ("delay-level-3", DELAY_LEVELS_MS[2]),
    ],
)
def test_the_topic_says_when(topic, after_ms):
    assert due_of(Rules(to="out"), record(topic=topic)) == after_ms


@pytest.mark.parametrize("topic", ["orders", "delay-", "undelay-30m", "delay-30m-old", "delay-30"])
def test_other_topics_say_nothing(topic):
    with pytest.raises(InvalidInput, match="expected a header dwell-due-ms"):
        Rules(to="out").read(record(topic=topic), NOW_MS)


def test_the_first_that_says_something_counts():
    rules = Rules(to="out", due="at", delay="wait", target="for", default_delay_ms=7)
    body = json.dumps({"at": NOW_MS + 1, "wait": "2ms", "for": "there"}).encode()
    by_header = record([("dwell-delay", b"9ms"), (TO, b"here")], body=body)
    found = rules.read(by_header, NOW_MS)
    assert (found.due_ms - NOW_MS, found.target) == (9, "here")
    found = rules.read(record(body=body), NOW_MS)
    assert (found.due_ms - NOW_MS, found.target) == (1, "there")
    found = rules.read(record(body=b'{"wait": "2ms"}'), NOW_MS)
    assert (found.due_ms - NOW_MS, found.target) == (2, "out")
    assert due_of(rules, record(topic="delay-3ms")) == 3
    assert due_of(rules, record()) == 7


def test_of_several_headers_the_first_of_the_page_counts():
    headers = [
        ("x-delay", b"4"),
        ("dwell-delay-level", b"3"),
        ("dwell-delay", b"2ms"),
        ("dwell-due-ms", b"%d" % (NOW_MS + 1)),
    ]
    assert due_of(Rules(to="out"), record(headers)) == 1
    assert due_of(Rules(to="out"), record(headers[:3])) == 2
    assert due_of(Rules(to="out"), record(headers[:2])) == DELAY_LEVELS_MS[2]


def test_a_body_that_is_no_json_is_told_where_an_expression_reads_it():
    with pytest.raises(InvalidInput, match="body: is not JSON"):
        Rules(to="out", due="at").read(record(body=b"\xff"), NOW_MS)


@pytest.mark.parametrize("body", [None, b"", b"\x08\x96\x01"])
def test_a_body_is_not_read_where_headers_say_all(body):
    rules = Rules(to="out", delay="wait", target="to")
    headers = [("dwell-delay", b"1s"), ("dwell-to", b"x")]
    found = rules.read(Record("in", "i", body, headers=headers), NOW_MS)
    assert (found.due_ms, found.target) == (NOW_MS + 1_000, "x")
    for header in headers:
        with pytest.raises(InvalidInput, match="body: is not JSON"):
            rules.read(Record("in", "i", body, headers=[header]), NOW_MS)


def test_a_target_that_is_none_is_told():
    with pytest.raises(InvalidInput, match="target: got None"):
        Rules().read(record([("x-delay", b"1")]), NOW_MS)
    with pytest.raises(InvalidInput, match="target: got 7"):
        Rules(target="for").read(record([("x-delay", b"1")], body=b'{"for": 7}'), NOW_MS)


def test_a_cancel_names_an_id_and_needs_nothing_else():
    found = Rules().read(record([("dwell-cancel", b"order-7")]), NOW_MS)
    assert isinstance(found, Cancelled)
    assert found.id == "order-7"


@pytest.mark.parametrize("kind", ["x-delay", "dwell-cancel"])
@pytest.mark.parametrize("target", [None, b"a b!", b"\xff", b"x" * 201])
def test_without_a_sink_a_target_is_a_topic(kind, target):
    headers = [(kind, b"1"), *([] if target is None else [(TO, target)])]
    with pytest.raises(InvalidInput, match="target: got"):
        Rules(is_named=False).read(record(headers), NOW_MS)


def test_the_users_id_takes_the_place_of_the_origin():
    one = record([("dwell-id", b"order-7"), ("x-delay", b"1"), ("a", b"b")])
    found = Rules(to="out").read(one, NOW_MS)
    assert (found.record.id, found.record.origin) == ("order-7", "in-0-1")
    assert found.record.headers == [("x-delay", b"1"), ("a", b"b")]


@pytest.mark.parametrize("error", [InvalidInput, RecursionError])
def test_a_refused_record_keeps_its_id_whatever_the_error(monkeypatch, error):
    def fail(record, target):
        raise error("no")

    monkeypatch.setattr("dwell.relay.envelope.extra_of", fail)
    one = record([("dwell-id", b"order-7"), ("x-delay", b"1")])
    came_id = one.id
    with pytest.raises(error):
        Rules(to="out").read(one, NOW_MS)
    assert one.id == came_id


@pytest.mark.parametrize("text", ["a..b", "[", ""])
def test_an_expression_that_is_none_is_refused_at_once(text):
    with pytest.raises(InvalidInput, match="where"):
        Rules(due=text)
