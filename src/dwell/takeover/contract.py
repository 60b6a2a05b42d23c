"""The methods that a takeover needs of a place."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from dwell.batch.puts import Puts
from dwell.errors import InvalidInput, InvalidUrl
from dwell.given import values
from dwell.message import TopicSettings

#: After how many changes a message is left in its place, and the reason then.
MOST_LOOKS, UNSTEADY = 10, "they changed each time they were read"


class Counts(NamedTuple):
    """The messages in a place, by state, and its totals over all its life.

    So ``delayed + ready + leased + dead`` grows by arrivals and shrinks by departures.
    """

    delayed: int = 0
    ready: int = 0
    leased: int = 0
    dead: int = 0
    came: int = 0
    gone: int = 0

    @property
    def waiting(self) -> int:
        """How many messages a takeover moves."""
        return self.delayed + self.ready

    @property
    def here(self) -> int:
        """How many messages there are."""
        return self.waiting + self.leased + self.dead


class Totals:
    """The arrivals and departures of a place that does not count them, derived from its states."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._came = self._gone = 0

    def let_go(self, count: int) -> None:
        """Note that a takeover has deleted messages there."""
        self._gone += count

    def counts(self, delayed: int, ready: int, leased: int, dead: int) -> Counts:
        """Return the counts of a place that has so many messages now."""
        here = delayed + ready + leased + dead
        if self._first is None:
            self._first = here
        more = here - (self._first + self._came - self._gone)
        self._came += max(more, 0)
        self._gone += max(-more, 0)
        return Counts(delayed, ready, leased, dead, self._came, self._gone)


class Load(NamedTuple):
    """Messages that a place has lent, and the data to let them go.

    With ``is_exact`` their dues are the same each time they are lent, and so is what ``lasting``
    returns of their headers. With ``is_dead`` they are dead letters of what is no message.
    ``again`` has the places of those that were given out before, without an id that shows it.
    """

    puts: Puts
    place: Any
    is_exact: bool = True
    lasting: Callable[[Mapping[str, str]], object] = dict
    is_dead: bool = False
    again: Collection[int] = ()


class Stayed(NamedTuple):
    """The messages that a place kept: a count ``elsewhere``, and places in a load as ``changed``.

    Others had got the former by then, a worker there or another takeover, and it is unknown which:
    they stay in the queue, so that a worker's part is done twice, and nothing is lost. The latter
    still exist there, in another version than the lent one.
    """

    elsewhere: int = 0
    changed: Sequence[int] = ()


def topic_for(kind: str, name: str, into: str | None) -> str:
    """Return the topic that the messages of a queue elsewhere go to; raises InvalidUrl."""
    if into is not None:
        return into
    try:
        return values.topic(name)
    except InvalidInput as error:
        raise InvalidUrl(f"{kind} {name!r:.80}: needs --into, as {error}") from None


class Place(Protocol):
    """A place that lends messages, which no other taker there gets until they return.

    A lent message that is never let go returns to its place, so that a takeover that dies loses
    nothing; and each message has the same id every time, so that a second takeover puts it once.
    """

    async def open(self) -> None:
        """Open the place; raises DwellError."""

    async def counts(self) -> Counts | None:
        """Return the counts, or None if the place has none."""

    async def settings(self) -> dict[str, TopicSettings]:
        """Return the settings of the topics there."""

    async def lend(self, limit: int) -> Sequence[Load] | None:
        """Lend at most ``limit`` messages; none if others fall due soon, None at the end."""

    async def let_go(self, load: Load, places: Sequence[int]) -> Stayed:
        """Delete messages of a load at some places, which the queue has."""

    async def leave(self, load: Load, places: Sequence[int]) -> None:
        """Keep messages of a load at some places, and do not lend them again in this takeover."""

    async def take_back(self, load: Load, places: Sequence[int]) -> None:
        """Return messages of a load at some places, unchanged."""

    async def held_back(self) -> Mapping[str, int]:
        """Return how many messages it could not lend, by reason."""

    async def close(self) -> None:
        """Close the place."""
