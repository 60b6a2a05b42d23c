"""Garbage: how often the processes of Dwell's commands collect cycles of objects."""

import gc


def collect_seldom(after: int = 10_000) -> None:
    """Collect cycles after ``after`` new objects, and leave out the objects that exist now.

    Requests and records leave hardly any cycles, and a few of them make the 700 objects after which
    Python collects by default.
    """
    gc.freeze()
    gc.set_threshold(after)
