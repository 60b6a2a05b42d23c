"""A session: the tubes and jobs of one connection, and the command that is under way.

Commands run in the order they came, one run at a time. The desk calls the queue for a run; the
session has only its own state.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from dwell.batch.batch import Batch
from dwell.server.beanstalk.commands import Run
from dwell.server.beanstalk.decoder import Decoder
from dwell.server.beanstalk.leaseends import Held, LeaseEnds
from dwell.server.beanstalk.notes import Noted
from dwell.server.beanstalk.tubes import DEFAULT_TUBE
from dwell.server.turns import TURN_BYTES, Turns
from dwell.server.unparsed import NOTED_BYTES

#: How many held jobs are counted at a time, and the memory of each while it is held and while it is
#: released.
_COUNTED_JOBS, _JOB_BYTES = 64, 1024
#: How many bytes of replies are gathered before they are written.
_MOST_REPLY_BYTES = 64 * 1024
#: How many runs are done before other connections are served.
_MOST_AT_ONCE = 16
#: A run of more commands is all that is done before other connections are served.
_MANY_COMMANDS = 100
#: From this number of held jobs on, expired leases are searched for.
_FIRST_PURGE = 1000


class Demand:
    """Reserves of one connection that have no answer yet.

    ``ends_ms`` is when, in monotonic time, the first of them has waited long enough, once it waits.
    ``is_held_up``: nothing is done for them until the replies that were sent are read.
    """

    __slots__ = ("ends_ms", "is_held_up", "left", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.left = run.count
        self.ends_ms: int | None = None
        self.is_held_up = False

    @property
    def timeout_s(self) -> int | None:
        """How long the first one may wait; None for as long as it takes."""
        seconds: int | None = self.run.items[-self.left]
        return seconds

    @property
    def impatient(self) -> int:
        """How many reserves at the start do not wait at all."""
        count = 0
        while count < self.left and self.run.items[count - self.left] == 0:
            count += 1
        return count

    def answered(self, count: int) -> None:
        """Note that the first ``count`` reserves have their answers."""
        self.left -= count
        self.ends_ms = None


class Arrival:
    """A put that is coming: how much of it is counted, and when it has to be whole."""

    __slots__ = ("ends_s", "size_bytes")

    def __init__(self, size_bytes: int, ends_s: float) -> None:
        self.size_bytes = size_bytes
        self.ends_s = ends_s


class Wire(Protocol):
    """The functions of a connection that a session needs."""

    @property
    def peer(self) -> str:
        """The address of the other end; empty over a socket in the file system."""

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them to be sent."""

    def close(self) -> None:
        """Send the pending bytes, and end the connection."""

    def hold(self, size_bytes: int) -> bool:
        """Note how much is kept that is not done; tell whether that is counted."""

    def pause_reading(self) -> None:
        """Stop reading; the operating system buffers further bytes."""

    def resume_reading(self) -> None:
        """Read again."""


class Desk(Protocol):
    """Runs the commands of all sessions."""

    def start(self, session: "Session", run: Run) -> bytes | None:
        """Do a run and return its replies, or None when the session will be told by ``answer``."""

    def note(self, session: "Session", reply: bytes) -> None:
        """Log a run that has its reply."""

    def count(self, session: "Session", size_bytes: int) -> bytes | None:
        """Count the bytes of an incomplete put; return the refusal if there is no room."""

    def count_out(self, session: "Session") -> None:
        """Stop counting a put that came only in part, as its rest will not come."""

    def go_on(self, session: "Session") -> None:
        """Continue a demand that had stopped because the replies were not read."""

    def end_wait(self, session: "Session") -> None:
        """Answer a session that waits."""

    def count_held(self, size_bytes: int) -> None:
        """Count the memory of the jobs that a session holds; negative to count out."""

    def forget(self, session: "Session") -> None:
        """Remove a session whose connection is gone: releases the jobs that it holds."""


