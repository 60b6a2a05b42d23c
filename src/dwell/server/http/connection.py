"""A connection, as the requests on it see it: whether it is still there."""

from collections.abc import Callable


class Connection:
    """Tells the request that waits on it when it is lost; there is one request at a time."""

    __slots__ = ("is_lost", "on_lost")

    def __init__(self) -> None:
        self.is_lost = False
        self.on_lost: Callable[[], None] | None = None

    def lose(self) -> None:
        """Say that nobody will read an answer any more."""
        self.is_lost = True
        if self.on_lost is not None:
            self.on_lost()
