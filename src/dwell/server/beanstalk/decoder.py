"""The decoder: bytes in, commands out, wherever the bytes were cut.

It has no sockets. Consecutive commands with the same verb are one run, so that a pipeline costs
about a microsecond a command. Its memory is bounded by the single incomplete command, if nobody
feeds it while :attr:`Decoder.is_full`.

A client that does not begin with a command of the protocol is disconnected: a web page can make a
browser send any bytes after a line of HTTP.
"""

import re

from dwell.server.beanstalk.commands import (
    IN_RUNS,
    MAX_LINE_BYTES,
    Command,
    Head,
    Run,
    Verb,
    parse_line,
    parse_put,
)
from dwell.server.beanstalk.replies import (
    BAD_FORMAT,
    EXPECTED_CRLF,
    JOB_TOO_BIG,
    UNKNOWN_COMMAND,
)

#: How many bytes beyond the next command may be kept before reading should pause.
READ_AHEAD_BYTES = 64 * 1024
#: How many commands are one run at most, so that no connection holds up the others.
MOST_IN_A_RUN = 1000

_END = b"\r\n"
_RESERVES = re.compile(rb"(?:reserve\r\n){1,%d}" % MOST_IN_A_RUN)
_DELETES = re.compile(rb"(?:delete \d{1,18}\r\n){1,%d}" % MOST_IN_A_RUN)
_RESERVE_BYTES = len(b"reserve\r\n")
_MOST_HEADS = 1024
#: How a line begins that is one of HTTP: no command of this protocol has a capital letter.
_STRANGE = re.compile(rb"[A-Z]+ ")


