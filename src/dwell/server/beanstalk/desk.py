"""The desk: passes each run of commands to the code of its verb."""

from collections.abc import Callable

from dwell.errors import ServerBusy
from dwell.server.beanstalk.arrivals import Arrivals
from dwell.server.beanstalk.choices import choices
from dwell.server.beanstalk.commands import Run, Verb
from dwell.server.beanstalk.decoder import Decoder
from dwell.server.beanstalk.deletes import Deletes
from dwell.server.beanstalk.hall import Hall
from dwell.server.beanstalk.lookups import Lookups
from dwell.server.beanstalk.notes import Notes
from dwell.server.beanstalk.puts import Putting
from dwell.server.beanstalk.receipts import Receipts
from dwell.server.beanstalk.refusals import word_of
from dwell.server.beanstalk.reserves import Reserves
from dwell.server.beanstalk.session import Session, Wire
from dwell.server.service import Service


class Desk:
    """Does the commands of all sessions of one port."""

    def __init__(self, service: Service) -> None:
        self.hall = Hall(service)
        self._turns = service.turns
        self._notes = Notes(service)
        self._arrivals = Arrivals(self.hall.in_flight)
        receipts = Receipts(self.hall)
        self._receipts = receipts
        self._reserves = Reserves(self.hall, receipts)
        lookups = Lookups(self.hall, receipts, self._reserves)
        self._starts: dict[Verb, Callable[[Session, Run], bytes | None]] = {
            **choices(self.hall),
            **dict.fromkeys(lookups.verbs, lookups.start),
            Verb.PUT: Putting(self.hall).start,
            Verb.RESERVE: self._reserves.start,
            Verb.RESERVE_WITH_TIMEOUT: self._reserves.start,
            Verb.DELETE: Deletes(self.hall).start,
            Verb.RELEASE: receipts.start,
            Verb.BURY: receipts.start,
            Verb.TOUCH: receipts.start,
        }
        assert set(self._starts) == set(Verb), "every verb is done by something"

    def welcome(self, wire: Wire) -> Session:
        """Return the session of a new connection."""
        session = Session(self, wire, Decoder(self.hall.heads), self._turns)
        self.hall.sessions.add(session)
        self.hall.connections += 1
        return session

    def start(self, session: Session, run: Run) -> bytes | None:
        """Do a run and return its replies, or None when the session will be told."""
        self.hall.commands[run.verb] += run.count
        session.noted = self._notes.begin(run, session.topic)
        if run.verb is not Verb.QUIT:
            try:
                self.hall.service.quotas.count_request("", run.count)
            except ServerBusy as error:
                return word_of(error) * run.count
        return self._starts[run.verb](session, run)

    def note(self, session: Session, reply: bytes) -> None:
        """Log a run that has its reply."""
        noted, session.noted = session.noted, None
        if noted is not None:
            self._notes.end(noted, session.peer, reply)

    def count(self, session: Session, size_bytes: int) -> bytes | None:
        """Count the bytes of an incomplete put; return the refusal if there is no room."""
        return self._arrivals.count(session, size_bytes)

    def count_out(self, session: Session) -> None:
        """Stop counting a put that came only in part, as its rest will not come."""
        self._arrivals.end(session)

    def go_on(self, session: Session) -> None:
        """Continue reserves that had stopped because the replies were not read."""
        self._reserves.go_on(session)

    def end_wait(self, session: Session) -> None:
        """Answer a session that waits."""
        self._reserves.end_wait(session)

    def forget(self, session: Session) -> None:
        """Remove a session whose connection is gone: releases the jobs that it holds."""
        self.hall.forget(session)
        self.note(session, b"")
        self._arrivals.end(session)
        self._reserves.forget(session)

    def count_held(self, size_bytes: int) -> None:
        """Count the memory of the jobs that a session holds; negative to count out."""
        self.hall.in_flight.hold(size_bytes)

    async def settled(self) -> None:
        """Return when no work is running."""
        await self.hall.settled()
