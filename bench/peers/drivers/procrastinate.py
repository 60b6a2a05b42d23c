"""procrastinate on PostgreSQL: its worker, a process for each taker."""

import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import ClassVar

import procrastinate

from bench.peers.drivers.program import Framework, address, body_of, handle, main, moments


def _app(url: str) -> procrastinate.App:
    connector = procrastinate.PsycopgConnector(conninfo=url, min_size=1, max_size=64)
    app = procrastinate.App(connector=connector)
    app.task(handle, name="bench")
    return app


APP = _app(address())


class Procrastinate(Framework):
    """One pool of connections for all callers."""

    can: ClassVar = {"put": 1000, "cancel": 1}

    def __init__(self) -> None:
        self._ids: dict[int, int] = {}

    async def begin(self, address: str) -> dict[str, str]:
        self._app = _app(address)
        await self._app.open_async()
        if not await self._app.check_connection_async():
            await self._app.schema_manager.apply_schema_async()
        return {"procrastinate": version("procrastinate")}

    async def put(self, numbers: range, due_ms: Sequence[int] | None, keep: bool) -> None:
        for group, due in moments(numbers, due_ms):
            task = self._app.configure_task("bench", schedule_at=due)
            bodies = [{"body": body_of(number).decode()} for number in group]
            if len(group) == 1:
                ids = [await task.defer_async(**bodies[0])]
            else:
                ids = await task.batch_defer_async(*bodies)
            if keep:
                self._ids.update(zip(group, ids, strict=True))

    def workers(self, takers: int) -> Iterator[Sequence[str]]:
        app = (sys.executable, "-m", "procrastinate", f"--app={__spec__.name}.APP", "worker")
        poll = "--fetch-job-polling-interval=0.1"
        for _ in range(takers):
            yield *app, "--concurrency=10", poll, "--delete-jobs=successful"

    async def cancel(self, numbers: range) -> int:
        cancel = self._app.job_manager.cancel_job_by_id_async
        return sum([await cancel(self._ids[number], delete_job=True) for number in numbers])


if __name__ == "__main__":
    main(Procrastinate())
