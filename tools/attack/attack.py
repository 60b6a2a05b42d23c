"""An attack: what somebody does to a server, and what shows that it got through."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tools.attack.target import Target


class GotThrough(Exception):
    """An attack did what it must not be able to."""


class Attack(NamedTuple):
    """One shape: what it is called, what does it, and the server that it is done to.

    ``run`` returns in a few words what came of it, and raises GotThrough. ``args`` are flags of the
    server, ``files`` how many it may open, 0 for as many as it can. ``needs_folder``: what
    it looks at is there only with a store in a folder.
    """

    name: str
    run: Callable[[Target], Awaitable[str]]
    args: tuple[str, ...] = ()
    has_tls: bool = False
    files: int = 0
    prepare: Callable[[Target], Awaitable[object]] | None = None
    needs_folder: bool = False


def must(holds: object, words: str) -> None:
    """Raise GotThrough with some words unless something holds."""
    if not holds:
        raise GotThrough(words)
