"""An actor that speaks the beanstalk protocol."""

import asyncio

from bench.soak.actors import LEASE_MS, Actor
from bench.soak.tally import TOPICS, Tally

_TTR_S = LEASE_MS // 1000

#: What may be answered to each command.
_GOOD = {
    "put": ("INSERTED",),
    "use": ("USING",),
    "watch": ("WATCHING",),
    "reserve-with-timeout": ("RESERVED", "TIMED_OUT", "DEADLINE_SOON"),
    "delete": ("DELETED", "NOT_FOUND"),
    "release": ("RELEASED", "BURIED", "NOT_FOUND"),
    "bury": ("BURIED", "NOT_FOUND"),
    "touch": ("TOUCHED", "NOT_FOUND"),
    "kick": ("KICKED",),
    "peek-ready": ("FOUND", "NOT_FOUND"),
    "stats-tube": ("OK", "NOT_FOUND"),
}


class JobActor(Actor):
    """A client of the beanstalk port."""

    def __init__(self, name: str, tally: Tally, seed: int, host: str, port: int) -> None:
        super().__init__(name, tally, seed)
        self._place = (host, port)
        self._last = 0

    async def open(self) -> None:
        """Connect, and watch all tubes."""
        self._reader, self._writer = await asyncio.open_connection(*self._place)
        for topic in TOPICS:
            await self._ask(f"watch {topic}")

    async def close(self) -> None:
        """Disconnect."""
        self._writer.close()
        await self._writer.wait_closed()

    async def _ask(self, command: str, body: bytes | None = None) -> list[str]:
        data = f"{command}\r\n".encode()
        self._writer.write(data if body is None else data + body + b"\r\n")
        words = (await self._reader.readuntil(b"\r\n")).decode().split()
        if words[0] not in _GOOD[command.split()[0]]:
            raise RuntimeError(f"{command}: {words}")
        if words[0] in ("RESERVED", "FOUND", "OK"):
            await self._reader.readexactly(int(words[-1]) + 2)
        return words

    async def step(self) -> None:
        """Put, reserve, or look after what is there."""
        what = self.chance.choices(("put", "reserve", "delete", "look"), (40, 50, 5, 5))[0]
        if what != "put" or not self.tally.is_full:
            await getattr(self, f"_{what}")()

    async def _put(self) -> None:
        await self._ask(f"use {self.topic()}")
        for _ in range(self.chance.randrange(1, 5)):
            body = b"x" * self.chance.randrange(500)
            delay = self.chance.randrange(3)
            words = await self._ask(f"put 10 {delay} {_TTR_S} {len(body)}", body)
            self.tally.created += 1
            self._last = int(words[1])

    async def _reserve(self) -> None:
        for _ in range(self.chance.randrange(1, 8)):
            words = await self._ask("reserve-with-timeout 0")
            if words[0] != "RESERVED":
                return
            fate = self.fate()
            if fate == "ack":
                await self._end(int(words[1]))
            elif fate == "release":
                await self._ask(f"touch {words[1]}")
                await self._ask(f"release {words[1]} 10 0")
            elif fate == "bury":
                await self._ask(f"bury {words[1]} 10")

    async def _delete(self) -> None:
        if self._last:
            await self._end(self._last)

    async def _end(self, job: int) -> None:
        words = await self._ask(f"delete {job}")
        self.tally.deleted += words[0] == "DELETED"

    async def _look(self) -> None:
        await self._ask(f"use {self.topic()}")
        await self._ask("kick 10")
        await self._ask("peek-ready")
        await self._ask(f"stats-tube {self.topic()}")
