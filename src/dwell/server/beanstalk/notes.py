"""Notes: the log lines of runs of commands, written once they have their replies."""

from dwell.clock.clock import monotonic_ms
from dwell.server.beanstalk.commands import Run, Verb
from dwell.server.service import Service

#: The audited commands: they change what others rely on.
AUDITED = frozenset({Verb.KICK, Verb.KICK_JOB, Verb.PAUSE_TUBE})
_MOST_WORD_BYTES = 30


class Noted:
    """A run that has no reply yet: its start, and the bytes of replies sent until now."""

    __slots__ = ("began_ms", "out_bytes", "run", "topic")

    def __init__(self, run: Run, topic: str) -> None:
        self.run = run
        self.topic = topic
        self.began_ms = monotonic_ms()
        self.out_bytes = 0


class Notes:
    """Writes an access line for each run, and an audit line for each audited one."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def begin(self, run: Run, topic: str) -> Noted | None:
        """Return the fields to log of a run that begins; None if it is not logged."""
        is_on = self._service.access is not None or self._service.audit is not None
        return Noted(run, topic) if is_on else None

    def end(self, noted: Noted, peer: str, reply: bytes) -> None:
        """Note a run that has its reply; an empty one says that the connection has ended."""
        run, service = noted.run, self._service
        word = reply[:_MOST_WORD_BYTES].partition(b"\r\n")[0].decode("ascii", "replace")
        method = run.verb.name.lower().replace("_", "-")
        who = {"port": "beanstalk", "peer": peer, "token": ""}
        if service.access is not None:
            in_bytes = sum(len(item) for item in run.items) if run.verb is Verb.PUT else 0
            line = {"method": method, "path": "", "status": word.partition(" ")[0]}
            sizes = {"in_bytes": in_bytes, "out_bytes": noted.out_bytes + len(reply)}
            took = {"count": run.count, "ms": monotonic_ms() - noted.began_ms}
            service.access.write({**who, **line, **sizes, **took})
        if service.audit is not None and run.verb in AUDITED:
            more = {"topic": noted.topic, "asked": [str(item) for item in run.items]}
            service.audit.write({**who, "endpoint": method, "status": word, **more})
