"""The actors: who takes part in the mixed load. Each has a connection, and does step after step."""

import asyncio
import json
import random
from abc import ABC, abstractmethod
from typing import Any

import dwell
from bench.soak.tally import TOPICS, Tally
from dwell.message import Result

#: What of a hundred messages that were taken is not acked: released, buried, or left to its lease.
_RELEASED, _BURIED, _LEFT = 6, 2, 1

LEASE_MS = 2000


class Actor(ABC):
    """One connection: it opens, steps, and closes."""

    def __init__(self, name: str, tally: Tally, seed: int) -> None:
        self.name = name
        self.tally = tally
        self.chance = random.Random(seed)
        self._number = 0

    async def run(self, pace_s: float, stop: asyncio.Event) -> None:
        """Do a step every ``pace_s`` seconds until the end; what goes wrong is noted."""
        try:
            await self.open()
            while not stop.is_set():
                await asyncio.sleep(self.chance.uniform(0, 2 * pace_s))
                await self.step()
                self.tally.steps += 1
            await self.close()
        except Exception as error:
            self.tally.note(error)

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def step(self) -> None:
        """Do one thing, or a few that belong together."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""

    def topic(self) -> str:
        """Return one of the topics."""
        return self.chance.choice(TOPICS)

    def next_id(self) -> str:
        """Return an id that nobody had before."""
        self._number += 1
        return f"{self.name}-{self._number}"

    def some_id(self) -> str:
        """Return an id of one of the last messages that were put here."""
        return f"{self.name}-{max(self._number - self.chance.randrange(20), 1)}"

    def fate(self) -> str:
        """Return what becomes of a message that was taken."""
        place = self.chance.randrange(100)
        for word, share in (("release", _RELEASED), ("bury", _BURIED), ("leave", _LEFT)):
            if place < share:
                return word
            place -= share
        return "ack"


class ClientActor(Actor):
    """The client of this project."""

    def __init__(self, name: str, tally: Tally, seed: int, url: str) -> None:
        super().__init__(name, tally, seed)
        self._handle = dwell.open(url)

    async def open(self) -> None:
        """Connect."""
        self._queue = await self._handle.__aenter__()

    async def close(self) -> None:
        """Disconnect."""
        await self._handle.__aexit__(None, None, None)

    async def step(self) -> None:
        """Put, take, or look after what is there."""
        what = self.chance.choices(("put", "take", "cancel", "look"), (40, 45, 10, 5))[0]
        if what != "put" or not self.tally.is_full:
            await getattr(self, f"_{what}")()

    async def _put(self) -> None:
        count = self.chance.randrange(1, 20)
        bodies = [b"x" * self.chance.randrange(500) for _ in range(count)]
        ids = [self.next_id() for _ in bodies] if self.chance.random() < 0.5 else None
        delay = self.chance.random() * 2
        puts = await self._queue.put_many(self.topic(), bodies, ids=ids, delay=delay, key="k")
        self.tally.created += sum(put.result is Result.CREATED for put in puts)

    async def _take(self) -> None:
        wait = self.chance.choice((0, 0.2))
        batch = await self._queue.take(TOPICS, 40, lease=LEASE_MS / 1000, wait=wait)
        for message in batch:
            await self._settle(message, self.fate())

    async def _settle(self, message: dwell.Message, fate: str) -> None:
        if fate == "ack":
            result = await self._queue.ack(message)
            self.tally.acked += result is Result.ACKED
        elif fate == "release":
            await self._queue.release(message, 0.1, error="again")
        elif fate == "bury":
            await self._queue.bury(message, "why not")

    async def _cancel(self) -> None:
        topic = self.topic()
        dead = await self._queue.scan(topic, "dead", limit=20)
        ids = [self.some_id(), *dead.messages.ids[:10]]
        results = await self._queue.cancel(topic, ids)
        self.tally.cancelled += results.count(Result.CANCELLED)
        await self._queue.kick(topic, limit=10)

    async def _look(self) -> None:
        topic = self.topic()
        await self._queue.reschedule(topic, self.some_id(), delay=0.5)
        await self._queue.get(topic, [self.some_id(), self.some_id()])
        await self._queue.peek(topic, 10)
        await self._queue.scan(topic, "delayed", limit=100)


class JsonActor(Actor):
    """A caller of the HTTP API in JSON, over one connection that is kept."""

    def __init__(self, name: str, tally: Tally, seed: int, host: str, port: int) -> None:
        super().__init__(name, tally, seed)
        self._place = (host, port)

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(*self._place)

    async def close(self) -> None:
        """Disconnect."""
        self._writer.close()
        await self._writer.wait_closed()

    async def _ask(self, method: str, path: str, value: object = None) -> Any:
        data = b"" if value is None else json.dumps(value).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self._writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        at = answer.index(b"content-length: ") + 16
        body = await self._reader.readexactly(int(answer[at : answer.index(b"\r\n", at)]))
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{method} {path}: {body!r}")
        return json.loads(body)

    async def step(self) -> None:
        """Put, take, or look after what is there."""
        what = self.chance.choices(("put", "take", "cancel", "look"), (45, 40, 10, 5))[0]
        if what != "put" or not self.tally.is_full:
            await getattr(self, f"_{what}")()

    async def _put(self) -> None:
        delay, count = self.chance.random() * 2, self.chance.randrange(1, 10)
        sizes = [self.chance.randrange(500) for _ in range(count)]
        rows: list[dict[str, Any]] = [{"body": "x" * size, "delay": delay} for size in sizes]
        if self.chance.random() < 0.5:
            rows = [{**row, "id": self.next_id(), "ttl": "5s"} for row in rows]
        found = (await self._ask("POST", f"/v1/topics/{self.topic()}/messages", rows))["results"]
        self.tally.created += sum(row["result"] == "created" for row in found)

    async def _take(self) -> None:
        wish = {"topics": TOPICS, "limit": 20, "lease_ms": LEASE_MS}
        wish["wait_ms"] = self.chance.choice((0, 200))
        fates: dict[str, list[str]] = {}
        for message in (await self._ask("POST", "/v1/take", wish))["messages"]:
            fates.setdefault(self.fate(), []).append(message["receipt"])
        for fate, receipts in fates.items():
            if fate != "leave":
                answer = await self._ask("POST", f"/v1/{fate}", {"receipts": receipts})
                self.tally.acked += answer["results"].count("acked")

    async def _cancel(self) -> None:
        topic = f"/v1/topics/{self.topic()}"
        answer = await self._ask("POST", f"{topic}/cancel", {"ids": [self.some_id()]})
        self.tally.cancelled += answer["results"].count("cancelled")
        wanted = {"filter": {"states": ["dead"]}, "limit": 10}
        answer = await self._ask("POST", f"{topic}/cancel", wanted)
        self.tally.cancelled += answer["results"].get("cancelled", 0)

    async def _look(self) -> None:
        topic = f"/v1/topics/{self.topic()}"
        await self._ask("GET", f"{topic}/messages?state=ready&limit=50")
        await self._ask("GET", f"{topic}/peek?limit=5")
        await self._ask("GET", "/v1/stats")
