"""huey on Redis: its consumer, with a thread for each taker."""

import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any, ClassVar

import huey

from bench.peers.drivers.program import Framework, address, body_of, handle, main, moments


def _task(url: str) -> Any:
    """Return the task, in a queue of its own."""
    return huey.RedisHuey("bench", results=False, url=url).task(name="bench")(handle)


#: The queue as a worker has it.
HUEY = _task(address()).huey


class Huey(Framework):
    """One client of Redis, which threads share."""

    can: ClassVar = {"put": 1, "cancel": 1}
    blocks = True

    async def begin(self, address: str) -> dict[str, str]:
        self._task = _task(address)
        return {"huey": version("huey")}

    async def put(self, numbers: range, due_ms: Sequence[int] | None, keep: bool) -> None:
        for group, due in moments(numbers, due_ms):
            for number in group:
                body = body_of(number).decode()
                self._task.huey.enqueue(self._task.s(body, eta=due, id=str(number)))

    def workers(self, takers: int) -> Iterator[Sequence[str]]:
        options = (f"--workers={takers}", "--quiet")
        yield sys.executable, "-m", "huey.bin.huey_consumer", f"{__spec__.name}.HUEY", *options

    async def cancel(self, numbers: range) -> int:
        for number in numbers:
            self._task.huey.revoke_by_id(str(number))
        return len(numbers)


if __name__ == "__main__":
    main(Huey())
