"""The ids that verbs name: callers' ids, and ids that the store has made."""

from collections.abc import Sequence

from dwell.testing.domains import IDS
from dwell.testing.model import Model
from dwell.testing.views import Views

#: The model's name for a message whose id the store makes, until that is known.
OPEN = "~?"


class Ids:
    """All known ids."""

    def __init__(self) -> None:
        self._made: list[str] = []

    def learn(self, ids: Sequence[str]) -> None:
        """Add ids that the store has made for messages of one put."""
        assert all(id_.startswith("~") for id_ in ids)
        assert not set(ids) & set(self._made), "an id was made twice"
        assert len(set(ids)) == len(ids), "an id was made twice"
        self._made += ids

    @property
    def count(self) -> int:
        """How many ids the store has made."""
        return len(self._made)

    def newest(self, start: int) -> list[str]:
        """Return the made ids from ``start`` on, the newest first."""
        return self._made[start:][::-1]

    def find_made(self, model: Model, views: Views) -> None:
        """Learn the ids that the store made from the bodies, which are all different."""
        ids = {view.body: id_ for (_, id_), view in views.items()}
        open_ids = [item.put for item in model.items.values() if item.put.id.startswith(OPEN)]
        names = {put.id: ids[put.body] for put in open_ids if put.body in ids}
        model.rename(names)
        self._made += names.values()

    def picked(
        self, topic: str, picks: list[int], model: Model, *, first_dead: bool = False
    ) -> list[str]:
        """Pick ids, first of existing messages, then others."""

        def rank(id_: str) -> int:
            item = model.items.get((topic, id_))
            return 2 if item is None else int(first_dead and not item.died_ms)

        known = sorted([*self._made[-5:], *IDS], key=rank)
        return [known[pick % len(known)] for pick in picks]
