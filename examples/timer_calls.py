"""Run functions later, once and again and again, inside one process.

Prints::

    cancelled: True
    beat 1
    beat 2
    beat 3
    once, for ann
"""

import threading
from itertools import count

from dwell.timer import Timer

numbers = count(1)
third_beat, all_done = threading.Event(), threading.Event()


def beat() -> None:
    """Run at a fixed rate, and end itself after the third time."""
    number = next(numbers)
    print("beat", number)
    if number == 3:
        beating.cancel()
        third_beat.set()


def remind(name: str) -> None:
    """Run once."""
    print("once, for", name)
    all_done.set()


with Timer() as timer:
    print("cancelled:", timer.after("1h", remind, "nobody").cancel())
    beating = timer.every("50ms", beat)
    third_beat.wait()
    timer.after("50ms", remind, "ann")
    all_done.wait()
