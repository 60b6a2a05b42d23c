"""Predicates on bodies: JMESPath expressions. Needs the extra ``query``.

An expression that somebody sends is run beside everything else that a server does. So what it may
make of a body is bounded before it is run: see :func:`_growth`.
"""

import asyncio
import warnings
from collections.abc import Iterator
from typing import Any

import jmespath
import msgspec
from jmespath.functions import Functions, signature

from dwell.batch.batch import Batch
from dwell.errors import InvalidQuery
from dwell.given import values
from dwell.message import MAX_BODY_BYTES

#: How many times as large as a body what an expression makes of it may be, by its form.
MOST_GROWTH = 250

#: What an evaluation raises when a body is not of the kind that the expression is for.
_MISFITS = (ValueError, TypeError, ArithmeticError, LookupError, RecursionError)

#: How much a body and what is made of it may be together; a larger one is not looked at.
_MOST_MADE_BYTES = 4 * 1024 * 1024

#: How much of a turn of the event loop a body costs beside its bytes, and how much a turn may.
_BODY = 1024
_TURN = 256 * 1024

_Node = dict[str, Any]


class _Functions(Functions):  # type: ignore[misc]
    """The functions of JMESPath; the one whose answer grows as a product is bounded."""

    @signature({"types": ["string"]}, {"types": ["array-string"]})  # type: ignore[untyped-decorator]
    def _func_join(self, separator: str, parts: list[str]) -> str:
        if len(separator) * len(parts) > MAX_BODY_BYTES:
            raise ValueError("join: the text would be longer than a body may be")
        return separator.join(parts)


_OPTIONS = jmespath.Options(custom_functions=_Functions())


class Query:
    """A predicate, ready to be asked; raises InvalidQuery for what cannot be evaluated."""

    def __init__(self, text: object) -> None:
        self.text = values.where(text)
        try:
            with warnings.catch_warnings():
                # An old form of literals is read all the same, and nobody sees what it warns of.
                warnings.simplefilter("ignore")
                self._expression = jmespath.compile(self.text)
            node: _Node = self._expression.parsed
            _check_calls(node)
            growth = _growth(node)
        except _MISFITS as error:
            reason = " ".join(str(error).split())
            raise values.refusal(
                InvalidQuery, "where", self.text, f"an expression of JMESPath ({reason:.200})"
            ) from None
        self._growth = max(growth, 1)
        if growth > MOST_GROWTH:
            allowed = f"one that makes of a body at most {MOST_GROWTH} times as much, not {growth}"
            raise values.refusal(InvalidQuery, "where", self.text, allowed)

    def matches(self, body: bytes) -> bool:
        """Tell whether a body is JSON of which the expression is true, as JMESPath has it.

        False, null and what is empty are not true; neither is what cannot be evaluated, nor what
        would keep everybody else waiting, because the expression makes too much of a large body.
        """
        if self._growth * len(body) > _MOST_MADE_BYTES:
            return False
        try:
            value = msgspec.json.decode(body)
            found = self._expression.search(value, options=_OPTIONS)
        except (msgspec.MsgspecError, *_MISFITS):
            return False
        # The number 0 is true, so being empty is asked only of what can be.
        if isinstance(found, str | list | dict):
            return bool(found)
        return found is not None and found is not False

    async def places(self, batch: Batch) -> list[int]:
        """Return the places of the messages of a batch whose bodies match.

        After some bodies, by how large they are, everybody else has a turn.
        """
        found, left = [], _TURN
        for at, body in enumerate(batch.bodies):
            if self.matches(body):
                found.append(at)
            left -= _BODY + self._growth * len(body)
            if left < 0:
                await asyncio.sleep(0)
                left = _TURN
        return found


def _children(node: _Node) -> Iterator[_Node]:
    return (child for child in node["children"] if isinstance(child, dict))


def _check_calls(node: _Node) -> None:
    """Raise ValueError for a call of an unknown function, or with too few or many arguments.

    Evaluating would find it only at a body that leads there.
    """
    if node["type"] == "function_expression":
        name, count = node["value"], len(node["children"])
        if name not in _Functions.FUNCTION_TABLE:
            raise ValueError(f"there is no function {name}")
        wanted = _Functions.FUNCTION_TABLE[name]["signature"]
        is_open = bool(wanted) and bool(wanted[-1].get("variadic"))
        if count < len(wanted) or (count > len(wanted) and not is_open):
            raise ValueError(f"{name} takes {len(wanted)} arguments, not {count}")
    for child in _children(node):
        _check_calls(child)


def _growth(node: _Node) -> int:
    """Return how many times as much as it is given an expression can make of it.

    Lists that name a value several times, piped into each other, double it with every step; texts
    in texts do, when their quotes are escaped; and a literal stands anew for each item of a list.
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
