"""The contract of a relay with a broker: a source and a sink.

A source returns batches of records and is told when the queue has them; a sink gets batches and
answers what the broker has for sure. Both belong to one event loop. They raise
:class:`BrokerUnreachable` when the broker cannot do its work now, and another attempt may succeed.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from dwell.errors import DwellError
from dwell.relay.record import Record, Refusal
from dwell.relay.rules import Cancelled, Held


class BrokerUnreachable(DwellError):
    """A broker did not answer, or cannot do the request now."""


class LaneLost(DwellError):
    """Another relay has the lane by now, so records that this one sent for it do not count."""


class Lanes(Protocol):
    """The receiver of calls about the parts of a source that this relay has.

    Records from a lane are held in a topic of its own and leave in the order of their due, and at
    equal due in the order of arrival, because one relay at a time has a lane.
    """

    async def open(self, lanes: Sequence[str]) -> None:
        """Start sending the messages that the lanes hold."""

    async def adopt(self, counts: Mapping[str, int]) -> set[str]:
        """Send what is held of former lanes; return the topics that have any.

        The lanes of a topic are TOPIC-0, TOPIC-1 and so on; ``counts`` says how many some topics
        have, which may be fewer than before. Former lanes end with the topic's first lane, and when
        another call says that the topic has them again.
        """

    async def close(self, lanes: Sequence[str], *, is_lost: bool = False) -> None:
        """End with the lanes: return when nothing of them is read or sent by this relay.

        If they are lost another relay may have them already, and this does not wait.
        """


class Source(Protocol):
    """The origin of records."""

    #: Whether several relays may read it at once, each with lanes of its own.
    has_lanes: bool

    async def open(self, lanes: Lanes) -> None:
        """Connect; raises BrokerUnreachable or InvalidInput."""

    async def read(self, limit: int) -> Sequence[Record]:
        """Return the next records, at most ``limit``; none if none came for a while."""

    async def done(self, records: Sequence[Record]) -> None:
        """Commit records that were read: they are held, and need not come again."""

    async def defer(self, records: Sequence[Record]) -> None:
        """Return records again later, because they cannot be held now; others come in between.

        In a lane the records after a deferred record are deferred with it. It is called before
        :meth:`done` gets the rest of the same read.
        """

    def comes_again(self, record: Record) -> bool:
        """Tell whether the next read goes back to a record before this one of the last read.

        It is called only with lanes, when the earlier records are done.
        """

    def is_committed(self, lane: str, origin: str) -> bool:
        """Tell whether the record of a message in a lane of this relay does not come again."""

    async def close(self) -> None:
        """Release uncommitted records, for others."""


class Sink(Protocol):
    """The destination of records."""

    async def open(self) -> None:
        """Connect; raises BrokerUnreachable or InvalidInput."""

    async def send(self, records: Sequence[Record]) -> Sequence[Refusal | None]:
        """Send records in order to their topics; return a refusal for each that failed."""

    async def close(self) -> None:
        """Disconnect; answers of :meth:`send` stay valid."""


class Reader(Protocol):
    """Decides on records: to hold them, or to cancel others."""

    def read(self, record: Record, now_ms: int) -> Held | Cancelled:
        """Return the decision for a record; raises InvalidInput for an unusable record."""


@runtime_checkable
class SaidSource(Source, Protocol):
    """A source whose records contain all options, so that the rules of brokers do not apply."""

    def reader(self, *, is_named: bool) -> Reader:
        """Return their reader; with ``is_named`` a message must name its target."""


@runtime_checkable
class ForgetfulSource(Source, Protocol):
    """A source without lanes that no longer has a record when it is done.

    So its records become dead letters only if the letter has all of the record.
    """

    def is_whole(self, record: Record) -> bool:
        """Tell whether a record has all that its source has of it."""

    def restore(self, record: Record) -> None:
        """Make a record again what its letter is to have, because the queue has refused it."""

    async def leave(self, records: Sequence[Record]) -> None:
        """Leave records where they are, and hold up no others with them.

        It is called before :meth:`done` gets the rest of the same read.
        """


@runtime_checkable
class OnceSink(Sink, Protocol):
    """A sink that a relay's lane sends to exactly once, in transactions."""

    async def enter(self, lane: str, store: int) -> Collection[bytes]:
        """Fence off the lane's previous relay; return the names of the messages that it sent last.

        They are those of the store with the number ``store``, until the lane is entered again.
        Raises BrokerUnreachable; or InvalidSettings if no later attempt can succeed.
        """

    async def send_once(
        self, lane: str, records: Sequence[Record], names: Collection[bytes]
    ) -> Sequence[Refusal | None]:
        """Send all records of a lane, or none, and keep the names of messages with them.

        When one is refused none is sent. Raises LaneLost; or BrokerUnreachable, after which the
        lane must be entered again, because the outcome is unknown.
        """

    async def leave(self, lane: str) -> None:
        """End with a lane."""