class Session:
    """One connection.

    ``is_blocked``: the other end does not read. ``is_ending``: no further commands will come.
    ``is_over``: the connection is gone. ``wait``: the jobs that it waits for. ``arrival``: the put
    that has come in part. ``noted``: the fields of the run for the logs.
    """

    __slots__ = (
        "_counted",
        "_decoder",
        "_desk",
        "_ends",
        "_is_busy",
        "_is_noted",
        "_is_reading",
        "_is_resting",
        "_out",
        "_out_bytes",
        "_purge_at",
        "_turns",
        "_wire",
        "arrival",
        "demand",
        "held",
        "is_blocked",
        "is_ending",
        "is_over",
        "is_producer",
        "is_worker",
        "noted",
        "topic",
        "tube",
        "wait",
        "watched",
    )

    def __init__(self, desk: Desk, wire: Wire, decoder: Decoder, turns: Turns) -> None:
        self._desk = desk
        self._turns = turns
        self._wire = wire
        self._decoder = decoder
        self._is_busy = False
        self._is_noted = False
        self._is_reading = True
        self._is_resting = False
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._purge_at = _FIRST_PURGE
        self.tube = self.topic = DEFAULT_TUBE
        self.watched = {DEFAULT_TUBE: DEFAULT_TUBE}
        self.held: dict[int, Held] = {}
        # How many of them are counted, in portions.
        self._counted = 0
        self._ends = LeaseEnds()
        self.is_blocked = False
        self.is_ending = False
        self.is_over = False
        self.is_producer = False
        self.is_worker = False
        self.arrival: Arrival | None = None
        self.demand: Demand | None = None
        self.wait: asyncio.Future[Batch] | None = None
        self.noted: Noted | None = None

    @property
    def has_spoken(self) -> bool:
        """Whether a command of the protocol has come."""
        return self._decoder.is_known

    # --- calls of the connection ----------------------------------------------------------------

    def feed(self, data: bytes, *, is_turn: bool = True) -> None:
        """Take bytes that came; commands are done if it is the connection's turn."""
        self._decoder.feed(data)
        if is_turn:
            self._proceed()
        if self._decoder.is_full:
            self._stop_reading()

    def rest(self, size_bytes: int = 0) -> None:
        """Read nothing and do no commands until the other connections have had a turn."""
        self._stop_reading()
        self._rest(size_bytes)

    def take_turn(self) -> None:
        """Do commands, and read on."""
        self._is_resting = False
        self._proceed()

    def block(self) -> None:
        """Pause the commands: the other end does not read the replies."""
        self.is_blocked = True

    def unblock(self) -> None:
        """Do commands again."""
        self.is_blocked = False
        if self.demand is not None:
            self._desk.go_on(self)
        self._proceed()

    def finish(self) -> None:
        """Finish the commands and end the connection: the client sends nothing further."""
        self.is_ending = True
        if self.wait is not None:
            self._desk.end_wait(self)
        self._proceed()

    def stop(self) -> None:
        """Finish the received commands, and end the connection."""
        self._stop_reading()
        self.finish()

    def end(self) -> None:
        """Forget everything: the connection is gone."""
        self.is_over = True
        self._decoder.clear()
        self._is_resting = False
        self._note_kept()
        self._out.clear()
        self._desk.forget(self)
        self.held.clear()
        self.count_held()

    # --- calls of the desk ----------------------------------------------------------------------

    def answer(self, reply: bytes) -> None:
        """Send the replies to the current run, and continue with the next run."""
        self._is_busy = False
        if self.noted is not None:
            self._desk.note(self, reply)
        self._say(reply)
        self._proceed()

    def send(self, reply: bytes) -> None:
        """Send a part of the replies to the current run."""
        if self.noted is not None:
            self.noted.out_bytes += len(reply)
        self._say(reply)
        self._flush()

    def leave(self) -> None:
        """Send the gathered replies and end the connection; later commands are not run."""
        self._flush()
        self._wire.close()

    def hang_up(self) -> None:
        """End the connection: the put that it began does not come."""
        self._decoder.clear()
        self._desk.count_out(self)
        self.leave()

    @property
    def peer(self) -> str:
        """The address of the other end."""
        return self._wire.peer

    def hold(self, numbers: Sequence[int], jobs: Iterable[Held], now_ms: int) -> None:
        """Note jobs that were taken for this connection."""
        held = self.held
        held.update(zip(numbers, jobs, strict=True))
        if len(held) > self._purge_at:
            self.held = held = {number: job for number, job in held.items() if job[3] > now_ms}
            self._purge_at = 2 * len(held) + _FIRST_PURGE
        self._ends.note(numbers, held)
        self.count_held()

    def hold_on(self, number: int, job: Held) -> None:
        """Note a job that is held for longer, or still."""
        self.held[number] = job
        self._ends.note((number,), self.held)

    def count_held(self) -> None:
        """Count the memory of the held jobs, if it has changed by much."""
        portions = 0 if self.is_over else len(self.held) // _COUNTED_JOBS
        if portions != self._counted:
            self._desk.count_held((portions - self._counted) * _COUNTED_JOBS * _JOB_BYTES)
            self._counted = portions

    def soonest_ms(self, now_ms: int) -> int | None:
        """Return when the next lease of the held jobs ends."""
        return self._ends.first_ms(self.held, now_ms)

    # --- inside ---------------------------------------------------------------------------------

    def _proceed(self) -> None:
        """Run commands until one has to wait, or other connections are served; send the replies."""
        left = _MOST_AT_ONCE
        while not (self._is_busy or self._is_resting or self.is_blocked or self.is_over):
            if not left:
                self._rest()
                break
            left -= 1
            run = self._decoder.next()
            if run is None:
                if self.is_ending:
                    self.leave()
                    return
                break
            if self.arrival is not None:
                self._desk.count_out(self)
            self._is_busy = True
            reply = self._desk.start(self, run)
            if reply is not None:
                self._is_busy = False
                if self.noted is not None:
                    self._desk.note(self, reply)
                self._say(reply)
                if len(run.items) > _MANY_COMMANDS:
                    # Commands that are refused cost as much as a turn of the event loop may.
                    self._rest(TURN_BYTES)
        if self._decoder.is_in_body:
            self._count()
        self._note_kept()
        if self._out_bytes:
            self._flush()
        if not (self._is_reading or self._is_resting or self.is_ending or self._decoder.is_full):
            self._is_reading = True
            self._wire.resume_reading()

    def _rest(self, size_bytes: int = 0) -> None:
        if not self._is_resting:
            self._is_resting = True
            self._turns.wait(self, size_bytes)

    def _count(self) -> None:
        """Count the bytes of a put; a put that there is no room for is dropped."""
        refusal = self._desk.count(self, self._decoder.size_bytes)
        if refusal is not None:
            self._decoder.give_up(refusal)

    def _note_kept(self) -> None:
        """Count received bytes that are not processed, unless they belong to a put."""
        size_bytes = 0 if self.arrival is not None else self._decoder.size_bytes
        if (size_bytes > NOTED_BYTES or self._is_noted) and not self._is_resting:
            self._is_noted = self._wire.hold(size_bytes)

    def _say(self, reply: bytes) -> None:
        if self.is_over:
            return
        self._out.append(reply)
        self._out_bytes += len(reply)
        if self._out_bytes > _MOST_REPLY_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._out_bytes and not self.is_over:
            out, self._out = self._out, []
            self._out_bytes = 0
            self._wire.write(out[0] if len(out) == 1 else b"".join(out))

    def _stop_reading(self) -> None:
        """Pause reading while enough commands wait."""
        if self._is_reading:
            self._is_reading = False
            self._wire.pause_reading()
