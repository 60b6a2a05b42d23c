"""Every span that a request says as text or seconds it can say in milliseconds, and not both."""

import pytest

from tests.http.test_http_api import calling

#: Where a span stands: the path, what else the request needs, and the name of the span.
PLACES = [
    ("/v1/topics/t/messages", {"body": "b"}, "delay"),
    ("/v1/topics/t/messages", {"body": "b", "delay": 0}, "ttl"),
    ("/v1/topics/t/messages", {"body": "b"}, "lease"),
    ("/v1/take", {"topics": "t"}, "lease"),
    ("/v1/take", {"topics": "t"}, "wait"),
    ("/v1/release", {"receipts": []}, "delay"),
    ("/v1/touch", {"receipts": []}, "lease"),
    ("/v1/topics/t/reschedule", {"ids": ["a"]}, "delay"),
    ("/v1/topics/t/kick", {"ids": ["a"]}, "delay"),
]


@pytest.mark.parametrize(("path", "rest", "name"), PLACES)
async def test_a_span_is_said_in_either_way_and_not_in_both(path, rest, name):
    async with calling() as caller:
        for said in ({name: "20ms"}, {name: 0.02}, {f"{name}_ms": 20}):
            body = [{**rest, **said}] if path.endswith("messages") else {**rest, **said}
            await caller.post(path, body)
            assert caller.status in (200, 201), caller.data
        both = {**rest, name: "20ms", f"{name}_ms": 20}
        await caller.post(path, [both] if path.endswith("messages") else both)
        assert caller.status == 400
        assert f"got {name} and {name}_ms together".encode() in caller.data


async def test_both_ways_mean_the_same():
    async with calling() as caller:
        await caller.post("/v1/topics/t/messages", [{"body": "b", "delay_ms": 3_600_000}])
        await caller.post("/v1/topics/t/messages", [{"body": "b", "delay": "1h"}])
        listed = await caller.get("/v1/topics/t/messages?state=delayed")
        first, second = (row["due_ms"] for row in listed["messages"])
        assert abs(second - first) < 60_000
        rows = [{"body": "b", "ttl_ms": 1, "delay_ms": 5}]
        await caller.post("/v1/topics/t/messages", rows)
        assert caller.status == 400
        assert b"ttl" in caller.data


async def test_a_wait_is_no_longer_than_a_server_lets_one_wait():
    async with calling() as caller:
        await caller.post("/v1/take", {"topics": "t", "wait": "6m"})
        assert caller.status == 400
        assert b"wait: got" in caller.data


async def test_the_spans_of_settings_are_milliseconds_or_text():
    async with calling() as caller:
        said = {"lease_ms": "5m", "remember_ms": 3_600_000, "retry_delays_ms": ["1s", 2000, "1h"]}
        found = await caller.ask("PATCH", "/v1/topics/t/settings", said)
        assert caller.status == 200
        assert (found["lease_ms"], found["remember_ms"]) == (300_000, 3_600_000)
        assert found["retry_delays_ms"] == [1000, 2000, 3_600_000]


async def test_an_expiry_is_a_moment_in_either_form():
    async with calling() as caller:
        for at, said in enumerate((4_000_000_000_000, "2096-10-02T07:06:40Z")):
            await caller.post(
                "/v1/topics/t/messages", {"body": "b", "id": f"{at}", "expires": said}
            )
            found = await caller.get(f"/v1/topics/t/messages/{at}")
            assert found["expires_ms"] == 4_000_000_000_000
