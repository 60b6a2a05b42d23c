"""Typed topics: Structs, dataclasses, models of Pydantic and plain types, in and out."""

from dataclasses import dataclass
from typing import TypedDict

import msgspec
import pydantic
import pytest

import dwell
from dwell.worker import Worker
from tests.waiting import until_async
from tests.worker.serving import serving


class Struct(msgspec.Struct):
    id: int
    to: str


@dataclass
class Data:
    id: int
    to: str


class Model(pydantic.BaseModel):
    id: int
    to: str


class Dict(TypedDict):
    id: int
    to: str


VALUES = [(Struct, Struct(1, "ann")), (Data, Data(1, "ann")), (Model, Model(id=1, to="ann"))]
VALUES += [(Dict, {"id": 1, "to": "ann"}), (list[int], [1, 2]), (str, "text"), (int | None, None)]


@pytest.mark.parametrize(("kind", "value"), VALUES)
async def test_what_is_put_is_taken(kind, value):
    async with dwell.open("memory:") as queue:
        orders = queue.topic("orders", kind)
        await orders.put(value, id="a", delay=0, key="k")
        await orders.put_many([value, value])
        found = await orders.take(10)
        assert [message.value for message in found] == [value] * 3
        assert (found[0].id, found[0].key) == ("a", "k")
        assert (await orders.get("a")).value == value
        assert (await queue.ack(found)).count(dwell.Result.ACKED) == 3
        assert await orders.get("a") is None


@pytest.mark.parametrize("kind", [Struct, Data, Model, Dict])
async def test_what_does_not_fit_is_buried_with_the_reason(kind):
    async with dwell.open("memory:") as queue:
        bodies = [b"\xff", b"{", b'{"id": "x", "to": "ann"}', b'{"id": 1, "to": "ann"}']
        await queue.put_many("orders", bodies, ids=["a", "b", "c", "good"])
        (good,) = await queue.topic("orders", kind).take(10)
        assert good.id == "good"
        for message in await queue.get("orders", ["a", "b", "c"]):
            assert message.state is dwell.State.DEAD
            assert message.last_error.startswith(f"body: is no {kind.__name__}: ")


@pytest.mark.parametrize(
    ("kind", "value"),
    [(Struct, Struct("x", "ann")), (Data, {"id": 1}), (Model, 5), (list[int], ["x"]), (Struct, 5)],
)
async def test_what_is_not_of_the_type_is_not_put(kind, value):
    async with dwell.open("memory:") as queue:
        orders = queue.topic("orders", kind)
        with pytest.raises(dwell.InvalidBody, match=r"^body: is no "):
            await orders.put(value)
        with pytest.raises(dwell.InvalidBody, match=r"^body: is no "):
            await orders.put_many([value])
        assert (await queue.stats()).topics == {}


async def test_a_type_that_json_cannot_say_is_refused():
    async with dwell.open("memory:") as queue:
        with pytest.raises(dwell.InvalidBody, match=r"^kind: got"):
            queue.topic("orders", Struct | Data)
        with pytest.raises(dwell.InvalidTopic):
            queue.topic("a b", int)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_gets_values(is_async):
    seen = []

    async def handle_async(message):
        seen.append((message.id, message.value))

    def handle(message):
        seen.append((message.id, message.value))

    async with dwell.open("memory:") as queue:
        await queue.put("orders", b"{}", id="bad")
        await queue.topic("orders", Struct).put(Struct(1, "ann"), id="good")
        worker = Worker(queue)
        worker.on("orders", kind=Struct)(handle_async if is_async else handle)
        async with serving(worker):

            async def done():
                counts = (await queue.stats()).topics["orders"]
                return (counts.dead, counts.ready, counts.leased) == (1, 0, 0)

            await until_async(done)
        assert seen == [("good", Struct(1, "ann"))]
        assert (await queue.get("orders", "bad")).last_error.startswith("body: is no Struct")
        with pytest.raises(dwell.InvalidInput, match="kind: got batch=2"):
            worker.on("other", kind=Struct, batch=2)


def test_the_sync_face_has_the_same():
    with dwell.open("memory:") as queue:
        orders = queue.topic("orders", Struct)
        orders.put(Struct(1, "ann"))
        (message,) = orders.take()
        assert isinstance(message, dwell.TypedMessage)
        assert message.value == Struct(1, "ann")
        assert queue.ack(message) is dwell.Result.ACKED
