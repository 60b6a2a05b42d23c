"""Typed topics: Structs, dataclasses, models of Pydantic and plain types, in and out."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec
import pydantic
import pydantic.alias_generators
import pydantic.dataclasses
import pytest
from pydantic import ConfigDict, Field

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


# --- types ------------------------------------------------------------------------------------


class Plain:
    pass


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    inside: T


class StructBox(msgspec.Struct, Generic[T]):
    inside: T


L = TypeVar("L", bound=Model)


@dataclass
class ModelBox(Generic[L]):
    inside: L


@dataclass
class WithPlain:
    plain: Plain | None = None


class StructWithPlain(msgspec.Struct):
    plain: Plain | None = None


class ModelWithPlain(pydantic.BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    plain: Plain


class Itself(pydantic.BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    others: list["Itself"]
    plain: dict[str, list[Plain]]


class StructWithModel(msgspec.Struct):
    model: Model


UNSAYABLE = [Plain, complex, type, type[int], Callable[[int], int], msgspec.msgpack.Ext, range]
UNSAYABLE += [list[Plain], dict[str, Plain], Plain | None, tuple[int, Plain], list[list[Plain]]]
UNSAYABLE += [WithPlain, StructWithPlain, Box[Plain], StructBox[Plain], list[WithPlain]]
UNSAYABLE += [dict[tuple[int, int], int], list["Nowhere"], StructWithModel, StructBox[Model]]  # noqa: F821
UNSAYABLE += [ModelWithPlain, list[ModelWithPlain], Itself, Box[ModelWithPlain], 5]


@pytest.mark.parametrize("kind", UNSAYABLE, ids=str)
async def test_a_type_with_a_part_that_json_cannot_say_is_refused(kind):
    async with dwell.open("memory:") as queue:
        with pytest.raises(dwell.InvalidBody, match=r"^kind: got .*, expected a Struct, a data"):
            queue.topic("orders", kind)
        with pytest.raises(dwell.InvalidBody, match=r"^kind: got"):
            Worker(queue).on("orders", kind=kind)(print)


class Tree(msgspec.Struct):
    leaves: list["Tree"] = []
    keys: dict[int, Any] = {}
    plain: ClassVar[Plain] = Plain()


class Convertible(pydantic.BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    number: int
    plain: Plain | None = None
    path: Annotated[
        Plain, pydantic.BeforeValidator(lambda _: Plain()), pydantic.PlainSerializer(str)
    ]


@pytest.mark.parametrize("kind", [Tree, Convertible, object, Any, msgspec.Raw])
async def test_a_type_that_some_bodies_can_be_is_not_refused(kind):
    async with dwell.open("memory:") as queue:
        await queue.put("orders", b'{"number": 1, "path": "a"}')
        assert len(await queue.topic("orders", kind).take()) == 1


@pydantic.dataclasses.dataclass
class Positive:
    number: int = Field(gt=0)


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"


class Named(NamedTuple):
    model: Model


@dataclass
class Later:
    model: "Last"


class Last(pydantic.BaseModel):
    number: pydantic.PositiveInt


ANN = Model(id=1, to="ann")
BAD = b'{"id": "x", "to": "ann"}'

INSIDE = [
    (list[Model], [ANN], b"[%s]" % BAD),
    (Model | None, ANN, BAD),
    (Model | None, None, BAD),
    (dict[str, list[Model]], {"a": [ANN]}, b'{"a": [%s]}' % BAD),
    (tuple[Model, ...], (ANN,), b"[%s]" % BAD),
    (Box[Model], Box(ANN), b'{"inside": %s}' % BAD),
    (ModelBox, ModelBox(ANN), b'{"inside": %s}' % BAD),
    (Named, Named(ANN), b'{"model": %s}' % BAD),
    (Cat | Dog, Dog(), b'{"kind": "cow"}'),
    (Later, Later(Last(number=1)), b'{"model": {"number": -1}}'),
    (Positive, Positive(1), b'{"number": -1}'),
    (list[Positive], [Positive(1)], b'[{"number": -1}]'),
    (pydantic.PositiveInt, 1, b"-1"),
    (list[Annotated[int, Field(gt=0)]], [1], b"[-1]"),
]


@pytest.mark.parametrize(("kind", "value", "bad"), INSIDE)
async def test_what_pydantic_has_inside_a_type_is_checked_by_it(kind, value, bad):
    async with dwell.open("memory:") as queue:
        orders = queue.topic("orders", kind)
        await queue.put("orders", bad, id="bad")
        await orders.put(value)
        assert [message.value for message in await orders.take(10)] == [value]
        assert (await queue.get("orders", "bad")).state is dwell.State.DEAD


def test_pydantic_is_loaded_only_for_what_needs_it():
    code = """
