"""awa on PostgreSQL: its workers in this process, a client for each taker."""

import dataclasses
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, ClassVar

import awa

from bench.peers.drivers.program import Client, Log, body_of, main, moments, number_of

_CONNECTIONS = 64
#: How many jobs one client has under way, and how often it looks for more.
_AT_ONCE, _POLL_MS = 100, 10


@dataclasses.dataclass
class Bench:
    """One message."""

    body: str


class Awa(Client):
    """One client that puts."""

    can: ClassVar = {"put": 1000, "cancel": 1}

    def __init__(self) -> None:
        self._ids: dict[int, int] = {}
        self._workers: list[awa.AsyncClient] = []

    async def open(self, address: str) -> dict[str, str]:
        self._address = address
        self._client = awa.AsyncClient(address, max_connections=_CONNECTIONS)
        await self._client.migrate()
        return {"awa-pg": version("awa-pg")}

    async def put(self, numbers: range, due_ms: Sequence[int] | None, keep: bool) -> None:
        for group, due in moments(numbers, due_ms):
            jobs = [Bench(body_of(number).decode()) for number in group]
            if len(jobs) == 1:
                made = [await self._client.insert(jobs[0], run_at=due)]
            else:
                made = await self._client.insert_many_copy(jobs, run_at=due)
            if keep:
                self._ids.update(zip(group, (job.id for job in made), strict=True))

    async def take(self, takers: int, limit: int, file: str) -> None:
        taken = Log(file)

        async def handle(job: Any) -> None:
            taken([number_of(job.args.body)])

        for _ in range(takers):
            client = awa.AsyncClient(self._address, max_connections=_CONNECTIONS // 4)
            client.task(Bench)(handle)
            await client.start(
                [("default", _AT_ONCE)], poll_interval_ms=_POLL_MS, promote_interval_ms=_POLL_MS
            )
            self._workers.append(client)

    async def cancel(self, numbers: range) -> int:
        for number in numbers:
            await self._client.cancel(self._ids[number])
        return len(numbers)


if __name__ == "__main__":
    main(Awa())
