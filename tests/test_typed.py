"""Typed topics: Structs, dataclasses, models of Pydantic and plain types, in and out."""

import asyncio
import math
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pydantic.alias_generators
import pydantic.dataclasses
import pytest
from pydantic import AliasChoices, AliasPath, ConfigDict, Field

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


# --- what is put is what is taken -------------------------------------------------------------


class Aliased(pydantic.BaseModel):
    number: int = Field(0, alias="orderNumber")


class ReadByAlias(pydantic.BaseModel):
    number: int = Field(0, validation_alias="orderNumber")


class WrittenByAlias(pydantic.BaseModel):
    number: int = Field(0, serialization_alias="orderNumber")


class TwoNames(pydantic.BaseModel):
    number: int = Field(0, validation_alias="one", serialization_alias="other")


class ByEither(pydantic.BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    number: int = Field(0, validation_alias="one", serialization_alias="other")


class ByName(pydantic.BaseModel):
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=False)
    number: int = Field(0, alias="orderNumber")


class Camel(pydantic.BaseModel):
    model_config = ConfigDict(alias_generator=pydantic.alias_generators.to_camel)
    order_number: int = 0
    of_it: list["Camel"] = []


class Swapped(pydantic.BaseModel):
    a: int = Field(0, alias="b")
    b: int = Field(0, alias="a")


class Mixed(pydantic.BaseModel):
    a: int = Field(0, alias="A")
    b: int = Field(0, serialization_alias="B")


class Deep(pydantic.BaseModel):
    number: int = Field(0, validation_alias=AliasPath("numbers", 0))


class Choices(pydantic.BaseModel):
    number: int = Field(0, validation_alias=AliasChoices("one", "number"))


class Excluded(pydantic.BaseModel):
    number: int = 0
    hidden: int = Field(0, exclude=True)
    call: Callable[..., Any] = Field(print, exclude=True)


class Computed(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: int = 0

    @pydantic.computed_field
    @property
    def double(self) -> int:
        return self.number * 2


class JsonInside(pydantic.BaseModel):
    numbers: pydantic.Json[list[int]]


class Secret(pydantic.BaseModel):
    text: pydantic.SecretStr


class Number(pydantic.BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="constants")
    number: float = 0.0
    hidden: float = Field(0.0, exclude=True)


class Beside(pydantic.BaseModel):
    model_config = ConfigDict(extra="allow")
    _lock: Any = pydantic.PrivateAttr(default_factory=threading.Lock)
    _tries: int = pydantic.PrivateAttr(0)

    def tried(self, count):
        self._tries = count
        return self


class Moment(pydantic.BaseModel):
    at: datetime


class Incomparable(pydantic.BaseModel):
    number: int

    def __eq__(self, other):
        raise RuntimeError


class Child(Model):
    more: int = 0


@pydantic.dataclasses.dataclass
class Positive:
    number: int = Field(gt=0, alias="n")


class Identity(msgspec.Struct, eq=False):
    number: float


class Words(msgspec.Struct):
    words: list[list[str]]


class Growing(msgspec.Struct):
    number: int

    def __post_init__(self):
        self.number += 1


#: An hour that a clock goes through twice: such a moment equals none of another zone.
TWICE = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))

COMES_BACK = [
    (Aliased, Aliased(orderNumber=17), b'{"orderNumber":17}'),
    (Aliased, Aliased(), b'{"orderNumber":0}'),
    (WrittenByAlias, WrittenByAlias(number=17), b'{"number":17}'),
    (ByEither, ByEither(one=17), b'{"number":17}'),
    (ByName, ByName(number=17), b'{"number":17}'),
    (
        Camel,
        Camel(orderNumber=1, ofIt=[Camel(orderNumber=2)]),
        b'{"orderNumber":1,"ofIt":[{"orderNumber":2,"ofIt":[]}]}',
    ),
    (Swapped, Swapped(b=1, a=2), b'{"b":1,"a":2}'),
    (Choices, Choices(one=17), b'{"number":17}'),
    (Mixed, Mixed(A=1), b'{"A":1,"B":0}'),
    (Computed, Computed(number=2), b'{"number":2}'),
    (JsonInside, JsonInside(numbers="[1]"), b'{"numbers":"[1]"}'),
    (Excluded, Excluded(number=1), b'{"number":1}'),
    (Beside, Beside(more=[1]), b'{"more":[1]}'),
    (Number, Number(number=math.nan), b'{"number":NaN}'),
    (Moment, Moment(at=TWICE), b'{"at":"2026-10-25T02:30:00+01:00"}'),
    (Incomparable, Incomparable(number=1), b'{"number":1}'),
    (Identity, Identity(1.5), b'{"number":1.5}'),
    (Positive, Positive(n=1), b'{"n":1}'),
    (Words, Words((("a",), ["b"])), b'{"words":[["a"],["b"]]}'),
]


@pytest.mark.parametrize(("kind", "value", "body"), COMES_BACK)
async def test_what_is_put_comes_back_whatever_its_type_writes_by_itself(kind, value, body):
    async with dwell.open("memory:") as queue:
        orders = queue.topic("orders", kind)
        await orders.put(value)
        (message,) = await orders.take()
        assert message.body == body
        assert repr(message.value) == repr(value) or kind in (Identity, Moment, Words)


OTHERWISE = [
    (ReadByAlias, ReadByAlias(orderNumber=17)),
    (TwoNames, TwoNames(one=17)),
    (Mixed, Mixed(A=1, b=2)),
    (Deep, Deep(numbers=[17])),
    (Excluded, Excluded(hidden=17)),
    (Excluded, Excluded(call=len)),
    (Number, Number(number=math.nan, hidden=17)),
    (Number, Number(hidden=math.nan)),
    (Beside, Beside().tried(17)),
    (Secret, Secret(text="secret")),
    (Model, Child(id=1, to="ann")),
    (list[Model], [{"id": 1, "to": "ann"}]),
    (float | None, math.inf),
    (Growing, Growing(1)),
    (Struct, {"id": 1, "to": "ann"}),
]


@pytest.mark.parametrize(("kind", "value"), OTHERWISE)
async def test_what_would_come_back_as_another_value_is_not_put(kind, value):
    async with dwell.open("memory:") as queue:
        orders = queue.topic("orders", kind)
        with pytest.raises(dwell.InvalidBody, match=r"^body: is no .*: it would be taken as "):
            await orders.put(value)
        with pytest.raises(dwell.InvalidBody, match=r"^body: is no .*: it would be taken as "):
            await orders.put_many([value])
        assert (await queue.stats()).topics == {}


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
    (Positive, Positive(n=1), b'{"n": -1}'),
    (list[Positive], [Positive(n=1)], b'[{"n": -1}]'),
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
        # It is given back, and not buried.
        message = await queue.get("orders", "a")
        assert (message.state, message.attempt) == (dwell.State.READY, 0)


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


@pytest.mark.parametrize("failure", [asyncio.CancelledError, dwell.StoreFailed])
async def test_a_take_that_is_cut_off_gives_back_what_it_took(monkeypatch, failure):
    async with dwell.open("memory:") as queue:
        await queue.put_many("orders", [b'"no number"', b"1", b"2"])
        orders = queue.topic("orders", int)

        async def bury(*how):
            raise failure

        with monkeypatch.context() as patched:
            patched.setattr(queue, "bury", bury)
            with pytest.raises(failure):
                await orders.take(10)
        assert [message.value for message in await orders.take(10)] == [1, 2]
        assert (await queue.stats()).topics["orders"].dead == 1
