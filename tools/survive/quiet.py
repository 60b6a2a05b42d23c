"""Silence: what a store logs when its disk fails is what was asked for."""

import logging


def quiet() -> None:
    """Let nothing of what the store logs reach the output."""
    log = logging.getLogger("dwell")
    log.addHandler(logging.NullHandler())
    log.propagate = False
