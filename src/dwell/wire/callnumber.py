"""The header with the call number of a request, which tells a server that a request is a repeat.

``dwell-call: 1a2b`` is a hexadecimal number that the client draws at random below 2**62; a repeat,
after an answer that did not come, sends ``dwell-call: 1a2b;again``. A repeat of a take sends the
next number, ``1a2c;again``, and the messages that the numbers before it had leased are released: if
a repeat is delayed on its way, it releases nothing that a later repeat has delivered.
"""

from dwell.batch.calls import MOST_FIRST
from dwell.errors import InvalidInput

CALL_HEADER = "dwell-call"
AGAIN_MARK = ";again"
#: How often a take is repeated at most.
MOST_REPEATS = 64

_MOST_DIGITS = 16


def parse_call(text: str) -> tuple[int, bool]:
    """Return the number that a header says, and whether it is a repeat; raises InvalidInput."""
    plain = text.removesuffix(AGAIN_MARK)
    # A number alone may also have signs, blanks and underscores.
    is_number = plain.isalnum() and plain.isascii() and len(plain) <= _MOST_DIGITS
    try:
        number = int(plain, 16) if is_number else 0
    except ValueError:
        number = 0
    if not 0 < number < MOST_FIRST:
        raise InvalidInput(
            f"{CALL_HEADER}: got {text!r:.60}, expected a hexadecimal number from 1 to 2**62 - 1, "
            f"and {AGAIN_MARK} behind it in a repeat"
        )
    return number, plain is not text
