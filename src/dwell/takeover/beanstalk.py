"""A beanstalkd as a source: ready and delayed jobs, with the remaining delay.

Jobs are found by number, from 1 to the number of a job that is put for this and deleted at once; so
jobs put after the start of the takeover stay, for the next takeover. A draining server accepts no
job; there the last number is the highest that it shows. A ready job is reserved, put and deleted. A
delayed job is put and deleted without a reservation: beanstalkd would make it ready, too early, if
the connection of the reserver ended. A job that falls due within seconds is left until it is ready,
and so is a job that a worker released between the look and the reservation. Times are whole seconds
there, so a delayed job may come a second later, and never early.

The id of a message consists of the server's own id and the job's number. The server's id changes
when it restarts, so a takeover that died before may then duplicate the jobs it had not deleted yet.
An address in place of that id could do harm: a server that lost its jobs counts from 1 again, and
remembered ids would keep new jobs out.

The protocol is beanstalkd 1.12's (its doc/protocol.txt); commands are sent in batches, which no
client does.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from dwell.batch.puts import Puts, uniform
from dwell.clock import Clock
from dwell.errors import DwellError, InvalidUrl, ServerUnreachable
from dwell.given import values
from dwell.message import (
    MAX_BATCH_BYTES,
    MAX_BODY_BYTES,
    MAX_DELAY_MS,
    MAX_LEASE_MS,
    TopicSettings,
)
from dwell.takeover.contract import Counts, Load, Stayed, topic_for
from dwell.urls import has_host, shown

_PORT = 11300
_FORM = "beanstalk://HOST:PORT[?tube=NAME&tube=NAME ...]"
_PATIENCE_S = 10.0
#: How many jobs are read by number at once.
_SCAN = 1_000
#: The takeover waits for a delayed job with less left, in seconds: a worker may be about to get it.
_SOON_S = 5
#: The tube of the job that has the last number, and that job's priority, delay and time to run.
_PROBE, _PROBE_JOB = "dwell-takeover", ("0", "3600", "1")
#: The longest delay of a put, because the queue's clock may be behind this one.
_MOST_DELAY_MS = MAX_DELAY_MS - 24 * 3_600_000
#: No list and no job is larger: a server that is not beanstalkd may announce any size.
_MOST_LIST_BYTES, _MOST_JOB_BYTES = 1 << 28, 1 << 30
#: Larger bodies are read in pieces of this size and forgotten, as no message can have them.
_PIECE_BYTES = 1 << 20
_TOO_LARGE = f"body: expected at most {MAX_BODY_BYTES} bytes"


class _Job(NamedTuple):
    """A server's data about a job."""

    number: int
    tube: str
    priority: int
    ttr_s: int
    is_delayed: bool
    due_ms: int
    #: How often workers have released it.
    releases: int


