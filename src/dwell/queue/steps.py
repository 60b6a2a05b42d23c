"""Steps: counts the work of JMESPath on a body while it runs, and ends it at a limit.

A step is about the cost of one node of an expression at one value. The work that an expression
repeats for each item of a list is counted before the first item, so that nodes need not be counted
singly. The work of a Python built-in on many values is counted before its call.
"""

from typing import Any, TypeAlias

import jmespath
from jmespath.functions import Functions, signature
from jmespath.visitor import TreeInterpreter

from dwell.message import MAX_BODY_BYTES

#: A node of an expression, as the library parses it.
Node: TypeAlias = dict[str, Any]

#: The steps of a function call, and of going on to the next item in a function that iterates.
_CALL = 5
_NEXT = 2
#: How many signs of a text Python looks at, copies or compares in a step.
_SIGNS = 1024
#: From this length on a text is searched for in another without going back, and how often a
#: character may be examined in a step until then.
_MOST_BACK = 100
_SIGNS_AGAIN = 8192
#: How many items of a list are examined, copied or compared to each other in a step.
_LOOKED_AT = 4
_COPIED = 16
_SORTED = 32

_CONTAINERS = (list, dict)
_PROJECTIONS = ("projection", "value_projection", "filter_projection", "flatten")
#: Functions that read no items of their arguments.
_SHALLOW = frozenset(("length", "type", "not_null", "to_array", "abs", "ceil", "floor"))
#: Functions that evaluate an expression at each item, and its place among the arguments.
_BY = {"map": 0, "sort_by": 1, "min_by": 1, "max_by": 1}


class TooManySteps(Exception):
    """A body takes more steps than allowed. Not a ValueError, as bodies of a wrong shape raise."""


class Interpreter(TreeInterpreter):  # type: ignore[misc]
    """The library's interpreter of one expression, which counts; one body after the other."""

    def __init__(self, root: Node, most: int) -> None:
        super().__init__(jmespath.Options(custom_functions=_Functions(self)))
        usual = TreeInterpreter.COMPARATOR_FUNC
        self._is_equal = usual["eq"]
        self.COMPARATOR_FUNC = {**usual, "eq": self._equal, "ne": self._unequal}
        self._root = _counted(root)
        self._most = most
        #: How many steps the last body took.
        self.steps = 0

    def search(self, value: object) -> object:
        """Return the result of the expression for a value; raises TooManySteps."""
        self.steps = self._root["steps"]
        return self.visit(self._root, value)

    def charge(self, steps: int) -> None:
        """Count steps that are about to be taken; raises TooManySteps."""
        self.steps += steps
        if self.steps > self._most:
            raise TooManySteps

    def charge_whole(self, value: object) -> None:
        """Count a value and all that it holds."""
        self.charge(length(value))
        if isinstance(value, _CONTAINERS):
            for item in value.values() if isinstance(value, dict) else value:
                if isinstance(item, str | list | dict):
                    self.charge_whole(item)

    def visit_each(self, node: Node, value: object) -> object:
        """Return the values of a projection, and count the work for each item."""
        base = self.visit(node["children"][0], value)
        if isinstance(base, _CONTAINERS):
            self.charge(len(base) * node["value"])
        return base

    def visit_flatten(self, node: Node, value: object) -> object:
        """Make one list of lists."""
        made = super().visit_flatten(node, value)
        self.charge(length(made) // _COPIED)
        return made

    def visit_slice(self, node: Node, value: object) -> object:
        """Copy a part of a list."""
        self.charge(length(value) // _COPIED)
        return super().visit_slice(node, value)

    def _equal(self, left: object, right: object) -> bool:
        """Compare two values, deeply if they have the same type and length."""
        if type(left) is type(right) and isinstance(left, str | list | dict):
            assert isinstance(right, str | list | dict)
            if len(left) == len(right):
                self.charge_whole(left)
        return bool(self._is_equal(left, right))

    def _unequal(self, left: object, right: object) -> bool:
        return not self._equal(left, right)


class _Functions(Functions):  # type: ignore[misc]
    """The functions of JMESPath, counted; ``join``, whose result can be a product, is bounded."""

    def __init__(self, counter: Interpreter) -> None:
        self._counter = counter

    def call_function(self, name: str, given: list[Any]) -> object:
        """Call a function, and count the work by its arguments."""
        counter, first = self._counter, given[0] if given else None
        if name in _BY:
            # The function itself refuses an argument that is not an expression.
            node = getattr(given[_BY[name]], "expression", {"steps": 0})
            counter.charge(length(given[1 - _BY[name]]) * (_NEXT + node["steps"]))
        if name in ("sort", "sort_by"):
            counter.charge(length(first) * length(first).bit_length() // _SORTED)
        if name == "contains":
            self._charge_contains(*given)
        elif name == "to_string" and not isinstance(first, str):
            counter.charge_whole(first)
        elif name not in _SHALLOW:
            counter.charge(sum(map(length, given)) // _LOOKED_AT)
        return super().call_function(name, given)

    def _charge_contains(self, where: object, what: object) -> None:
        if isinstance(where, str) and isinstance(what, str):
            self._counter.charge(len(where) * min(len(what), _MOST_BACK) // _SIGNS_AGAIN)
        elif isinstance(what, _CONTAINERS):
            self._counter.charge_whole(where)
        else:
            self._counter.charge(length(where) // _LOOKED_AT)

    @signature({"types": ["string"]}, {"types": ["array-string"]})  # type: ignore[untyped-decorator]
    def _func_join(self, separator: str, parts: list[str]) -> str:
        if len(separator) * len(parts) > MAX_BODY_BYTES:
            raise ValueError("join: the text would be longer than a body may be")
        return separator.join(parts)


#: The signature of each function, by its name.
SIGNATURES: dict[str, Any] = {
    name: entry["signature"] for name, entry in _Functions.FUNCTION_TABLE.items()
}


def length(value: object) -> int:
    """Return the steps of walking through a value, without the content of its items."""
    if isinstance(value, str):
        return len(value) // _SIGNS
    return len(value) if isinstance(value, _CONTAINERS) else 0


def _counted(node: Node) -> Node:
    """Return a copy of an expression whose nodes each hold the number of their own steps.

    A counting node is inserted between a projection and the values that it iterates over.
    """
    children = [_counted(one) if isinstance(one, dict) else one for one in node["children"]]
    steps = [one["steps"] for one in children if isinstance(one, dict)]
    if node["type"] in _PROJECTIONS:
        each = {"type": "each", "children": children[:1], "value": 1 + sum(steps[1:])}
        children[0] = {**each, "steps": steps[0]}
    own = _CALL if node["type"] == "function_expression" else 1
    return {**node, "children": children, "steps": own + sum(steps)}