class Heads(dict[bytes, Head | None]):
    """The parsed lines of puts, None for a line that is refused.

    Clients repeat the same few lines, so valid lines are kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes

    def __missing__(self, line: bytes) -> Head | None:
        head = parse_put(line, self.most_bytes)
        if head is None or head.size_bytes > self.most_bytes:
            return None
        if len(self) >= _MOST_HEADS:
            self.clear()
        self[line] = head
        return head


class Decoder:
    """The commands of one connection."""

    __slots__ = (
        "_at",
        "_data",
        "_farewell",
        "_heads",
        "_is_overlong",
        "_is_strange",
        "_later",
        "_need",
        "_refusal",
        "_skip",
        "is_known",
    )

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        #: Whether a command of the protocol has come, and whether something of another one has.
        self.is_known = self._is_strange = False
        self._farewell: Run | None = None
        self.clear()

    def clear(self) -> None:
        """Drop the received bytes."""
        self._data = b""
        self._at = 0
        self._later = bytearray()
        self._need = 0
        self._skip = 0
        self._refusal = JOB_TOO_BIG
        self._is_overlong = False

    @property
    def size_bytes(self) -> int:
        """How many bytes are kept."""
        return len(self._data) - self._at + len(self._later)

    @property
    def is_full(self) -> bool:
        """Whether there is enough for the next command, and more."""
        return len(self._later) > self._need + READ_AHEAD_BYTES

    @property
    def is_in_body(self) -> bool:
        """Whether the kept bytes are the beginning of a put whose rest has not come."""
        return self._need > 0 and self.size_bytes < self._need

    def give_up(self, reply: bytes) -> None:
        """Drop the incomplete put; when the rest has come, the answer is ``reply``."""
        self._skip = self._need - self.size_bytes
        self._refusal = reply
        self._data, self._later = b"", bytearray()
        self._at = self._need = 0

    def feed(self, data: bytes) -> None:
        """Take bytes that came."""
        if self._is_strange:
            return
        if self._at == len(self._data) and not self._later:
            self._data, self._at = data, 0
        else:
            self._later += data

    def next(self) -> Run | None:
        """Return the next commands, all of one verb, or None until more bytes come."""
        if self._is_strange:
            run, self._farewell = self._farewell, None
            return run
        if self._at == len(self._data) and not self._later:
            return None
        run = self._next()
        if run is None and self._later and self.size_bytes >= self._need:
            self._data = b"".join((memoryview(self._data)[self._at :], self._later))
            self._at = self._need = 0
            self._later = bytearray()
            run = self._next()
        if run is not None and not self.is_known and not self._is_strange:
            self.is_known = run.verb is not Verb.REFUSED or run.items[0] != UNKNOWN_COMMAND
            if not self.is_known:
                self._give_up_on_it()
        if self._at == len(self._data):
            # An idle connection should cost nothing, so parsed bytes are freed.
            self._data, self._at = b"", 0
        elif run is None and self._at:
            self._data, self._at = self._data[self._at :], 0
        return run

    def _next(self) -> Run | None:
        data, at = self._data, self._at
        if self._skip:
            return self._skipped()
        if self._is_overlong:
            return self._overlong()
        if data.startswith(b"put ", at):
            return self._puts()
        found = _RESERVES.match(data, at)
        if found is not None:
            self._at = found.end()
            return Run(Verb.RESERVE, [None] * ((self._at - at) // _RESERVE_BYTES))
        found = _DELETES.match(data, at)
        if found is not None:
            self._at = found.end()
            return Run(Verb.DELETE, list(map(int, data[at : self._at].split()[1::2])))
        return self._lines()

    # --- lines ----------------------------------------------------------------------------------

    def _line_end(self) -> int:
        """Return where the next line ends; -1 when that has not come, or is too far away."""
        end = self._data.find(_END, self._at, self._at + MAX_LINE_BYTES)
        if end < 0 and len(self._data) - self._at >= MAX_LINE_BYTES:
            self._is_overlong = True
        return end

    def _lines(self) -> Run | None:
        """Read commands that have no body, as long as their verb is the same."""
        verb, item = self._command()
        if verb is None:
            return self._too_long() if self._is_overlong else None
        items = [item]
        while verb in IN_RUNS and len(items) < MOST_IN_A_RUN:
            before = self._at
            following, item = self._command()
            if following is not verb:
                self._at = before
                self._is_overlong = False
                break
            items.append(item)
        return Run(verb, items)

    def _command(self) -> Command | tuple[None, None]:
        """Read one command that has no body, if all of it is there."""
        end = self._line_end()
        if end < 0 or self._data.startswith(b"put ", self._at):
            return None, None
        command = parse_line(self._data[self._at : end])
        self._at = end + 2
        return command

    def _overlong(self) -> Run | None:
        """Pass over the rest of a line that is too long, and refuse it."""
        end = self._data.find(_END, self._at)
        if end < 0:
            # The end of the line may have been cut in two.
            keep = 1 if self._data.endswith(b"\r") else 0
            self._at = max(len(self._data) - keep, self._at)
            return None
        self._at = end + 2
        self._is_overlong = False
        return Run(Verb.REFUSED, [BAD_FORMAT])

    def _too_long(self) -> Run | None:
        """Refuse a line that is too long, and hang up if it is not of this protocol."""
        if self.is_known and not _STRANGE.match(self._data, self._at):
            return self._overlong()
        self._give_up_on_it()
        return Run(Verb.REFUSED, [BAD_FORMAT])

    def _give_up_on_it(self) -> None:
        """Stop reading, and disconnect: this is another protocol."""
        self.clear()
        self._is_strange = True
        self._farewell = Run(Verb.QUIT, [None])

    # --- puts -----------------------------------------------------------------------------------

    def _puts(self) -> Run | None:
        """Read the complete puts, up to a put that is refused or incomplete."""
        data, at, heads = self._data, self._at, self._heads
        bodies: list[bytes] = []
        lines: list[Head] = []
        while data.startswith(b"put ", at) and len(bodies) < MOST_IN_A_RUN:
            end = data.find(_END, at, at + MAX_LINE_BYTES)
            if end < 0:
                break
            head = heads[data[at:end]]
            if head is None:
                break
            stop = end + 2 + head.size_bytes
            if data[stop : stop + 2] != _END:
                break
            bodies.append(data[end + 2 : stop])
            lines.append(head)
            at = stop + 2
        self._at = at
        return Run(Verb.PUT, bodies, lines) if bodies else self._odd_put()

    def _odd_put(self) -> Run | None:
        """Refuse a put, or wait for the rest of it."""
        end = self._line_end()
        if end < 0:
            return self._too_long() if self._is_overlong else None
        head = parse_put(self._data[self._at : end], self._heads.most_bytes)
        if head is None:
            self._at = end + 2
            return Run(Verb.REFUSED, [BAD_FORMAT])
        if head.size_bytes > self._heads.most_bytes:
            self._at = end + 2
            self._skip = head.size_bytes + 2
            self._refusal = JOB_TOO_BIG
            return self._skipped()
        stop = end + 2 + head.size_bytes + 2
        if len(self._data) < stop:
            self._need = stop - self._at
            # Frees the bytes before the put while it waits for its rest.
            self._data, self._at = self._data[self._at :], 0
            return None
        self._at = stop
        return Run(Verb.REFUSED, [EXPECTED_CRLF])

    def _skipped(self) -> Run | None:
        """Pass over the body of a job that there is no room for, and refuse it."""
        there = min(len(self._data) - self._at, self._skip)
        self._at += there
        self._skip -= there
        return None if self._skip else Run(Verb.REFUSED, [self._refusal])
