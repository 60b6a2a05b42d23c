"""A beanstalkd as a place that jobs leave: ready and delayed ones, with the delay that is left.

Jobs are found by their numbers, from 1 to that of a job which is put for this and deleted at once;
so what is put after the takeover began stays, for the next one. A server that drains itself takes
no job; there the numbers end with the highest of those that it shows. A ready job is reserved, put
and deleted. A delayed one is put and deleted without that: beanstalkd would make it ready, too
early, if the connection of who has reserved it ended. One that falls due within seconds is left
until it is ready, and so is one that a worker gave back between the look and the reservation. Times
are whole seconds there, so a job that was delayed may be a second later, and is never early.

The id of a message is made of the server's own id and the job's number. That id changes when the
server starts again, so a takeover that died in between may then double what it had not deleted yet.
An address in its place could do harm: a server that lost its jobs counts from 1 again, and ids that
are remembered would keep new jobs out.

The protocol is that of beanstalkd 1.12 (its doc/protocol.txt); commands are sent in batches, which
no client does.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from dwell.batch.puts import Puts, uniform
from dwell.clock import Clock
from dwell.errors import DwellError, InvalidInput, InvalidUrl, ServerUnreachable
from dwell.given import values
from dwell.message import (
    MAX_BATCH_BYTES,
    MAX_BODY_BYTES,
    MAX_DELAY_MS,
    MAX_LEASE_MS,
    TopicSettings,
)
from dwell.takeover.contract import Counts, Load, Stayed
from dwell.urls import shown

_PORT = 11300
_FORM = "beanstalk://HOST:PORT[?tube=NAME&tube=NAME ...]"
_PATIENCE_S = 10.0
#: How many numbers are asked about at once.
_SCAN = 1_000
#: A delayed job with less left, seconds, is waited for: a worker may be about to get it.
_SOON_S = 5
_PROBE = "dwell-takeover"
#: The longest delay that is asked for, as the queue's clock may be behind this one.
_MOST_DELAY_MS = MAX_DELAY_MS - 24 * 3_600_000
#: No answer is larger: what is no beanstalkd may say any size.
_MOST_BYTES = 1 << 28


class _Job(NamedTuple):
    """What a server says of a job."""

    number: int
    tube: str
    priority: int
    ttr_s: int
    is_delayed: bool
    due_ms: int
    #: How often workers have given it back.
    releases: int


class BeanstalkPlace:
    """Some tubes of a beanstalkd, or all; each becomes the topic of its name, or all ``topic``.

    Jobs that workers have reserved stay with them, buried ones where they are, and so do those that
    are too large for a message.
    """

    def __init__(self, url: str, clock: Clock, topic: str | None = None) -> None:
        parts = urlsplit(url)
        said = parse_qsl(parts.query, keep_blank_values=True)
        if not parts.hostname or parts.path not in ("", "/") or any(n != "tube" for n, _ in said):
            raise InvalidUrl(f"url: got {shown(url)!r:.80}, expected {_FORM}")
        self._link = _Link(parts.hostname, parts.port or _PORT)
        self._tubes = [value for _, value in said]
        self._topic = None if topic is None else values.topic(topic)
        self._clock = clock
        self._server = ""
        self._batch = 1
        self._next, self._last = 1, 0
        self._found: list[int] = []
        self._soon: list[int] = []
        self._is_draining = False

    async def open(self) -> None:
        """Connect, and watch the tubes: one that nobody uses would lose its counts when empty."""
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
            self._tubes = [line.removeprefix("- ").strip('"') for line in listed[1:]]
        for tube in self._tubes:
            self._topic_of(tube)
        await self._link.ask([f"watch {tube}" for tube in self._tubes])
        probe = [f"use {_PROBE}", "put 0 3600 1 0\r\n"]
        put = (await self._link.ask(probe))[1]
        self._is_draining = put == b"DRAINING"
        if self._is_draining:
            self._last = max(int(said["total-jobs"]), await self._highest())
            return
        if not put.startswith(b"INSERTED"):
            raise self._link.gone(put.decode())
        self._last = int(put.split()[1]) - 1
        await self._link.ask([f"delete {self._last + 1}"])

    async def _highest(self) -> int:
        """Return the highest number among the next jobs of the tubes, 0 where there is none."""
        verbs = [[f"use {tube}", "peek-ready", "peek-delayed"] for tube in self._tubes]
        told = await self._link.ask([verb for some in verbs for verb in some])
        return max((int(one.split()[1]) for one in told if one.startswith(b"FOUND")), default=0)

    def _topic_of(self, tube: str) -> str:
        if self._topic is not None:
            return self._topic
        try:
            return values.topic(tube)
        except InvalidInput as error:
            raise InvalidUrl(f"tube {tube!r:.80}: needs --into, as {error}") from None

    async def counts(self) -> Counts:
        """Return what the tubes hold."""
        names = ("delayed", "ready", "reserved", "buried")
        fields = (*(f"current-jobs-{name}" for name in names), "total-jobs", "cmd-delete")
        with self._link.understood():
            told = await self._link.ask([f"stats-tube {tube}" for tube in self._tubes])
            found = [_fields(one) for one in told if one.startswith(b"---")]
            return Counts(*(sum(int(one[field]) for one in found) for field in fields))

    async def settings(self) -> dict[str, TopicSettings]:
        """Return nothing: a tube has none."""
        return {}

    async def lend(self, limit: int) -> Sequence[Load] | None:
        """Reserve jobs that are ready, and read some that are not."""
        with self._link.understood():
            return await self._lend(limit)

    async def _lend(self, limit: int) -> Sequence[Load] | None:
        count = min(limit, self._batch)
        while True:
            if self._found:
                # Looked at once more, as the last of them were found a while ago.
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
        """Return those of some jobs that can be moved now."""
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
            # A longer delay than a message may have says never, so it ends with the longest.
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
            if len(body) > MAX_BODY_BYTES:
                large.append(job)
            else:
                topics.setdefault(self._topic_of(job.tube), []).append((job, body))
        await self._release(large)
        return [self._load(topic, pairs) for topic, pairs in topics.items()]

    async def _is_given_back(self, job: _Job, stats: bytes) -> bool:
        """Tell whether a worker has given a job back since it was looked at, maybe with a delay.

        Such a job goes back with that delay, and is looked at again.
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
        """Delete jobs; those that somebody else has by now are not found."""
        told = await self._link.ask([f"delete {load.place[at].number}" for at in places])
        return Stayed(len(told) - told.count(b"DELETED"))

    async def leave(self, load: Load, places: Sequence[int]) -> None:
        """Release what was reserved; each number is looked at once."""
        await self.take_back(load, places)

    async def take_back(self, load: Load, places: Sequence[int]) -> None:
        """Release what was reserved."""
        await self._release([load.place[at] for at in places])

    async def _release(self, jobs: Sequence[_Job]) -> None:
        held = [job for job in jobs if not job.is_delayed]
        await self._link.ask([f"release {job.number} {job.priority} 0" for job in held])

    async def held_back(self) -> int:
        """Return 0: a tube holds nothing back."""
        return 0

    async def close(self) -> None:
        """Hang up: what is still reserved becomes ready again."""
        await self._link.close()


