"""Messages of kombu as messages of Dwell: dues, ids and priorities."""

import datetime as dt
import pickle
import uuid

import msgspec
import pytest
from celery import Celery

from dwell.celery.envelope import message_id, opened, sealed
from dwell.errors import InvalidBody
from dwell.message import Message, State

_NOW_MS = 1_700_000_000_000


def message(headers=None, body="[]", content_type="application/json", **properties):
    return {
        "body": body,
        "content-type": content_type,
        "content-encoding": "utf-8",
        "headers": headers or {},
        "properties": {"delivery_info": {}} | properties,
    }


def task(**fields):
    return message({"task": "shop.pay", "id": "T1", "retries": 0} | fields)


def due_ms(eta):
    return sealed("q", task(eta=eta), _NOW_MS).due_ms


@pytest.mark.parametrize(
    ("eta", "due"),
    [
        (None, None),
        ("2023-11-14T22:13:21+00:00", _NOW_MS + 1000),
        ("2023-11-14T23:13:21+01:00", _NOW_MS + 1000),
        ("2023-11-14T22:13:21Z", _NOW_MS + 1000),
        # Rounded up, as no task may run before its ETA.
        ("2023-11-14T22:13:21.000001+00:00", _NOW_MS + 1001),
        ("1960-01-01T00:00:00+00:00", 0),
        ("tomorrow", None),
        (17, None),
    ],
)
def test_an_eta_is_a_due(eta, due):
    assert due_ms(eta) == due


def test_an_eta_without_a_zone_is_of_the_zone_of_the_app():
    app = Celery("zones", set_as_current=True)
    app.conf.timezone = "Europe/Berlin"
    assert due_ms("2023-11-14T23:13:21") == _NOW_MS + 1000
    app.close()


def test_the_worker_has_no_eta_to_wait_for():
    parcel = sealed("q", task(eta="2023-11-14T22:13:21+00:00"), _NOW_MS)
    found = msgspec.json.decode(parcel.body)
    assert found["headers"]["eta"] is None
    assert found["properties"]["eta"] == "2023-11-14T22:13:21+00:00"


def test_the_message_of_the_caller_stays_as_it_is():
    given = task(eta="2023-11-14T22:13:21+00:00")
    sealed("q", given, _NOW_MS)
    assert given["headers"]["eta"] == "2023-11-14T22:13:21+00:00"
    assert "eta" not in given["properties"]


def test_an_eta_of_protocol_1_is_in_the_body():
    body = '{"task": "shop.pay", "id": "T1", "eta": "2023-11-14T22:13:21+00:00", "retries": 2}'
    parcel = sealed("q", message(body=body), _NOW_MS)
    assert (parcel.due_ms, parcel.id) == (_NOW_MS + 1000, "T1:2")


def test_a_body_that_only_looks_like_a_task_is_none():
    for body in ('{"task": ', '["task"]', '{"task": 1}'):
        assert sealed("q", message(body=body), _NOW_MS).id is None
    pickled = message(body=pickle.dumps({"task": "x"}).hex(), content_type="application/x-pickle")
    assert sealed("q", pickled, _NOW_MS).id is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "T1"),
        ({"retries": 3}, "T1:3"),
        ({"retries": 1, "replaced_task_nesting": 2}, "T1:3"),
        ({"retries": None}, "T1"),
        # Ids of the queue's own form, and those that are too long, are left to the queue.
        ({"id": "~1"}, None),
        ({"id": "x" * 250}, None),
        ({"id": ""}, None),
        ({"id": 17}, None),
    ],
)
def test_the_id_is_that_of_the_task(fields, expected):
    assert sealed("q", task(**fields), _NOW_MS).id == expected
    assert message_id("T1", 0) == "T1"


def test_values_that_only_kombu_writes_come_back():
    given = task(at=dt.datetime(2023, 11, 14, tzinfo=dt.UTC), by=uuid.UUID(int=7))
    parcel = sealed("q", given, _NOW_MS)
    found = opened(taken(parcel.body))
    assert found["headers"]["at"] == given["headers"]["at"]
    assert found["headers"]["by"] == given["headers"]["by"]
    with pytest.raises(InvalidBody, match="message: got what JSON cannot encode"):
        sealed("q", task(what=object()), _NOW_MS)


def taken(body, attempt=1):
    return Message(
        topic="q",
        id="T1",
        body=body,
        due_ms=0,
        state=State.LEASED,
        priority=0,
        attempt=attempt,
        max_attempts=0,
        lease_ms=0,
        receipt="0" * 32,
    )


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("headers", {"headers": []}),
        ("body", {"body": []}),
        ("headers.task", {"headers": {"task": []}}),
        ("headers.id", {"headers": {"task": "shop.pay", "id": {}}}),
    ],
)
def test_a_field_that_a_worker_cannot_use_is_refused(field, changes):
    with pytest.raises(InvalidBody, match=rf"^{field}: got .+, expected (an object|a text)$"):
        opened(taken(msgspec.json.encode(message() | changes)))


def test_a_second_delivery_says_so():
    body = sealed("q", task(), _NOW_MS).body
    assert "redelivered" not in opened(taken(body))["properties"]["delivery_info"]
    assert opened(taken(body, 2))["properties"]["delivery_info"]["redelivered"] is True


def test_a_task_without_an_id_has_that_of_its_message():
    found = opened(taken(sealed("q", task(id=None), _NOW_MS).body))
    assert (found["headers"]["id"], found["headers"]["root_id"]) == ("T1", "T1")
    assert found["properties"]["correlation_id"] == "T1"
    assert "id" not in opened(taken(sealed("q", message(), _NOW_MS).body))["headers"]


@pytest.mark.parametrize(
    ("priority", "expected"), [(0, 1024), (9, 1015), (300, 769), (-1, 1024), (None, 1024)]
)
def test_higher_priorities_are_lower_numbers(priority, expected):
    assert sealed("q", message(priority=priority), _NOW_MS).priority == expected


def test_the_shorter_time_to_live_counts_from_the_due():
    assert sealed("q", task(), _NOW_MS).expires_ms is None
    assert sealed("q", task(), _NOW_MS, 500).expires_ms == _NOW_MS + 500
    assert sealed("q", message(expiration="200"), _NOW_MS, 500).expires_ms == _NOW_MS + 200
    later = sealed("q", task(eta="2023-11-14T22:13:21+00:00"), _NOW_MS, 500)
    assert later.expires_ms == _NOW_MS + 1500
