"""The hall: what all connections of one port share."""

import secrets
from collections import Counter
from collections.abc import Iterable

from dwell.server.beanstalk.commands import Verb
from dwell.server.beanstalk.decoder import Heads
from dwell.server.beanstalk.rounds import Rounds
from dwell.server.beanstalk.session import Session
from dwell.server.beanstalk.tubes import DEFAULT_TUBE, Pauses
from dwell.server.service import Service
from dwell.server.tokens import Right

#: How many topics are counted; of those beyond, nothing is kept.
_MOST_TOPICS = 100_000


class Total:
    """What was done with one topic through this port since it began."""

    __slots__ = ("deletes", "pauses", "puts")

    def __init__(self) -> None:
        self.puts = 0
        self.deletes = 0
        self.pauses = 0


class _Totals(dict[str, Total]):
    """The totals of each topic."""

    def __missing__(self, topic: str) -> Total:
        total = Total()
        if len(self) < _MOST_TOPICS:
            self[topic] = total
        return total


class Hall:
    """The sessions, the rounds that they are served in, and the counts."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._is_open = service.tokens.is_open
        self.heads = Heads(service.most_body_bytes)
        self.rounds = Rounds()
        self.pauses = Pauses()
        self.sessions: set[Session] = set()
        self.waiting: set[Session] = set()
        self.connections = 0
        self.commands: Counter[Verb] = Counter()
        self.totals = _Totals()
        self.id = secrets.token_hex(8)

    @property
    def now_ms(self) -> int:
        """The time."""
        return self.service.queue.clock.now_ms()

    def allow(self, right: Right, topics: Iterable[str] | None) -> None:
        """Refuse what a caller without a token may not do; raises Unauthorized."""
        if not self._is_open:
            self.service.tokens.check(None, right, topics)

    def chosen_tubes(self) -> dict[str, str]:
        """Return the tubes that some connection uses or watches, with their topics."""
        tubes = {DEFAULT_TUBE: DEFAULT_TUBE}
        for session in self.sessions:
            tubes[session.tube] = session.topic
            tubes.update(session.watched)
        return tubes