import sys, typing, msgspec, dwell
class Order(msgspec.Struct):
    number: int
with dwell.open("memory:") as queue:
    queue.topic("orders", Order).put(Order(1))
    assert queue.topic("orders", dict[str, int]).take()[0].value == {"number": 1}
assert not {"pydantic", "pydantic_core", "annotated_types"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- checks that raise ------------------------------------------------------------------------


class Untold(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class UntoldValue(Untold, ValueError):
    pass


class NoText(Exception):
    def __str__(self):
        return 5


class OddText(Exception):
    def __str__(self):
        class Text(str):
            def __getitem__(self, at):
                raise RuntimeError("no part")

            __format__ = __len__ = __str__ = __getitem__

        return Text("odd")


class Nameless(type):
    @property
    def __name__(cls):
        raise RuntimeError("no name")


class Unnamed(Untold, metaclass=Nameless):
    pass


def endless(depth=0):
    return endless(depth + 1)


RAISED = [Untold(), UntoldValue(), NoText(), OddText(), Unnamed(), ValueError("x" * 10**6)]
RAISED += [ValueError("\ud800 \0 \n"), RecursionError(), MemoryError(), StopIteration(), None]
RAISED += [ExceptionGroup("many", [Untold()]), StopAsyncIteration(), AssertionError()]


def checked(error):
    """Return types whose check of a negative number raises an error, for None an endless one."""

    def check(number):
        if number < 0:
            raise error if error is not None else endless()
        return number

    class Checked(msgspec.Struct):
        number: int

        def __post_init__(self):
            check(self.number)

    class CheckedModel(pydantic.BaseModel):
        number: Annotated[int, pydantic.AfterValidator(check)]

    return Checked, CheckedModel


@pytest.mark.parametrize("error", RAISED, ids=map(str, range(len(RAISED))))
@pytest.mark.parametrize("at", [0, 1])
async def test_whatever_a_check_raises_its_message_is_buried_and_others_come(error, at):
    kind = checked(error)[at]
    async with dwell.open("memory:") as queue:
        await queue.put_many("orders", [{"number": n} for n in (1, -1, 2)], ids=["a", "bad", "b"])
        orders = queue.topic("orders", kind)
        assert [message.value.number for message in await orders.take(10)] == [1, 2]
        bad = await queue.get("orders", "bad")
        assert bad.state is dwell.State.DEAD
        assert bad.last_error.startswith(f"body: is no {kind.__name__}: ")
        with pytest.raises(dwell.InvalidBody, match=r"^body: is no Checked"):
            await orders.get("bad")


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()], ids=repr)
async def test_what_ends_a_program_is_no_mistake_of_a_message(error, at):
    async with dwell.open("memory:") as queue:
        await queue.put("orders", {"number": -1}, id="a")
        with pytest.raises(type(error)):
            await queue.topic("orders", checked(error)[at]).take()
        assert (await queue.get("orders", "a")).state is dwell.State.LEASED


async def test_a_worker_buries_what_raises_an_error_without_a_text():
    async with dwell.open("memory:") as queue:
        await queue.put("orders", {"number": -1}, id="bad")
        worker = Worker(queue)
        worker.on("orders", kind=checked(Untold())[0])(print)
        async with serving(worker):

            async def done():
                return (await queue.stats()).topics["orders"].dead == 1

            await until_async(done)
        assert (await queue.get("orders", "bad")).last_error == "body: is no Checked: Untold"
