"""beanstalkd by greenstalk: jobs with a delay of whole seconds, one call a job."""

import math
import threading
from collections.abc import Sequence
from typing import ClassVar

import greenstalk

from bench.peers.drivers.program import Client, Log, body_of, main, now_ms, number_of

_TIMEOUT_S = 1


class Beanstalkd(Client):
    """A connection for each thread."""

    can: ClassVar = {"put": 1, "cancel": 1}
    blocks = True

    def __init__(self) -> None:
        self._local = threading.local()
        self._ids: dict[int, int] = {}

    async def open(self, address: str) -> dict[str, str]:
        host, _, port = address.partition(":")
        self._address = host, int(port)
        return {"beanstalkd": str(self._client.stats()["version"])}

    @property
    def _client(self) -> "greenstalk.Client[bytes]":
        client: greenstalk.Client[bytes] | None = getattr(self._local, "client", None)
        if client is None:
            client = self._local.client = greenstalk.Client(self._address, encoding=None)
        return client

    async def put(self, numbers: range, due_ms: Sequence[int] | None, keep: bool) -> None:
        for number, due in zip(numbers, due_ms or [0] * len(numbers), strict=True):
            # A delay that was rounded down would end too early.
            delay_s = max(math.ceil((due - now_ms()) / 1000), 0)
            try:
                id_ = self._client.put(body_of(number), delay=delay_s)
            except OSError:
                del self._local.client
                raise
            if keep:
                self._ids[number] = id_

    async def taker(self, limit: int, taken: Log) -> None:
        with greenstalk.Client(self._address, encoding=None) as client:
            while True:
                try:
                    job = client.reserve(_TIMEOUT_S)
                except greenstalk.TimedOutError:
                    continue
                taken([number_of(job.body)])
                client.delete(job)

    async def cancel(self, numbers: range) -> int:
        for number in numbers:
            self._client.delete(self._ids[number])
        return len(numbers)


if __name__ == "__main__":
    main(Beanstalkd())
