"""put -> reserve -> delete of 200-byte bodies over the beanstalk protocol: jobs a second.

One driver, in a process of its own, speaks to Dwell (every answer after fdatasync), to a beanstalkd
in memory, and to one that syncs its log at each write. ``pipelined``: 8 connections, 100 commands
at a time. ``unpipelined``: 64 connections, each of which waits for every reply.
"""

import re
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from bench.result import Result
from bench.servers import beanstalkd_server, dwell_server

BODY = b"x" * 200
#: Connections, and how many commands each sends before it reads.
MODES = {"pipelined": (8, 100), "unpipelined": (64, 1)}
#: Enough for the replies to a pipeline. With more, Python would map new memory for each read.
_READ_BYTES = 1 << 16
#: How long a server may warm up before it is measured.
_WARM_S = 0.3


def run(*, mode: str, seconds: int, rounds: int) -> Result:
    """Measure all three servers in turn."""
    if mode not in MODES:
        raise SystemExit(f"--mode: got {mode}, expected one of {', '.join(MODES)}")
    connections, pipeline = MODES[mode]
    params = {"mode": mode, "connections": connections, "pipeline": pipeline, "seconds": seconds}
    result = Result("beanstalk", params, "jobs/s")
    with (
        dwell_server("beanstalk") as (_, dwell_port),
        beanstalkd_server(fsync=False) as memory_port,
        beanstalkd_server(fsync=True) as synced_port,
    ):
        ports = {"dwell": dwell_port, "beanstalkd": memory_port, "beanstalkd -f 0": synced_port}
        busy: dict[str, list[float]] = {name: [] for name in ports}

        def against(name: str) -> Callable[[], float]:
            def measure() -> float:
                speed, cpu = _drive(ports[name], connections, pipeline, seconds)
                busy[name].append(cpu)
                return speed

            return measure

        result.in_turn(rounds, {name: against(name) for name in ports})
    # Where this is near 1, the driver is what bounds the figure.
    result.more["driver_busy"] = {
        name: round(statistics.median(cpus), 2) for name, cpus in busy.items()
    }
    return result


def _drive(port: int, connections: int, pipeline: int, seconds: int) -> tuple[float, float]:
    """Run the driver; return the jobs a second that it saw through, and its share of a core."""
    numbers = map(str, (port, connections, pipeline, seconds))
    command = [sys.executable, "-m", "bench.beanstalk", *numbers]
    done = subprocess.run(command, capture_output=True, check=True, timeout=600)
    speed, cpu = done.stdout.split()
    return float(speed), float(cpu)


# --- the driver -----------------------------------------------------------------------------------

_PUT, _RESERVE, _DELETE = range(3)
_NUMBERS = re.compile(rb"RESERVED (\d+) ")


class Driver:
    """Drives one server over many connections; each goes through the three commands in turn."""

    def __init__(self, port: int, connections: int, pipeline: int) -> None:
        self._pipeline = pipeline
        self._put = (b"put 0 0 60 %d\r\n%b\r\n" % (len(BODY), BODY)) * pipeline
        self._reserve = b"reserve\r\n" * pipeline
        self._lines = (pipeline, 2 * pipeline, pipeline)
        self._epoll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._phases: dict[int, int] = {}
        self._parts: dict[int, bytes] = {}
        for _ in range(connections):
            self._add(socket.create_connection(("127.0.0.1", port)))
        self.done = 0

    def _add(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = connection.fileno()
        self._sockets[number] = connection
        self._phases[number] = _PUT
        self._parts[number] = b""
        self._epoll.register(number, select.EPOLLIN)
        connection.sendall(self._put)

    def run(self, seconds: float) -> float:
        """Drive for a time; return how many jobs a second were deleted."""
        poll, sockets, phases, parts = self._epoll.poll, self._sockets, self._phases, self._parts
        self.done, start = 0, time.perf_counter()
        while (now := time.perf_counter()) < start + seconds:
            for number, _ in poll():
                connection = sockets[number]
                data = connection.recv(_READ_BYTES)
                if parts[number]:
                    data = parts[number] + data
                phase = phases[number]
                if data.count(b"\n") < self._lines[phase]:
                    assert data, "the server has closed"
                    parts[number] = data
                    continue
                parts[number] = b""
                phases[number] = (phase + 1) % 3
                # What is sent is less than a socket holds, so that this does not wait.
                connection.sendall(self._next(phase, data))
        return self.done / (now - start)

    def _next(self, phase: int, data: bytes) -> bytes:
        """Return the commands that follow the replies to a phase."""
        if phase == _PUT:
            assert data.startswith(b"INSERTED"), data
            return self._reserve
        if phase == _RESERVE:
            numbers = _NUMBERS.findall(data)
            assert len(numbers) == self._pipeline, data
            return b"delete %b\r\n" % b"\r\ndelete ".join(numbers)
        assert data.count(b"DELETED") == self._pipeline, data
        self.done += self._pipeline
        return self._put


def main() -> None:
    """Drive the server that the command line names, and print the figure."""
    port, connections, pipeline, seconds = map(int, sys.argv[1:])
    driver = Driver(port, connections, pipeline)
    driver.run(_WARM_S)
    before = time.process_time()
    speed = driver.run(seconds)
    print(speed, (time.process_time() - before) / seconds)


if __name__ == "__main__":
    main()
