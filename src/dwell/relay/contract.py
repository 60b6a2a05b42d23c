"""What a relay asks of a broker: a source, a sink, and nothing else.

A source gives batches of records and is told when the queue has them; a sink is given batches and
says what the broker has for sure. Both belong to one event loop. They raise
:class:`BrokerUnreachable` when the broker cannot do its work now, which is worth another try.
"""

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

from dwell.errors import DwellError
from dwell.relay.record import Record, Refusal
from dwell.relay.rules import Cancelled, Held


class BrokerUnreachable(DwellError):
    """A broker did not answer, or cannot do now what it was asked."""


class LaneLost(DwellError):
    """Another relay has a lane by now, so what this one sent of it does not count."""


class Lanes(Protocol):
    """Who is told which parts of a source are this relay's.

    What came by a lane is held in a topic of its own and leaves in the order of its due, and at
    one due in the order in which it came, as one relay at a time has a lane.
    """

    async def open(self, lanes: Sequence[str]) -> None:
        """Begin to send what the lanes hold."""

    async def close(self, lanes: Sequence[str], *, is_lost: bool = False) -> None:
        """End with the lanes: return when nothing more is read or sent of them.

        When they are lost another relay may have them already, and nothing is waited for.
        """


class Source(Protocol):
    """Where records come from."""

    #: Whether several relays may read it at once without knowing of each other's lanes.
    has_lanes: bool

    async def open(self, lanes: Lanes) -> None:
        """Begin; raises BrokerUnreachable or InvalidInput."""

    async def read(self, limit: int) -> Sequence[Record]:
        """Return the next records, at most ``limit``; none when none came for a while."""

    async def done(self, records: Sequence[Record]) -> None:
        """Commit records that were read: they are held, and need not come again."""

    async def defer(self, records: Sequence[Record]) -> None:
        """Give records again later, as they cannot be held now, and others meanwhile.

        In a lane what comes after a deferred record is deferred with it. It is called before
        :meth:`done` is told of the rest of what one read gave.
        """

    def comes_again(self, record: Record) -> bool:
        """Tell of a record of the last read whether the next one goes back to one before it.

        It is asked where there are lanes, when the records that were read before are done.
        """

    def is_committed(self, lane: str, origin: str) -> bool:
        """Tell whether the record of a message in a lane of this relay does not come again."""

    async def close(self) -> None:
        """Let go of what was not committed, for others."""


class Sink(Protocol):
    """Where records go."""

    async def open(self) -> None:
        """Begin; raises BrokerUnreachable or InvalidInput."""

    async def send(self, records: Sequence[Record]) -> Sequence[Refusal | None]:
        """Send records in their order to their topics; say of each why the broker has it not."""

    async def close(self) -> None:
        """End; what :meth:`send` answered stays answered."""


class Reader(Protocol):
    """What becomes of records."""

    def read(self, record: Record, now_ms: int) -> Held | Cancelled:
        """Say it of one; raises InvalidInput for one that nothing can be done with."""


@runtime_checkable
class SaidSource(Source, Protocol):
    """A source whose records say all themselves, so that the rules of brokers do not hold."""

    def reader(self, *, is_named: bool) -> Reader:
        """Return what reads them; with ``is_named`` a message is to say where it goes."""


@runtime_checkable
class OnceSink(Sink, Protocol):
    """A sink that a relay's lane sends to exactly once, in transactions."""

    async def enter(self, lane: str) -> Collection[bytes]:
        """Shut out who had the lane before; return the names of the messages that it sent last.

        Raises BrokerUnreachable.
        """

    async def send_once(
        self, lane: str, records: Sequence[Record], names: Collection[bytes]
    ) -> Sequence[Refusal | None]:
        """Send all records of a lane, or none, and keep the names of messages with them.

        When one is refused none is sent. Raises LaneLost; or BrokerUnreachable, after which the
        lane has to be entered again, as nobody knows what became of them.
        """

    async def leave(self, lane: str) -> None:
        """End with a lane."""