class _Link:
    """A connection on which many commands are sent before their answers are read."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                self._streams = await asyncio.open_connection(self._host, self._port)
        except OSError as error:
            raise self.gone(error) from None

    async def ask(self, commands: Sequence[str]) -> list[bytes]:
        """Return the answers: what the first line says, or what follows it of one that holds data.

        That of a job keeps its first line. Raises ServerUnreachable.
        """
        assert self._streams is not None
        reader, writer = self._streams
        with self.understood():
            async with asyncio.timeout(_PATIENCE_S) as patience:
                writer.write("".join(f"{command}\r\n" for command in commands).encode())
                answers = []
                for _ in commands:
                    answers.append(await _answer(reader))
                    patience.reschedule(asyncio.get_running_loop().time() + _PATIENCE_S)
                return answers

    @contextlib.contextmanager
    def understood(self) -> Iterator[None]:
        """Raise ServerUnreachable where there is no answer, or one that no beanstalkd gives."""
        try:
            yield
        except DwellError:
            raise
        except (OSError, EOFError) as error:
            raise self.gone(error) from None
        except (LookupError, ValueError, ArithmeticError, asyncio.LimitOverrunError) as error:
            raise self.gone(f"no beanstalkd answers so: {type(error).__name__}: {error}") from None

    def gone(self, error: Exception | str) -> ServerUnreachable:
        """Return what to raise where the server cannot do its part."""
        reason = str(error) or type(error).__name__
        return ServerUnreachable(f"beanstalkd at {self._host}:{self._port}: {reason}")

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def _answer(reader: asyncio.StreamReader) -> bytes:
    line = (await reader.readuntil(b"\r\n")).removesuffix(b"\r\n")
    kind, *rest = line.split()
    if kind not in (b"OK", b"FOUND", b"RESERVED"):
        return line
    if not 0 <= int(rest[-1]) <= _MOST_BYTES:
        raise ValueError(f"{rest[-1].decode()} bytes")
    data = (await reader.readexactly(int(rest[-1]) + 2))[:-2]
    return data if kind == b"OK" else line + b"\r\n" + data


def _fields(document: bytes) -> dict[str, str]:
    """Return what a server's answer says, which is YAML of one level."""
    lines = (line.partition(": ") for line in document.decode(errors="replace").splitlines()[1:])
    return {name: value.strip('"') for name, _, value in lines}
