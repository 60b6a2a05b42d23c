"""Inputs that are nearly right: bytes that were damaged here and there.

To draw one good input takes Hypothesis far longer than to damage it, so a fuzz run tries each in
several ways.
"""

import random
from collections.abc import Iterator

from hypothesis import strategies as st

#: In how many ways each input is tried.
WAYS = 10
_KINDS = ("flip", "cut", "insert", "repeat", "digit")

#: Where, as a share of the whole; how; and bytes of which some are used.
Edit = tuple[float, str, bytes]


class Damage:
    """Damages any input in ways of its own; the same bytes always come to the same."""

    def __init__(self, edits: list[Edit], seed: int) -> None:
        self._edits = edits
        self._seed = seed

    def __repr__(self) -> str:
        return f"Damage({self._edits}, {self._seed})"

    def __call__(self, data: bytes) -> Iterator[bytes]:
        """Yield an input as Hypothesis damages it, if it does, and as it is damaged otherwise."""
        yield damaged(data, self._edits)
        draw = random.Random(self._seed)
        for _ in range(WAYS - 1):
            yield damaged(data, [_drawn(draw) for _ in range(draw.choice((1, 1, 1, 2, 5)))])


def _drawn(draw: random.Random) -> Edit:
    # Half of them are mild, so that some inputs are let in.
    how = draw.choice((*_KINDS, "digit", "digit", "digit"))
    return draw.random(), how, draw.randbytes(draw.choice((0, 1, 1, 2, 9)))


def damaged(data: bytes, edits: list[Edit]) -> bytes:
    """Return bytes with some edits made, one after another."""
    for place, how, extra in edits:
        at = int(place * len(data))
        if how == "flip":
            data = data[:at] + bytes(b ^ 0x55 for b in extra[:2]) + data[at + len(extra[:2]) :]
        elif how == "cut":
            data = data[:at] + data[at + 1 + len(extra) :]
        elif how == "insert":
            data = data[:at] + extra + data[at:]
        elif how == "digit":
            # Numbers that are other ones leave much of an input in force.
            at = next((n for n in range(at, len(data)) if chr(data[n]).isdigit()), at)
            data = data[:at] + b"%d" % len(extra) + data[at + 1 :]
        else:
            data = data[: at + 8] + data[at:]
    return data


_edits = st.just([]) | st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from(_KINDS), st.binary()), max_size=4
)
damages = st.builds(Damage, _edits, st.integers(0, 2**64 - 1))