class BeanstalkPlace:
    """Some tubes of a beanstalkd, or all; each becomes the topic of its name, or all ``topic``.

    Jobs reserved by workers stay with them, buried jobs stay in place, and so do jobs too large for
    a message.
    """

    def __init__(self, url: str, clock: Clock, topic: str | None = None) -> None:
        parts = urlsplit(url)
        said = parse_qsl(parts.query, keep_blank_values=True)
        if (
            not has_host(url)
            or not parts.hostname
            or parts.path not in ("", "/")
            or any(n != "tube" for n, _ in said)
        ):
            raise InvalidUrl(f"url: got {shown(url)!r:.80}, expected {_FORM}")
        self._link = _Link(parts.hostname, parts.port or _PORT)
        self._tubes = [*dict.fromkeys(value for _, value in said)]
        self._topic = None if topic is None else values.topic(topic)
        self._clock = clock
        self._server = ""
        self._batch = 1
        self._next, self._last = 1, 0
        self._found: list[int] = []
        self._soon: list[int] = []
        self._is_draining = False
        self._has_begun = False
        self._large = 0

    async def open(self) -> None:
        """Connect, and watch the tubes: an unused tube would lose its counts when empty."""
        with self._link.understood():
            await self._open()

    async def _open(self) -> None:
        await self._link.open()
        answer = (await self._link.ask(["stats"]))[0]
        said = _fields(answer)
        if not (said.keys() >= {"id", "max-job-size"} and said["id"].isalnum()):
            raise self._link.gone(f"it is none, as it said {answer!r:.80}")
        self._server = said["id"]
        self._batch = max(MAX_BATCH_BYTES // 2 // int(said["max-job-size"]), 1)
        if not self._tubes:
            listed = (await self._link.ask(["list-tubes"]))[0].decode().splitlines()
            tubes = (line.removeprefix("- ").strip('"') for line in listed[1:])
            # A takeover that was killed may have left its own job.
            self._tubes = [tube for tube in tubes if tube != _PROBE]
        for tube in self._tubes:
            self._topic_of(tube)
        await self._link.ask([f"watch {tube}" for tube in self._tubes])

    async def _begin(self) -> None:
        """Find the last number; a dry run does not come here, as this puts a job."""
        said = _fields((await self._link.ask(["stats"]))[0])
        await self._clear()
        probe = [f"use {_PROBE}", f"put {' '.join(_PROBE_JOB)} 0\r\n"]
        put = (await self._link.ask(probe))[1]
        self._is_draining = put == b"DRAINING"
        if self._is_draining:
            self._last = max(int(said["total-jobs"]), await self._highest())
            return
        if not put.startswith(b"INSERTED"):
            raise self._link.gone(put.decode())
        self._last = int(put.split()[1]) - 1
        await self._link.ask([f"delete {self._last + 1}"])

    async def _clear(self) -> None:
        """Delete what takeovers that were killed have put for the last number."""
        peeks = [f"use {_PROBE}", "peek-delayed", "peek-ready"]
        while True:
            told = [one.split() for one in await self._link.ask(peeks)]
            numbers = [int(one[1]) for one in told if one[0] == b"FOUND" and one[2] == b"0"]
            stats = await self._link.ask([f"stats-job {number}" for number in numbers])
            own = [
                number
                for number, one in zip(numbers, map(_fields, stats), strict=True)
                if (one.get("pri"), one.get("delay"), one.get("ttr")) == _PROBE_JOB
            ]
            if not own:
                return
            await self._link.ask([f"delete {number}" for number in own])

    async def _highest(self) -> int:
        """Return the highest number among the next jobs of the tubes, 0 without jobs."""
        verbs = [[f"use {tube}", "peek-ready", "peek-delayed"] for tube in self._tubes]
        told = await self._link.ask([verb for some in verbs for verb in some])
        return max((int(one.split()[1]) for one in told if one.startswith(b"FOUND")), default=0)

    def _topic_of(self, tube: str) -> str:
        return topic_for("tube", tube, self._topic)

    async def counts(self) -> Counts:
        """Return the counts of the tubes."""
        names = ("delayed", "ready", "reserved", "buried")
        fields = (*(f"current-jobs-{name}" for name in names), "total-jobs", "cmd-delete")
        with self._link.understood():
            told = await self._link.ask([f"stats-tube {tube}" for tube in self._tubes])
            found = [_fields(one) for one in told if one.startswith(b"---")]
            return Counts(*(sum(int(one[field]) for one in found) for field in fields))

    async def settings(self) -> dict[str, TopicSettings]:
        """Return nothing: a tube has no settings."""
        return {}

    async def lend(self, limit: int) -> Sequence[Load] | None:
        """Reserve ready jobs, and read some others."""
        with self._link.understood():
            if not self._has_begun:
                await self._begin()
                self._has_begun = True
            return await self._lend(limit)

    async def _lend(self, limit: int) -> Sequence[Load] | None:
        count = min(limit, self._batch)
        while True:
            if self._found:
                # Read once more, because the last of them were found a while ago.
                numbers, self._found = self._found[:count], self._found[count:]
                if loads := await self._loads(await self._look(numbers)):
                    return loads
            elif self._next <= self._last:
                scan = range(self._next, min(self._next + _SCAN, self._last + 1))
                self._next = scan.stop
                self._found = [job.number for job in await self._look(scan)]
            elif self._soon:
                soon, self._soon = self._soon, []
                self._found = [job.number for job in await self._look(soon)]
                if not self._found:
                    return ()
            elif self._is_draining and (highest := await self._highest()) > self._last:
                self._last = highest
            else:
                return None

    async def _look(self, numbers: Sequence[int]) -> list[_Job]:
        """Return the jobs, out of some, that can be moved now."""
        told = await self._link.ask([f"stats-job {number}" for number in numbers])
        now_ms, jobs = self._clock.now_ms(), []
        for number, answer in zip(numbers, told, strict=True):
            if not answer.startswith(b"---"):
                continue
            said = _fields(answer)
            tube, state, left_s = said["tube"], said["state"], int(said["time-left"])
            if tube not in self._tubes or state not in ("ready", "delayed"):
                continue
            if state == "delayed" and left_s < _SOON_S:
                self._soon.append(number)
                continue
            is_delayed = state == "delayed"
            # A delay beyond the limit of messages stands for never, so it becomes the longest.
            delay_ms = min((left_s + 1) * 1000, _MOST_DELAY_MS) if is_delayed else 0
            jobs.append(
                _Job(
                    number,
                    tube,
                    int(said["pri"]),
                    int(said["ttr"]),
                    is_delayed,
                    now_ms + delay_ms,
                    int(said["releases"]),
                )
            )
        return jobs

    async def _loads(self, jobs: Sequence[_Job]) -> list[Load]:
        verbs = [
            verb
            for job in jobs
            for verb in (
                f"{'peek' if job.is_delayed else 'reserve-job'} {job.number}",
                f"stats-job {job.number}",
            )
        ]
        told = await self._link.ask(verbs)
        topics: dict[str, list[tuple[_Job, bytes]]] = {}
        large = []
        for job, answer, stats in zip(jobs, told[::2], told[1::2], strict=True):
            if answer == b"UNKNOWN_COMMAND":
                raise self._link.gone("is older than 1.12: it has no reserve-job")
            head, _, body = answer.partition(b"\r\n")
            if not head.startswith((b"FOUND", b"RESERVED")):
                continue
            if await self._is_given_back(job, stats):
                continue
            if int(head.split()[-1]) > MAX_BODY_BYTES:
                large.append(job)
            else:
                topics.setdefault(self._topic_of(job.tube), []).append((job, body))
        await self._release(large)
        self._large += len(large)
        return [self._load(topic, pairs) for topic, pairs in topics.items()]

    async def _is_given_back(self, job: _Job, stats: bytes) -> bool:
        """Tell whether a worker has released a job since it was read, maybe with a delay.

        Such a job is released with that delay, and read again.
        """
        said = _fields(stats) if stats.startswith(b"---") else {}
        if int(said.get("releases", 0)) == job.releases:
            return False
        if not job.is_delayed:
            await self._link.ask([f"release {job.number} {said['pri']} {said['delay']}"])
        self._soon.append(job.number)
        return True

    def _load(self, topic: str, pairs: Sequence[tuple[_Job, bytes]]) -> Load:
        jobs, bodies = [job for job, _ in pairs], [body for _, body in pairs]
        leases_ms = [min(job.ttr_s * 1000, MAX_LEASE_MS) for job in jobs]
        puts = Puts(
            topic=topic,
            bodies=bodies,
            due_ms=np.array([job.due_ms for job in jobs], np.int64),
            priority=np.array([job.priority for job in jobs], np.uint32),
            lease_ms=np.array(leases_ms, np.uint32),
            max_attempts=uniform(0, len(jobs), np.uint16),
            expires_ms=uniform(0, len(jobs), np.int64),
            ids=[f"beanstalk-{self._server}-{job.number}".encode() for job in jobs],
        )
        return Load(puts, jobs, is_exact=False)

    async def let_go(self, load: Load, places: Sequence[int]) -> Stayed:
        """Delete jobs; jobs that others have by now are not found."""
        told = await self._link.ask([f"delete {load.place[at].number}" for at in places])
        return Stayed(len(told) - told.count(b"DELETED"))

    async def leave(self, load: Load, places: Sequence[int]) -> None:
        """Release reserved jobs; each number is read once."""
        await self.take_back(load, places)

    async def take_back(self, load: Load, places: Sequence[int]) -> None:
        """Release reserved jobs."""
        await self._release([load.place[at] for at in places])

    async def _release(self, jobs: Sequence[_Job]) -> None:
        held = [job for job in jobs if not job.is_delayed]
        await self._link.ask([f"release {job.number} {job.priority} 0" for job in held])

    async def held_back(self) -> Mapping[str, int]:
        """Return how many jobs no message can hold."""
        return {_TOO_LARGE: self._large} if self._large else {}

    async def close(self) -> None:
        """Disconnect: jobs still reserved become ready again."""
        await self._link.close()


class _Link:
    """A connection on which many commands are sent before their answers are read."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        #: Why no further answer can be understood: the rest of one may come in its place.
        self._end: ServerUnreachable | None = None

    async def open(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                self._streams = await asyncio.open_connection(self._host, self._port)
        except OSError as error:
            raise self.gone(error) from None

    async def ask(self, commands: Sequence[str]) -> list[bytes]:
        """Return the answers: the first line of each, or the data that follow it.

        The answer for a job keeps its first line. Raises ServerUnreachable.
        """
        assert self._streams is not None
        if self._end is not None:
            raise self._end
        reader, writer = self._streams
        try:
            with self.understood():
                writer.write("".join(f"{command}\r\n" for command in commands).encode())
                return [await _answer(reader) for _ in commands]
        except ServerUnreachable as error:
            self._end = error
            raise

    @contextlib.contextmanager
    def understood(self) -> Iterator[None]:
        """Raise ServerUnreachable without an answer, or for an answer that is not beanstalkd's."""
        try:
            yield
        except DwellError:
            raise
        except (OSError, EOFError) as error:
            raise self.gone(error) from None
        except (LookupError, ValueError, ArithmeticError, asyncio.LimitOverrunError) as error:
            raise self.gone(f"no beanstalkd answers so: {type(error).__name__}: {error}") from None

    def gone(self, error: Exception | str) -> ServerUnreachable:
        """Return the error for a server that cannot do its part."""
        reason = str(error) or type(error).__name__
        return ServerUnreachable(f"beanstalkd at {self._host}:{self._port}: {reason}")

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def _answer(reader: asyncio.StreamReader) -> bytes:
    """Return an answer; of a body that is too large for a message only the line that has its size.

    Raises TimeoutError if nothing comes for a while.
    """
    async with asyncio.timeout(_PATIENCE_S) as patience:
        line = (await reader.readuntil(b"\r\n")).removesuffix(b"\r\n")
        kind, *rest = line.split()
        if kind not in (b"OK", b"FOUND", b"RESERVED"):
            return line
        left = int(rest[-1])
        if not 0 <= left <= (_MOST_LIST_BYTES if kind == b"OK" else _MOST_JOB_BYTES):
            raise ValueError(f"{rest[-1].decode()} bytes")
        while kind != b"OK" and left > MAX_BODY_BYTES:
            left -= len(await reader.readexactly(min(left, _PIECE_BYTES)))
            patience.reschedule(asyncio.get_running_loop().time() + _PATIENCE_S)
        data = (await reader.readexactly(left + 2))[:-2]
        return data if kind == b"OK" else line + b"\r\n" + data


def _fields(document: bytes) -> dict[str, str]:
    """Return the fields of a server's answer, which is YAML of one level."""
    lines = (line.partition(": ") for line in document.decode(errors="replace").splitlines()[1:])
    return {name: value.strip('"') for name, _, value in lines}
