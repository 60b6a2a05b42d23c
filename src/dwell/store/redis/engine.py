"""The engine: functions run on a Redis, on the master that Sentinel names, or on a cluster.

A call that may have run is repeated under the same number: a shard keeps the last answer of each
call in progress, so that it runs once. redis-py keeps the connections.
"""

import asyncio
import contextlib
import heapq
import itertools
import random
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster, Sentinel
from redis.asyncio.client import PubSub
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from dwell.errors import (
    AccessDenied,
    InvalidInput,
    ServerUnreachable,
    StoreClosed,
    StoreError,
    StoreFailed,
    StoreFull,
)
from dwell.store.redis.functions import library
from dwell.store.redis.keys import Keys, keys_of
from dwell.store.redis.options import Options

#: The longest wait for an answer, before the connection is dropped.
_ANSWER_S = 5.0
_CONNECT_S = 2.0
#: How long a large value is kept if its function is never called.
_LARGE_MS = 60_000
_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 1.0

#: The errors of a connection that redis-py closes while it is in use, as it does in clusters.
_CLOSED_UNDER_US = (AttributeError, RuntimeError)
#: All errors of an engine; redis-py has two base classes.
ERRORS = (exceptions.RedisError, exceptions.RedisClusterException, OSError, *_CLOSED_UNDER_US)

