"""Garbage: how often a process that is Dwell's own looks for cycles of objects."""

import gc


def collect_seldom(after: int = 10_000) -> None:
    """Look for cycles when so many more objects are there, and not through what is there by now.

    Requests and records leave hardly any, and the 700 that Python waits for by itself are those of
    a few of them.
    """
    gc.freeze()
    gc.set_threshold(after)
