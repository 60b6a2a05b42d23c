"""The service: the shared state of both ports."""

from dataclasses import dataclass, field
from typing import Protocol

from dwell.batch.batch import Batch
from dwell.errors import DwellError, InvalidBody, ServerBusy, ServerDraining
from dwell.histogram import Histogram
from dwell.message import MAX_BODY_BYTES
from dwell.queue import Queue
from dwell.server.board.board import Board
from dwell.server.hosts import Hosts
from dwell.server.inflight import InFlight
from dwell.server.lateputs import LatePuts
from dwell.server.linelog import LineLog
from dwell.server.quotas import Quotas
from dwell.server.shares import Share
from dwell.server.tokens import Tokens
from dwell.server.turns import Turns
from dwell.server.unparsed import Unparsed

#: Waiting takers of a topic are woken 250 times a second at most: the lateness costs less than the
#: work for more answers would, which all others would wait for.
TAKE_SPACING_MS = 4.0


@dataclass(slots=True)
class Service:
    """One open queue, its tokens and limits, and whether it still accepts messages."""

    queue: Queue
    tokens: Tokens
    in_flight: InFlight
    started_ms: int
    is_draining: bool = False
    most_waiting: int = 20_000
    most_connections: int = 20_000
    most_body_bytes: int = MAX_BODY_BYTES
    token_percent: int = 100
    socket_mode: int = 0o600
    take_spacing_ms: float = TAKE_SPACING_MS
    hosts: Hosts = field(default_factory=Hosts)
    lateness: Histogram = field(default_factory=Histogram)
    ports: "list[Port]" = field(default_factory=list)
    shares: dict[str, Share] = field(default_factory=dict)
    turns: Turns = field(default_factory=Turns)
    unparsed: Unparsed = field(default_factory=Unparsed)
    access: LineLog | None = None
    audit: LineLog | None = None
    board: Board = field(init=False)
    quotas: Quotas = field(init=False)
    _late_puts: LatePuts = field(init=False)

    def __post_init__(self) -> None:
        self.board = Board(self.queue)
        self.quotas = Quotas(self.queue, self.tokens)
        self.queue.space_takes(self.take_spacing_ms)
        # A store that is not the server's own notes none.
        self._late_puts = getattr(self.queue.store, "late_puts", LatePuts())

    def problem(self) -> str | None:
        """Return why new messages are refused, or verbs fail; None if all is well."""
        try:
            self.check_puts()
            self.queue.store.check()
        except DwellError as error:
            return f"{type(error).__name__}: {error}"
        return None

    def share_of(self, token: str) -> Share:
        """Return the share of a token, by its name; all callers without a token share one."""
        share = self.shares.get(token)
        if share is None:
            whose = f"token {token}: " if token else "callers without a token: "
            share = Share(whose, self.in_flight, self.most_waiting, self.token_percent)
            self.shares[token] = share
        return share

    def note_taken(self, batch: Batch) -> None:
        """Count the lateness of messages that were taken for the first time.

        Later takes depend on leases and retries, not on the queue.
        """
        now_ms = self.queue.clock.now_ms()
        if len(batch) == 1:
            # NumPy takes as long for one as for a hundred.
            if batch.attempt[0] == 1:
                due_ms, number = int(batch.due_ms[0]), int(batch.numbers[0])
                self.lateness.add(self._late_puts.late_ms(due_ms, number, now_ms) / 1000)
            return
        is_first = batch.attempt == 1
        if is_first.any():
            columns = (batch.due_ms[is_first], batch.numbers[is_first])
            self.lateness.add_many(self._late_puts.many_late_ms(*columns, now_ms) / 1000)

    def check_waiting(self, waiting: int) -> None:
        """Refuse one waiting taker more than may wait; raises ServerBusy."""
        if waiting >= self.most_waiting:
            raise ServerBusy(f"{waiting} takers wait, at most {self.most_waiting} may")

    def check_body(self, size_bytes: int) -> None:
        """Refuse a body that is larger than this server takes; raises InvalidBody."""
        if size_bytes > self.most_body_bytes:
            raise InvalidBody(
                f"body: got {size_bytes} bytes, expected at most {self.most_body_bytes}"
            )

    def check_puts(self) -> None:
        """Refuse new messages while it drains or lacks memory; raises ServerDraining, StoreFull."""
        if self.is_draining:
            raise ServerDraining("the server is draining: it takes no new messages")
        self.check_growth()

    def check_growth(self) -> None:
        """Refuse what may need more memory, while the server lacks memory; raises StoreFull."""
        if self.in_flight.memory is not None:
            self.in_flight.memory.check_growth()


class Port(Protocol):
    """One way into the service, with one start/stop contract."""

    @property
    def address(self) -> tuple[str, int]:
        """Its address: the host, and the actual port."""

    async def start(self) -> None:
        """Begin to accept; raises OSError when the address cannot be had."""

    async def stop(self) -> None:
        """Stop accepting, end every wait, finish the requests, and close every connection."""