#: Transient errors: the engine starts, fails over, moves a slot, or cannot be reached.
_PASSING = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.ClusterError,
    exceptions.RedisClusterException,
    exceptions.TryAgainError,
    exceptions.MasterDownError,
    exceptions.MovedError,
    exceptions.AskError,
    OSError,
    *_CLOSED_UNDER_US,
)
#: The error of an engine without the library: its node is new, or it was flushed.
_MISSING = "Function not found"
_PASSING_WORDS = (
    *("NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "LOADING", "BUSY", "UNBLOCKED"),
    _MISSING,
)


class Call(NamedTuple):
    """Names a call, so that a repeat of it does not run again.

    The shard keeps its answer in ``slot``; ``serial`` grows with each call.
    """

    slot: int
    serial: int


class _Cluster(RedisCluster):
    """A cluster client that finds a function's keys where a script has its keys.

    redis-py would ask a node for them at each call, which doubles the round trips.
    """

    async def _determine_slot(self, command: str, *args: Any) -> int:
        return await super()._determine_slot("EVALSHA" if command == "FCALL" else command, *args)


class Engine:
    """Runs the functions of the library; the prefix begins every key."""

    def __init__(self, options: Options) -> None:
        self.address = options.address
        #: The name of this instance, which marks its own publications.
        self.name = secrets.token_hex(8)
        self._prefix = options.prefix
        #: How long a verb tries to reach the engine.
        self.timeout_s = options.timeout_s
        # Half of the time is kept for another attempt on another connection.
        self._answer_s = min(_ANSWER_S, self.timeout_s / 2)
        self._connect_s = min(_CONNECT_S, self.timeout_s / 2)
        self._min_replicas = options.min_replicas
        self._connections = options.connections
        self._ca = options.ca
        self._client: Any = None
        self._sentinels: list[Any] = []
        self._slots: list[int] = []
        self._new_slot = itertools.count()
        self._serials = itertools.count(1)
        #: How many commands were sent.
        self.commands = 0

    def keys(self, shard: int) -> Keys:
        """Return the names of a shard's keys."""
        return keys_of(self._prefix, shard)

    async def open(self) -> None:
        """Connect; raises StoreError when the engine cannot keep a store."""
        self._client = self._make_client()
        try:
            await self._patiently(self._check)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            for one in (client, *self._sentinels):
                await one.aclose()

    def check(self) -> None:
        """Raise StoreClosed unless the engine is open."""
        if self._client is None:
            raise StoreClosed("the store on Redis is not open")

    def subscription(self) -> PubSub:
        """Return an empty subscription, on a connection of its own."""
        self.check()
        subscription: PubSub = self._client.pubsub()
        return subscription

    async def run(
        self,
        shard: int,
        verb: str,
        now_ms: int,
        *own: object,
        large: Sequence[tuple[int, bytes]] = (),
        call: Call | None = None,
        patience_s: float | None = None,
    ) -> list[Any]:
        """Return the answer of a verb; raises StoreError unless it certainly ran.

        ``large`` values are sent separately, and the call finds each by its index. With a ``call``
        the caller may ask for its answer again, and must end it.
        """
        slot, serial = call or self.new_call()
        keys = self.keys(shard)

        async def once() -> list[Any]:
            new = f"{keys.new}{self.name}:{serial}:"
            first = [("SET", f"{new}{place}", value, "PX", _LARGE_MS) for place, value in large]
            own_first = (now_ms, self.name, shard, slot, serial)
            return await self._call(verb, first, keys, *own_first, *own)

        try:
            answer: list[Any] = await self._patiently(once, patience_s)
        finally:
            if call is None:
                self.end(Call(slot, serial))
        return answer

    def new_call(self) -> Call:
        """Return a name for a new call, in an unused slot."""
        slot = heapq.heappop(self._slots) if self._slots else next(self._new_slot)
        return Call(slot, next(self._serials))

    def end(self, call: Call) -> None:
        """Free the slot for another call.

        An aborted call may still reach the engine: before the next call of its slot it runs, and no
        caller was told otherwise; after that it does nothing.
        """
        heapq.heappush(self._slots, call.slot)

    def patience_s(self, asked_s: float | None) -> float:
        """Return how long to try: the requested time, but at most the time-out."""
        return self.timeout_s if asked_s is None else min(asked_s, self.timeout_s)

    async def listeners(self, channel: str) -> int:
        """Return how many connections to any node listen to a channel."""

        async def once() -> int:
            self.check()
            asked = [node.execute_command("PUBSUB", "NUMSUB", channel) for node in self._nodes()]
            return sum(_number_of(found) for found in await asyncio.gather(*asked))

        count: int = await self._patiently(once)
        return count

    def _nodes(self) -> list[Any]:
        """Return the clients of all nodes; in a cluster also of nodes without slots."""
        return self._client.get_nodes() if self.address.kind == "cluster" else [self._client]

    async def ask(self, *command: object, patience_s: float | None = None) -> Any:
        """Run one plain command that is safe to repeat, on the first shard's node."""

        async def once() -> Any:
            self.check()
            self.commands += 1
            return await self._client.execute_command(*command)

        return await self._patiently(once, patience_s)

    async def _call(
        self, verb: str, first: Sequence[tuple[object, ...]], keys: Keys, *arguments: object
    ) -> list[Any]:
        self.check()
        # While a cluster moves the slot, a function must not run where some of the keys are: of
        # these two keys one always exists and one never, so that the nodes answer TRYAGAIN then.
        command = ("FCALL", library()[1] + verb, 2, keys.base, keys.meta, *arguments)
        try:
            return await self._send(first, command)
        except exceptions.ResponseError as error:
            if not str(error).startswith(_MISSING):
                raise self._lacks(error) from None
        try:
            await self._load()
        except exceptions.OutOfMemoryError:
            raise StoreFull(
                f"{self.address}: the memory is full, so that the library of functions cannot be "
                "loaded (FUNCTION LOAD); raise maxmemory for that"
            ) from None
        except exceptions.ResponseError as error:
            raise self._lacks(error) from None
        return await self._send(first, command)

    def _lacks(self, error: Exception) -> Exception:
        """Return the error to raise: a clear one if the engine lacks functions.

        Its own text would repeat the whole command.
        """
        if not str(error).startswith("unknown command"):
            return error
        return StoreError(
            f"{self.address}: has no functions (FCALL and FUNCTION LOAD); "
            "expected Redis 7.0 or later, or Valkey, with both allowed"
        )

    async def _load(self) -> None:
        """Load the library where it is missing; raises the error if no node accepts it."""
        nodes = self._client.get_primaries() if self.address.kind == "cluster" else [self._client]
        loads = [node.execute_command("FUNCTION", "LOAD", library()[0]) for node in nodes]
        told = await asyncio.gather(*loads, return_exceptions=True)
        errors = [one for one in told if isinstance(one, Exception)]
        errors = [error for error in errors if "already exists" not in str(error)]
        if len(errors) == len(nodes):
            raise errors[0]

    async def _send(
        self, first: Sequence[tuple[object, ...]], command: tuple[object, ...]
    ) -> list[Any]:
        """Send a command on one connection, with others before it and a wait for replicas after."""
        self.commands += 1 + len(first)
        if not first and not self._min_replicas:
            answer: list[Any] = await self._client.execute_command(*command)
            return answer
        pipeline = self._client.pipeline(transaction=False)
        for other in (*first, command):
            pipeline.execute_command(*other)
        if self._min_replicas:
            pipeline.execute_command("WAIT", self._min_replicas, int(self._answer_s * 500))
        answers = await pipeline.execute(raise_on_error=False)
        for error in answers:
            # An error of the pipeline itself repeats the command, which must not be logged.
            if isinstance(error, Exception):
                raise error
        if not self._min_replicas:
            return list(answers[-1])
        answer, replicas = answers[-2:]
        if replicas < self._min_replicas:
            raise exceptions.TimeoutError(
                f"{replicas} replicas have it in time, and min_replicas is {self._min_replicas}"
            )
        return list(answer)

    async def _patiently(self, once: Any, patience_s: float | None = None) -> Any:
        """Retry until the time is over; waits grow, so that others get through."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self.patience_s(patience_s)
        wait_s, last = _FIRST_WAIT_S, None
        cancelled = _cancelled()
        while True:
            try:
                async with asyncio.timeout_at(give_up_at):
                    answer = await once()
                if _cancelled() > cancelled:
                    # Before Python 3.12 the client loses one that comes as a command is sent.
                    raise asyncio.CancelledError
                return answer
            except ERRORS as met:
                error = _cause(met)
                if _cancelled() > cancelled:
                    # The client sometimes takes a cancellation for an error of its own.
                    raise asyncio.CancelledError from None
                # An attempt that the time limit cut off has no reason of its own.
                last = error if str(error) or last is None else last
                if not _passes(error) or loop.time() >= give_up_at:
                    raise self._told(last) from None
            left_s = give_up_at - loop.time()
            await asyncio.sleep(min(wait_s * (0.5 + random.random()), left_s))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _told(self, error: Exception) -> Exception:
        """Return the error for the caller."""
        text = f"{self.address}: {str(error) or type(error).__name__}"
        if isinstance(error, exceptions.OutOfMemoryError) or "OOM command" in str(error):
            return StoreFull(f"{text} (OOM: the memory is full); nothing was put")
        if isinstance(
            error,
            exceptions.AuthenticationError
            | exceptions.NoPermissionError
            | exceptions.AuthorizationError,
        ):
            return AccessDenied(text)
        if _passes(error):
            return ServerUnreachable(text)
        return StoreFailed(text)

    # --- making the client --------------------------------------------------------------------

    def _make_client(self) -> Any:
        common: dict[str, Any] = {
            "username": self.address.username,
            "password": self.address.password,
            "socket_timeout": self._answer_s,
            "socket_connect_timeout": self._connect_s,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
        }
        if self.address.kind == "cluster":
            if self.address.is_secure:
                common |= {"ssl": True, "ssl_ca_certs": self._ca}
            nodes = [ClusterNode(host, port) for host, port in self.address.hosts]
            # Without steps a moved slot does not close the connections to all nodes.
            common |= {"max_connections": self._connections, "reinitialize_steps": 0}
            return _Cluster(startup_nodes=nodes, **common)
        common["db"] = self.address.database
        if self.address.kind == "sentinel":
            if self.address.is_secure:
                common |= {"ssl": True, "ssl_ca_certs": self._ca}
            sentinel_kwargs = {
                "socket_timeout": self._connect_s,
                "socket_connect_timeout": self._connect_s,
            }
            made: Any = Sentinel
            sentinel = made(list(self.address.hosts), sentinel_kwargs=sentinel_kwargs, **common)
            self._sentinels = sentinel.sentinels
            return sentinel.master_for(self.address.service)
        host, port = self.address.hosts[0]
        kind: type[Connection] = Connection
        if self.address.is_secure:
            kind = SSLConnection
            common["ssl_ca_certs"] = self._ca
        pool = BlockingConnectionPool(
            max_connections=self._connections,
            timeout=None,
            connection_class=kind,
            host=host,
            port=port,
            **common,
        )
        return Redis.from_pool(pool)

    async def _check(self) -> None:
        """Refuse an engine that is too old, drops messages, or does not let us publish."""
        if self.address.kind == "cluster":
            await self._client.initialize()
            found = await self._client.info("all", target_nodes="primaries")
            facts = found.values() if "redis_version" not in found else [found]
        else:
            facts = [await self._client.info("all")]
        check_facts(facts)
        # A verb without the right to publish would be aborted at its end. An empty message wakes
        # nobody.
        await self._client.execute_command("PUBLISH", f"{self.keys(0).wake}:0", b"")


def check_facts(facts: Iterable[dict[str, Any]]) -> None:
    """Refuse an engine whose own facts show that it cannot keep a store."""
    for of in facts:
        version = str(of.get("redis_version", "0"))
        if int(version.split(".")[0]) < 7:
            raise StoreError(f"Redis {version}: expected 7.0 or later, or Valkey")
        policy = of.get("maxmemory_policy", "noeviction")
        if int(of.get("maxmemory", 0)) and policy != "noeviction":
            raise InvalidInput(
                f"maxmemory-policy: got {policy}, expected noeviction: it would drop messages"
            )


def _number_of(found: Any) -> int:
    """Return the number of listeners in the answer for a single channel."""
    return int(found[0][1] if isinstance(found[0], tuple) else found[1])


def _cancelled() -> int:
    """Return how often the current task was asked to end."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _cause(error: Exception) -> Exception:
    """Return why no node of a cluster could be reached, if they refused."""
    refusals = exceptions.AuthenticationError | exceptions.AuthorizationError
    cause = error.__cause__
    return cause if isinstance(cause, refusals) else error


def _passes(error: Exception) -> bool:
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError):
        return False
    return isinstance(error, _PASSING) or str(error).startswith(_PASSING_WORDS)


async def close_quietly(subscription: PubSub) -> None:
    """Close a subscription whose connection may be broken."""
    with contextlib.suppress(*ERRORS):
        await subscription.aclose()  # type: ignore[no-untyped-call]
