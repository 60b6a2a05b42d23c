"""The header with the call number of a request, which tells a server that a request is a repeat.

``dwell-call: 1a2b`` is a hexadecimal number that the client draws at random below 2**62; a repeat,
after an answer that did not come, sends ``dwell-call: 1a2b;again``.
"""

import re

from dwell.batch.calls import MOST_FIRST
from dwell.errors import InvalidInput

CALL_HEADER = "dwell-call"
AGAIN_MARK = ";again"

_FORM = re.compile(f"([0-9a-f]{{1,16}})({AGAIN_MARK})?")


def parse_call(text: str) -> tuple[int, bool]:
    """Return the number that a header says, and whether it is a repeat; raises InvalidInput."""
    found = _FORM.fullmatch(text)
    number = int(found[1], 16) if found else 0
    if found is None or not 0 < number < MOST_FIRST:
        raise InvalidInput(
            f"{CALL_HEADER}: got {text!r:.60}, expected a hexadecimal number from 1 to 2**62 - 1, "
            f"and {AGAIN_MARK} behind it in a repeat"
        )
    return number, found[2] is not None
