"""What a takeover asks of a place that messages leave."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from dwell.batch.puts import Puts
from dwell.message import TopicSettings


class Counts(NamedTuple):
    """What a place holds now, by state, and what has come and gone in all its life.

    So ``delayed + ready + leased + dead`` grows by what comes and shrinks by what goes.
    """

    delayed: int = 0
    ready: int = 0
    leased: int = 0
    dead: int = 0
    came: int = 0
    gone: int = 0

    @property
    def waiting(self) -> int:
        """How many a takeover moves."""
        return self.delayed + self.ready

    @property
    def here(self) -> int:
        """How many there are."""
        return self.waiting + self.leased + self.dead


class Load(NamedTuple):
    """Messages that a place has lent, and what it needs to let them go.

    With ``is_exact`` their dues are those of each time that they are lent.
    """

    puts: Puts
    place: Any
    is_exact: bool = True


class Stayed(NamedTuple):
    """What a place did not let go: ``elsewhere`` are counted, and ``changed`` are places in a load.

    Somebody else had got the former by then, a worker there or another takeover, and nobody can say
    which: they stay in the queue, so that what a worker did is done twice, and nothing is lost. The
    latter are there still, in another version than the one that was lent.
    """

    elsewhere: int = 0
    changed: Sequence[int] = ()


class Place(Protocol):
    """A place whose messages can be lent: while they are, it gives them to nobody else.

    What is lent and never let go comes back to its place, so that a takeover that dies loses
    nothing; and each message has the same id every time, so that a second one puts it once.
    """

    async def open(self) -> None:
        """Begin; raises DwellError."""

    async def counts(self) -> Counts | None:
        """Return what there is, or None where the place cannot say."""

    async def settings(self) -> dict[str, TopicSettings]:
        """Return the settings that the topics have there."""

    async def lend(self, limit: int) -> Sequence[Load] | None:
        """Lend at most ``limit`` messages; none when others fall due soon, None at the end."""

    async def let_go(self, load: Load, places: Sequence[int]) -> Stayed:
        """Forget those of a load at some places, as the queue has them."""

    async def leave(self, load: Load, places: Sequence[int]) -> None:
        """Keep those of a load at some places, and lend them no more in this takeover."""

    async def take_back(self, load: Load, places: Sequence[int]) -> None:
        """Keep those of a load at some places, as they were before they were lent."""

    async def held_back(self) -> int:
        """Return how many messages it would have lent, and could not."""

    async def close(self) -> None:
        """End."""
