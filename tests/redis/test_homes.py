"""To which shard a message belongs: by its key, else by its id, else to any of them."""

import pytest

import dwell
from dwell import Then

SHARDS = 4


@pytest.fixture
def url(redis_url, request):
    return f"{redis_url}?prefix={request.node.name}&shards={SHARDS}"


@pytest.mark.parametrize("headers", [None, {"origin": "shop"}])
async def test_headers_bind_a_message_to_no_shard(url, headers):
    """Otherwise one shard would have all messages that are traced, and its part of each limit."""
    async with dwell.open(url) as queue:
        ids = [(await queue.put("t", b"", headers=headers)).id for _ in range(3 * SHARDS)]
        assert sorted(int(id_[1:], 16) % 256 for id_ in ids) == sorted([*range(SHARDS)] * 3)


async def test_a_follow_up_with_headers_is_put_wherever_its_message_was(url):
    async with dwell.open(url) as queue:
        await queue.put_many("t", [b""] * 20, ids=[f"{n}" for n in range(20)])
        for message in await queue.take("t", 20):
            await queue.ack(message, then=Then("u", b"", headers={"origin": message.id}))
        assert {one.headers["origin"] for one in await queue.take("u", 20)} == {
            f"{n}" for n in range(20)
        }
