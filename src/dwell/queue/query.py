"""Predicates on bodies: JMESPath expressions. Needs the extra ``query``.

A server runs the expressions that clients send in the same process as everything else. So two
limits apply: the size of the result is bounded before an expression runs (:func:`_growth`), and its
work is bounded while it runs (:mod:`dwell.queue.steps`).
"""

import asyncio
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import jmespath
import msgspec

from dwell.batch.batch import Batch
from dwell.errors import InvalidQuery
from dwell.given import values
from dwell.queue.steps import SIGNATURES, Interpreter, Node, TooManySteps

#: The greatest factor by which the form of an expression may enlarge a body.
MOST_GROWTH = 250

#: Errors that an evaluation raises when a body has not the shape that the expression expects.
_MISFITS = (ValueError, TypeError, ArithmeticError, LookupError, RecursionError)

#: The size limit of a body and its result together; larger bodies are not matched.
_MOST_MADE_BYTES = 4 * 1024 * 1024

#: How many steps an expression may take at one body.
MOST_STEPS = 500_000

#: Bodies up to this size, and evaluations up to this number of steps, run in the event loop. All
#: others run in one thread that all callers share, as they would block the loop for long.
_SMALL_BYTES = 16 * 1024
_FEW_STEPS = 5_000
_threads: list[ThreadPoolExecutor] = []
# The thread is not there in a forked process.
os.register_at_fork(after_in_child=_threads.clear)

#: How many bytes of a body are read in a step, and how many steps a turn of the event loop has.
_BYTES = 16
_TURN = 20_000


class Query:
    """A compiled predicate; raises InvalidQuery if the expression cannot be evaluated.

    After ``most_steps`` steps it evaluates no further messages.
    """

    def __init__(self, text: object, most_steps: int = 2**62) -> None:
        self.text = values.where(text)
        try:
            with warnings.catch_warnings():
                # Old forms of literals are accepted; nobody would see the warning.
                warnings.simplefilter("ignore")
                node: Node = jmespath.compile(self.text).parsed
            _check_calls(node)
            growth = _growth(node)
        except _MISFITS as error:
            reason = " ".join(str(error).split())
            if "(NUMBER)" in reason:
                reason = f"numbers stand in backticks: total > `30`; {reason}"
            raise values.refusal(
                InvalidQuery, "where", self.text, f"an expression of JMESPath ({reason:.200})"
            ) from None
        self._growth = max(growth, 1)
        if growth > MOST_GROWTH:
            allowed = f"one that makes of a body at most {MOST_GROWTH} times as much, not {growth}"
            raise values.refusal(InvalidQuery, "where", self.text, allowed)

        self._interpreter = Interpreter(node, MOST_STEPS)
        self._short = Interpreter(node, _FEW_STEPS)
        self._left = most_steps

    def matches(self, body: bytes) -> bool:
        """Tell whether a body is JSON and the expression is true of it, as JMESPath defines it.

        False, null and empty values are not true. A body is not matched either if the evaluation
        fails on it, or if it is large and the expression could make too much of it. Raises
        InvalidQuery if the evaluation takes too many steps.
        """
        try:
            return self._is_true(self._interpreter, body)
        except TooManySteps:
            allowed = f"one that takes at most {MOST_STEPS} steps at a body ({len(body)} bytes)"
            raise values.refusal(InvalidQuery, "where", self.text, allowed) from None

    async def _matches(self, body: bytes) -> bool:
        """Match a body, in a thread if it takes long."""
        if len(body) <= _SMALL_BYTES:
            try:
                return self._is_true(self._short, body)
            except TooManySteps:
                self._left -= self._short.steps
        if not _threads:
            _threads.append(ThreadPoolExecutor(1, "dwell-query"))
        return bool(await asyncio.wrap_future(_threads[0].submit(self.matches, body)))

    def _is_true(self, interpreter: Interpreter, body: bytes) -> bool:
        self._short.steps = self._interpreter.steps = 0
        if self._growth * len(body) > _MOST_MADE_BYTES:
            return False
        try:
            found = interpreter.search(msgspec.json.decode(body))
        except (msgspec.MsgspecError, *_MISFITS):
            return False
        # The number 0 is true, so being empty is asked only of what can be.
        if isinstance(found, str | list | dict):
            return bool(found)
        return found is not None and found is not False

    @property
    def is_spent(self) -> bool:
        """Whether as many steps were taken as it may take."""
        return self._left < 0

    def value(self, content: object) -> object:
        """Return the result of the expression for a value; None if it fails."""
        self._interpreter.steps = 0
        try:
            return self._interpreter.search(content)
        except (*_MISFITS, TooManySteps):
            return None

    async def places(
        self, batch: Batch, among: Sequence[int], ends_s: float = math.inf
    ) -> tuple[list[int], int]:
        """Return which of some places of a batch have bodies that match; raises InvalidQuery.

        It also returns how many messages of the batch were examined: it stops at a time of the
        event loop's clock, after one message at least. It yields to other tasks after a number of
        steps.
        """
        found, turn, bodies = [], _TURN, batch.bodies
        time = asyncio.get_running_loop().time
        for at in among:
            body = bodies[at]
            try:
                if await self._matches(body):
                    found.append(at)
            except InvalidQuery as error:
                raise InvalidQuery(f"{error}, not more at message {batch.ids[at]!r:.80}") from None
            steps = self._short.steps + self._interpreter.steps + len(body) // _BYTES
            self._left -= steps
            turn -= steps
            if self.is_spent:
                return found, at + 1
            if turn < 0:
                if time() >= ends_s:
                    return found, at + 1
                await asyncio.sleep(0)
                turn = _TURN
        return found, len(batch)


def _children(node: Node) -> Iterator[Node]:
    return (child for child in node["children"] if isinstance(child, dict))


def _check_calls(node: Node) -> None:
    """Raise ValueError for a call of an unknown function, or with too few or many arguments.

    Evaluating would find it only at a body that leads there.
    """
    if node["type"] == "function_expression":
        name, count = node["value"], len(node["children"])
        if name not in SIGNATURES:
            raise ValueError(f"there is no function {name}")
        wanted = SIGNATURES[name]
        is_open = bool(wanted) and bool(wanted[-1].get("variadic"))
        if count < len(wanted) or (count > len(wanted) and not is_open):
            raise ValueError(f"{name} takes {len(wanted)} arguments, not {count}")
    for child in _children(node):
        _check_calls(child)


def _growth(node: Node) -> int:
    """Return how many times as large as its input the result of an expression can be.

    Lists that name a value several times, piped into each other, double it with every step. Nested
    texts do so when their quotes are escaped. A literal is copied for each item of a list.
    """
    parts = [_growth(child) for child in _children(node)]
    kind = node["type"]
    if kind == "literal":
        return _items(node["value"])
    if kind in ("multi_select_list", "multi_select_dict"):
        return 1 + sum(parts)
    if kind == "function_expression":
        return 2 * max(sum(parts), 1)
    if kind in ("comparator", "and_expression", "or_expression", "not_expression"):
        return max(parts)
    growth = 1
    for part in parts:
        growth *= part
    return growth


def _items(value: object) -> int:
    """Return how many values a literal holds, itself included."""
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + sum(map(_items, value)) if isinstance(value, list) else 1
