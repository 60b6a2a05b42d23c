"""Turns of an event loop: how much is done in one of them at most."""

import asyncio
from collections.abc import Callable


class MostInATurn:
    """The largest growth of a total within one turn; ``watch`` runs until it is cancelled.

    ``seen`` is the total at its last look.
    """

    def __init__(self, total: Callable[[], int]) -> None:
        self._total = total
        self.most = self.seen = 0

    async def watch(self) -> None:
        """Look at the total in each turn."""
        self.seen = self._total()
        while True:
            await asyncio.sleep(0)
            now = self._total()
            self.most, self.seen = max(self.most, now - self.seen), now
