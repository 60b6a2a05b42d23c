"""Expressions of JMESPath that are short to send and long to evaluate."""

import json
import random

from dwell.message import MAX_BODY_BYTES
from tools.attack.attack import Attack, must
from tools.attack.sockets import ask, hammer
from tools.attack.target import TENANT, Target, asked

_TOPIC = f"/v1/topics/{TENANT}.bodies"
_EXPRESSIONS = (
    "||".join(["!sort(@)"] * 99),
    "||".join(["!sort_by(@,&a)"] * 60),
    "||".join(["!max_by(@,&a)"] * 60),
    "||".join(["contains(@,'x')"] * 55),
    "||".join(["[?@>`9`]"] * 90),
    "|".join(["[@,@][]"] * 8),
    "map(&sort(@),[@,@,@])",
    "[?" * 100 + "@" + "]" * 100,
    "(" * 480 + "@" + ")" * 480,
    "!" * 990 + "@",
    "[0:999999999999999999999999]",
    "to_string(to_string(to_string(@)))",
)


async def fill(target: Target) -> None:
    """Put bodies as large as may be: numbers, objects, and lists in lists."""
    chance = random.Random(1)
    numbers = [chance.randrange(10) for _ in range(MAX_BODY_BYTES // 3 - 10)]
    objects = [{"a": chance.randrange(10)} for _ in range(MAX_BODY_BYTES // 10 - 10)]
    depth = "[" * 400 + "]" * 400
    for body in (json.dumps(numbers), json.dumps(objects), depth):
        for _ in range(3):
            answer = await ask(target, asked(TENANT, "POST", f"{_TOPIC}/messages", {"body": body}))
            must(answer.status == 200, f"the store could not be filled: {answer.data[:200]!r}")


async def evaluated(target: Target) -> str:
    """Have bodies looked at by each expression, for find and for a filter."""
    statuses = set[int]()
    for where in _EXPRESSIONS:
        ways = (("find", {"where": where}), ("cancel", {"filter": {"where": where}}))
        for verb, body in ways:
            request = asked(TENANT, "POST", f"{_TOPIC}/{verb}", body)
            answers = await hammer(target, request, at_once=2, seconds=0.3)
            statuses |= {answer.status for answer in answers}
    must(statuses <= {200, 400, 429}, f"got {statuses}, expected answers and refusals")
    return f"{len(_EXPRESSIONS)} expressions, at two verbs"


ATTACKS = (Attack("expressions that never end", evaluated, prepare=fill),)
