"""The clients: each step of a plan is one of them, who tries again as a careful client does."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from dwell.batch.batch import Batch
from dwell.errors import BatchTooLarge, DwellError, IdExists, InvalidInput, StoreError, TopicFull
from dwell.message import Kind
from dwell.queue import Queue
from tools.simulation.history import Broken
from tools.simulation.network import Lost
from tools.simulation.observed import ObservedStore
from tools.simulation.plan import Step
from tools.simulation.scene import Scene

_TRIES = 12


class Client:
    """Does one step of a plan."""

    def __init__(self, world: Scene, number: int, step: Step) -> None:
        self._world = world
        self._number = number
        self._step = step
        self._chance = random.Random(step.seed)

    async def run(self) -> None:
        """Do the step."""
        await getattr(self, f"_{self._step.kind}")(**self._step.args)

    async def _ask(
        self,
        request: Callable[[Queue], Awaitable[Any]],
        words: str,
        *,
        wait_s: float = 0.0,
        tries: int = _TRIES,
    ) -> Any:
        """Ask until there is an answer; None when there was none all the time."""
        for number in range(tries):
            try:
                answer = await self._world.network.call(request, self._chance, words, wait_s)
            except (Lost, StoreError, BatchTooLarge) as error:
                self._world.note(f"#{self._number} {words}: {type(error).__name__}")
                await asyncio.sleep(min(0.1 * 2**number, 2))
            except DwellError as error:
                self._world.note(f"#{self._number} {words}: {type(error).__name__}")
                raise
            else:
                self._world.note(f"#{self._number} {words}: {_told(answer)}")
                return answer
        return None

    # --- puts -------------------------------------------------------------------------------------

    async def _put(
        self,
        topic: str,
        count: int,
        size_bytes: int,
        delay_ms: int,
        ttl_ms: int | None = None,
        nameless: bool = False,
        **how: int,
    ) -> None:
        ids = [f"m{self._number}-{index}" for index in range(count)]
        bodies = [self._body(id_, size_bytes) for id_ in ids]
        lease_ms = how.pop("lease_ms", None)
        times: dict[str, Any] = {"delay": delay_ms / 1000}
        if ttl_ms is not None:
            times["ttl"] = ttl_ms / 1000
        if lease_ms is not None:
            times["lease"] = lease_ms / 1000

        async def request(queue: Queue) -> list[str]:
            if count == 1:
                own = {} if nameless else {"id": ids[0]}
                put = await queue.put(topic, bodies[0], **own, **times, **how)  # type: ignore[arg-type]
                return [str(put.result)]
            names = None if nameless else ids
            many = await queue.put_many(topic, bodies, ids=names, **times, **how)  # type: ignore[arg-type]
            return [str(result) for result in many.results_list()] if 0 else _words(many.results)

        try:
            # Without an id of its own, a put that is repeated is another message.
            results = await self._ask(
                request, f"put {topic} {ids} +{delay_ms}", tries=1 if nameless else _TRIES
            )
        except TopicFull:
            return
        if results is not None and not nameless:
            self._world.ledger.note_put(topic, ids, results)
            self._world.known.setdefault(topic, []).extend(ids)

    async def _share(
        self,
        topic: str,
        id: str,  # noqa: A002 - the word of the whole API
        on_conflict: str,
        size_bytes: int,
        delay_ms: int,
        **how: Any,
    ) -> None:
        body = self._body(f"{id}{self._number}", size_bytes)
        ttl_ms, lease_ms = how.pop("ttl_ms", None), how.pop("lease_ms", None)
        how.pop("count")
        times: dict[str, Any] = {"delay": delay_ms / 1000}
        if ttl_ms is not None:
            times["ttl"] = ttl_ms / 1000
        if lease_ms is not None:
            times["lease"] = lease_ms / 1000

        async def request(queue: Queue) -> str:
            put = await queue.put(topic, body, id=id, on_conflict=on_conflict, **times, **how)
            return str(put.result)

        try:
            await self._ask(request, f"put {topic} {id} +{delay_ms} {on_conflict}")
        except (TopicFull, IdExists):
            return
        self._world.known.setdefault(topic, []).append(id)

    @staticmethod
    def _body(name: str, size_bytes: int) -> bytes:
        # No two bodies are the same, so that a message can be known by its own.
        return f"{name} ".encode() + b"." * size_bytes

    # --- takes ------------------------------------------------------------------------------------

    async def _work(
        self,
        topics: list[str],
        limit: int,
        wait_ms: int,
        then: str,
        busy_ms: int,
        lease_ms: int | None = None,
        owner: str = "",
    ) -> None:
        lease = None if lease_ms is None else lease_ms / 1000

        async def request(queue: Queue) -> Batch:
            return await queue.take(topics, limit, lease=lease, owner=owner, wait=wait_ms / 1000)

        batch = await self._take(request, f"take {topics} {limit} wait {wait_ms}", wait_ms)
        if batch is None or not len(batch) or then == "die":
            return
        await asyncio.sleep(busy_ms / 1000)
        if then == "touch":
            await self._ask(lambda queue: queue.touch(batch, 1.0), "touch", tries=2)
            await asyncio.sleep(busy_ms / 1000)
            then = "ack"
        await self._end(batch, then)

    async def _crowd(
        self,
        topic: str,
        takers: int,
        limit: int,
        wait_ms: int,
        puts: int,
        quitters: int,
        before: int,
        rounds: int,
    ) -> None:
        """Take several times in one turn of the server, while messages come and takers go."""
        bodies = [self._body(f"c{self._number}-{index}", 10) for index in range(puts)]

        async def request(queue: Queue) -> list[Batch]:
            owner = f"{self._number} {self._chance.getrandbits(32)}"

            async def take() -> Batch:
                batch = await queue.take(topic, limit, lease=20.0, owner=owner, wait=wait_ms / 1000)
                if rounds < 0:
                    # Those that are handed something in the same turn go just then.
                    for other in takes[takers - quitters :]:
                        if other is not asyncio.current_task():
                            other.cancel()
                return batch

            takes = [asyncio.ensure_future(take()) for _ in range(takers)]
            for _ in range(before):
                await asyncio.sleep(0)
            coming = [asyncio.ensure_future(queue.put(topic, body)) for body in bodies]
            for _ in range(rounds):
                await asyncio.sleep(0)
            if rounds >= 0:
                for quitter in takes[:quitters]:
                    quitter.cancel()
            answers = await asyncio.gather(*takes, *coming, return_exceptions=True)
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            batches = [answer for answer in answers if isinstance(answer, Batch)]
            await self._check_given_back(queue, owner, batches)
            return batches

        words = f"crowd of {takers} on {topic}, {puts} puts, {quitters} go"
        try:
            batches = await self._ask(request, words, wait_s=wait_ms / 1000, tries=1)
        except TopicFull:
            return
        for batch in batches or ():
            if len(batch):
                await self._end(batch, "ack")

    @staticmethod
    async def _check_given_back(queue: Queue, owner: str, batches: list[Batch]) -> None:
        """Check that nothing is held for takers that have gone."""
        given = {id_ for batch in batches for id_ in batch.ids}
        for _ in range(100):
            held = set((await queue.held(owner)).ids)
            if held <= given:
                return
            await asyncio.sleep(0.05)
        raise Broken("held", f"{held - given} are leased to takers that have gone")

    async def _take(
        self, request: Callable[[Queue], Awaitable[Batch]], words: str, wait_ms: int
    ) -> Batch | None:
        clock = self._world.clock
        from_ms, steps = clock.now_ms(), clock.steps
        # A take whose reply was lost is not repeated: its leases end.
        batch: Batch | None = await self._ask(request, words, wait_s=wait_ms / 1000, tries=1)
        if batch is not None:
            until_ms = clock.now_ms() if clock.steps == steps else 2**60
            self._world.ledger.note_take(batch, from_ms if clock.steps == steps else 0, until_ms)
        return batch

    async def _end(self, batch: Batch, then: str) -> None:
        ledger = self._world.ledger
        if then == "ack":
            ledger.maybe_gone.update(batch.ids)
            if len(batch) == 1:
                await self._ask(lambda queue: queue.ack(batch[0]), f"ack {list(batch.ids)}")
            else:
                await self._ask(lambda queue: queue.ack(batch), f"ack {list(batch.ids)}")
        elif then == "release":
            delay_s = self._chance.choice((0, 0, 0.05, 2.0))
            counted = self._chance.random() < 0.7
            await self._ask(
                lambda queue: queue.release(batch, delay_s, error="again", counted=counted),
                f"release {list(batch.ids)} +{delay_s}",
            )
        elif then == "bury":
            await self._ask(lambda queue: queue.bury(batch, "bad"), f"bury {list(batch.ids)}")

    async def _take_ids(self, topic: str, count: int) -> None:
        ids = self._some_ids(topic, count)
        batch = await self._take(
            lambda queue: queue.take_ids(topic, ids, lease=0.5), f"take {topic} {ids}", 0
        )
        if batch is not None and len(batch):
            await self._end(batch, self._chance.choice(("ack", "release", "die")))

    async def _held(self) -> None:
        await self._ask(lambda queue: queue.held("me"), "held", tries=1)

    # --- by id ------------------------------------------------------------------------------------

    def _some_ids(self, topic: str, count: int) -> list[str]:
        known = self._world.known.get(topic) or ["none"]
        return [known[int(self._chance.random() ** 2 * len(known))] for _ in range(count)]

    async def _cancel(self, topic: str, count: int) -> None:
        ids = self._some_ids(topic, count)
        self._world.ledger.maybe_gone.update(ids)
        await self._ask(lambda queue: queue.cancel(topic, ids), f"cancel {topic} {ids}")

    async def _move(self, topic: str, count: int, delay_ms: int) -> None:
        ids = self._some_ids(topic, count)
        await self._ask(
            lambda queue: queue.reschedule(topic, ids, delay=delay_ms / 1000),
            f"move {topic} {ids} +{delay_ms}",
        )

    async def _kick(self, topic: str, count: int) -> None:
        ids = self._some_ids(topic, count) if self._chance.random() < 0.5 else None
        await self._ask(lambda queue: queue.kick(topic, ids), f"kick {topic} {ids}")

    async def _get(self, topic: str, count: int) -> None:
        ids = self._some_ids(topic, count)
        await self._ask(lambda queue: queue.get(topic, ids), f"get {topic} {ids}", tries=2)

    # --- operators --------------------------------------------------------------------------------

    async def _configure(self, topic: str, changes: dict[str, Any]) -> None:
        await self._ask(
            lambda queue: queue.configure(topic, **changes), f"configure {topic} {changes}"
        )

    async def _stats(self) -> None:
        await self._ask(lambda queue: queue.stats(), "stats", tries=2)

    async def _find_stale(self) -> None:
        await self._ask(lambda queue: queue.find_stale(), "find_stale", wait_s=5, tries=2)

    async def _events(self) -> None:
        """Read the events from the beginning, in pages; there is no gap and no double."""
        position, seen = 0, self._world.seen
        for _ in range(1_000):
            page = await self._ask(
                lambda queue, at=position: queue.events(at, 50),  # type: ignore[misc]
                f"events from {position}",
                wait_s=5,
            )
            if page is None:
                return
            positions = page.events.positions.tolist()
            if self._world.history.may_drop_events:
                position = max(position, page.first_position)
            if positions != list(range(position, position + len(positions))):
                raise Broken("events", f"asked from {position}, got {positions}")
            for event in page.events:
                fact = (Kind(event.kind), event.topic, event.id)
                if seen.setdefault(event.position, fact) != fact:
                    raise Broken("events", f"{event.position} was {seen[event.position]}: {fact}")
            position = page.next_position
            if position >= page.end_position:
                return
        raise Broken("events", "a reader that never comes to the end")

    async def _backup(self) -> None:
        folder = f"/simulated/backup-{self._number}-{self._chance.getrandbits(16)}"

        async def request(queue: Queue) -> Any:
            store = self._world.process.store
            if not isinstance(store, ObservedStore) or queue.store is not store:
                raise StoreError("the store is closing")
            try:
                await store.backup(folder)
            except OSError as error:
                # A copy that fails is the operator's to see, and does no harm to the store.
                raise StoreError(str(error)) from None
            model = store.checkpointed[asyncio.current_task()]
            return model, self._world.process.disk.only_synced()

        try:
            answer = await self._ask(request, "backup", wait_s=20, tries=1)
        except InvalidInput:
            # The request came twice.
            return
        if answer is not None:
            await self._world.check_backup(folder, *answer)


def _words(results: Any) -> list[str]:
    from dwell.batch.results import results_of

    return [str(result) for result in results_of(results)]


def _told(answer: Any) -> str:
    if isinstance(answer, Batch):
        return str(list(answer.ids))
    if isinstance(answer, (list, str)):
        return str(answer)
    return type(answer).__name__
