"""One instance of Dwell over a store that others share, as a process of its own.

``python -m bench.instance URL END_MS``: take and ack, and say ``ready`` when that has begun. When
no message came after END_MS, print a line for each: its id, and by how much it was late, in
milliseconds of this machine's clock.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator

import dwell
from bench.process import now_ms

_LIMIT = 1000
_WAIT_S = 0.5
#: How long it may take an instance to end, after the last message fell due.
_END_S = 60


class Instance:
    """The process, seen from the one that started it."""

    def __init__(self, url: str, end_ms: int) -> None:
        self._end_ms = end_ms
        command = [sys.executable, "-m", "bench.instance", url, str(end_ms)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def wait_ready(self) -> None:
        """Wait until it takes."""
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise SystemExit(f"an instance ended with status {self._process.wait()}")

    def late_ms(self) -> dict[str, float]:
        """Wait until it ends; return by how much each message that it took was late, by id."""
        patience_s = max(self._end_ms - now_ms(), 0) / 1000 + _END_S
        output, _ = self._process.communicate(timeout=patience_s)
        if self._process.returncode:
            raise SystemExit(f"an instance ended with status {self._process.returncode}")
        pairs = [line.split() for line in output.splitlines()]
        return {id_: float(late_ms) for id_, late_ms in pairs}

    def kill(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def instances(count: int, url: str, end_ms: int) -> Iterator[list[Instance]]:
    """Run some, of which all take when the block begins."""
    some = [Instance(url, end_ms) for _ in range(count)]
    try:
        for instance in some:
            instance.wait_ready()
        yield some
    finally:
        for instance in some:
            instance.kill()


async def _take_all(url: str, end_ms: int) -> None:
    ids: list[str] = []
    late_ms: list[float] = []
    acks: set[asyncio.Future[object]] = set()
    async with dwell.open(url) as queue:
        print("ready", flush=True)
        while True:
            taken = await queue.take("bench", _LIMIT, wait=_WAIT_S)
            late_ms += (now_ms() - taken.due_ms).tolist()
            ids += taken.ids
            if len(taken):
                ack: asyncio.Future[object] = asyncio.ensure_future(queue.ack(taken))
                acks.add(ack)
                ack.add_done_callback(acks.discard)
            elif now_ms() > end_ms:
                break
        await asyncio.gather(*acks)
    for id_, late in zip(ids, late_ms, strict=True):
        print(id_, f"{late:.3f}")


if __name__ == "__main__":
    asyncio.run(_take_all(sys.argv[1], int(sys.argv[2])))
