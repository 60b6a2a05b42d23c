"""Arrivals: puts received in part. They count as in flight, and must be complete in time."""

import asyncio

from dwell.errors import DwellError
from dwell.server.beanstalk.refusals import word_of
from dwell.server.beanstalk.session import Arrival, Session
from dwell.server.inflight import InFlight

#: How long the body of a put may take to come.
LONGEST_S = 60.0


class Arrivals:
    """The puts of one port that are coming, at most one a session."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        # In order of their start, and so of their deadlines. One timer for all costs less than one
        # each, as many are complete with the next bytes.
        self._sessions: dict[Session, Arrival] = {}
        self._timer: asyncio.TimerHandle | None = None

    def count(self, session: Session, size_bytes: int) -> bytes | None:
        """Count what has come of a session's put; return the refusal if there is no room for it."""
        arrival = session.arrival
        try:
            if arrival is None:
                self._in_flight.enter(size_bytes)
                self._begin(session, size_bytes)
            else:
                self._in_flight.enter(size_bytes - arrival.size_bytes, 0)
                arrival.size_bytes = size_bytes
        except DwellError as error:
            self.end(session)
            return word_of(error)
        return None

    def end(self, session: Session) -> None:
        """Count a session's put out, if one is coming."""
        arrival, session.arrival = session.arrival, None
        if arrival is not None:
            del self._sessions[session]
            self._in_flight.leave(arrival.size_bytes)

    def _begin(self, session: Session, size_bytes: int) -> None:
        ends_s = asyncio.get_running_loop().time() + LONGEST_S
        session.arrival = self._sessions[session] = Arrival(size_bytes, ends_s)
        if self._timer is None:
            self._wake_at(ends_s)

    def _wake_at(self, at_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(at_s, self._end_late)

    def _end_late(self) -> None:
        """Disconnect the sessions whose puts did not complete in time."""
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        for session, arrival in list(self._sessions.items()):
            if arrival.ends_s > now_s:
                self._wake_at(arrival.ends_s)
                return
            session.hang_up()
