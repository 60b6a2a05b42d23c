"""The channel: kombu's virtual channel over the topics of a store."""

import logging
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import BatchPublishError, ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from dwell.batch.stats import TopicStats
from dwell.celery.directory import Binding, Directory, Row, binding_row, queue_row
from dwell.celery.envelope import (
    MAX_PRIORITY,
    PUBLISH,
    TRANSIENT,
    UNSURE,
    Copies,
    Parcel,
    opened,
    sealed,
)
from dwell.celery.intake import Consumed, Intake
from dwell.celery.names import exchange_topic, topic_of
from dwell.celery.posting import post
from dwell.celery.revoking import cancel_tasks, revoked_tasks, tell_results
from dwell.errors import ServerUnreachable
from dwell.given.selecting import select
from dwell.given.values import Delay, lease_ms
from dwell.message import MAX_ATTEMPTS, Message, Result
from dwell.queue import Queue

_log = logging.getLogger(__name__)

#: How long an automatically deleted queue lives after the end of the process that consumed from it.
_ORPHAN_MS = 60_000
#: How long such a queue waits for its first consumer.
_UNUSED_MS = 24 * 3_600_000
_WAITING = select(state=("delayed", "ready"))


@dataclass(frozen=True, slots=True)
class Declared:
    """A queue as this connection declared it: how long it lives unused, and its messages unread."""

    lives_ms: int | None
    ttl_ms: int | None
    auto_delete: bool

    @property
    def consumed_ms(self) -> int | None:
        """How long it lives after the end of the process that consumed from it."""
        if not self.auto_delete:
            return self.lives_ms
        return min(self.lives_ms or _ORPHAN_MS, _ORPHAN_MS)

    def row(self, queue: str) -> Row:
        """Return the row of a queue that is declared so."""
        life = "" if self.lives_ms is None else f"{self.lives_ms} ms"
        return queue_row(queue, f"{life}, deleted automatically" if self.auto_delete else life)


_UNKNOWN = Declared(None, None, auto_delete=False)


class QoS:
    """Counts and settles the messages that a channel holds, in the way of kombu's own class."""

    restore_at_shutdown = True

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    @property
    def prefetch_count(self) -> int:
        """How many messages the channel may hold unacked, 0 for no limit."""
        return self._intake.prefetch

    @prefetch_count.setter
    def prefetch_count(self, count: int) -> None:
        """Change it."""
        self._intake.limit(count or 0)

    def can_consume(self) -> bool:
        """Tell whether the channel may hold more."""
        return not self.prefetch_count or self._intake.held < self.prefetch_count

    def can_consume_max_estimate(self) -> int | None:
        """Return how many more messages the channel may hold, None for no limit."""
        count = self.prefetch_count
        return max(count - self._intake.held, 0) if count else None

    def append(self, message: Any, delivery_tag: str) -> None:
        """Hold a message: the intake does, since it was taken."""

    def ack(self, delivery_tag: str) -> None:
        """Report a message as done."""
        self._intake.ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back, or set it aside as dead."""
        (self._intake.requeue if requeue else self._intake.reject)(delivery_tag)

    def restore_unacked(self) -> None:
        """Give back everything that is held."""
        self._intake.restore()

    def restore_unacked_once(self, stderr: object = None) -> None:
        """Give back everything that is held, at the end of the channel."""
        self._intake.close()

    def restore_visible(self, *args: object, **words: object) -> None:
        """Do nothing: leases end without it."""


class Channel(virtual.Channel):
    """A channel over a store.

    ``transport_options``: ``lease`` is how long messages stay with a worker that was killed, as a
    span; ``max_attempts`` is how often a message is delivered before it is dead; ``store`` has
    options for :func:`dwell.open`.
    """

    QoS = QoS

    supports_fanout = True
    do_restore = True
    max_priority = MAX_PRIORITY
    lease: Delay = "60s"
    max_attempts = MAX_ATTEMPTS
    from_transport_options = (
        *virtual.Channel.from_transport_options,
        "lease",
        "max_attempts",
    )

    def __init__(self, connection: Any, **words: Any) -> None:
        super().__init__(connection, **words)
        self._link = connection.link
        self._callbacks: dict[str, Callable[[Any], object]] = {}
        lease_s = lease_ms(self.lease) / 1000
        owner = f"{socket.gethostname()}:{os.getpid()}"
        self._intake = Intake(self._link, lease_s, owner, connection.signal.set)
        self._qos = QoS(self._intake)
        #: The topics that refused copies of a message or dropped one, and the exchanges that had no
        #: queue for one.
        self._told = set[str]()

    # --- queues and exchanges -----------------------------------------------------------------

    def prepare_queue_arguments(self, arguments: Any, **words: Any) -> Any:
        """Return the arguments of a queue with the names that AMQP gives them."""
        return to_rabbitmq_queue_arguments(arguments, **words)

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        auto_delete: bool = False,
        exclusive: bool = False,
        arguments: dict[str, Any] | None = None,
        **words: Any,
    ) -> Any:
        """Declare a queue, or look whether it exists; return its name and how many are ready."""
        name = queue or f"amq.gen-{uuid()}"
        if passive:
            if not self._has_queue(name):
                where = "Channel.queue_declare"
                raise ChannelError(f"NOT_FOUND - no queue {name!r}", (50, 10), where, "404")
            return queue_declare_ok_t(name, self._size(name), 0)
        arguments, goes = arguments or {}, auto_delete or exclusive
        lives_ms = arguments.get("x-expires") or (_UNUSED_MS if goes else None)
        declared = Declared(lives_ms, arguments.get("x-message-ttl"), goes)
        if not self._link.run(self._directory.declare, declared.row(name), lives_ms):
            text = f"PRECONDITION_FAILED - queue {name!r:.80} was declared with another life"
            raise ChannelError(text, (50, 10), "Channel.queue_declare", "406")
        self.connection.declared[name] = declared
        return queue_declare_ok_t(name, self._size(name), 0)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **words: Any,
    ) -> None:
        """Bind a queue to an exchange."""
        exchange = exchange or "amq.direct"
        self.state.binding_declare(queue, exchange, routing_key, arguments)
        self._upkeep.exchanges.add(exchange)
        binding = self._binding(queue, exchange, routing_key)
        self._link.run(self._directory.bind, exchange, binding, self._declared(queue).lives_ms)
        if self._is_consumed(queue):
            self._keep(queue)

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **words: Any,
    ) -> None:
        """Remove a binding."""
        exchange = exchange or "amq.direct"
        binding = self._binding(queue, exchange, routing_key)
        self.state.binding_delete(queue, exchange, routing_key)
        if self._is_consumed(queue):
            self._keep(queue)
        self._link.run(self._directory.unbind, exchange, binding)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **words: Any
    ) -> None:
        """Delete a queue with its bindings and messages; ``if_empty`` leaves one with messages."""
        sizes = self._sizes(queue) if if_empty else ()
        if any(shard.delayed + shard.ready + shard.leased for shard in sizes):
            return
        known = self.connection.declared.pop(queue, None)
        rows = self._binding_rows(queue) if known is not None and known.auto_delete else None
        self.state.queue_bindings_delete(queue)
        self._link.run(self._upkeep.drop, topic_of(queue), self)
        self._link.run(self._directory.delete, queue, rows)

    def after_reply_message_received(self, queue: str) -> None:
        """Do nothing: the queue is deleted as its consumer leaves."""

    def exchange_delete(self, exchange: str, if_unused: bool = False, **words: Any) -> None:
        """Delete an exchange and its bindings; the queues stay."""
        for queue, _, routing_key in [one for one in self.state.bindings if one[1] == exchange]:
            self.queue_unbind(queue, exchange, routing_key)
        self.state.exchanges.pop(exchange, None)
        self._link.run(self._link.queue.clear, exchange_topic(exchange))

    def get_table(self, exchange: str) -> list[tuple[str, str | None, str]]:
        """Return the bindings of an exchange by all processes.

        Patterns are made anew of the routing keys: anybody may have put the rows.
        """
        bind = self.typeof(exchange).prepare_bind
        return [
            bind(one.queue, exchange, one.routing_key, None) for one in self._bindings(exchange)
        ]

    def _bindings(self, exchange: str) -> list[Binding]:
        found: list[Binding] = self._link.run(self._directory.bindings, exchange)
        return found

    def _binding(self, queue: str, exchange: str, routing_key: str) -> Binding:
        key, pattern, _ = self.typeof(exchange).prepare_bind(queue, exchange, routing_key, None)
        return Binding(key, pattern, queue, self._declared(queue).ttl_ms)

    def _binding_rows(self, queue: str) -> list[Row]:
        return [
            binding_row(exchange_topic(exchange), self._binding(queue, exchange, routing_key))
            for exchange, routing_key, _ in self.state.queue_bindings(queue)
        ]

    def _declared(self, queue: str) -> Declared:
        found: Declared = self.connection.declared.get(queue, _UNKNOWN)
        return found

    @property
    def _upkeep(self) -> Any:
        return self._link.upkeep

    @property
    def _directory(self) -> Directory:
        found: Directory = self._link.upkeep.directory
        return found

    def _has_queue(self, queue: str, **words: Any) -> bool:
        found: bool = self._link.run(self._directory.exists, queue)
        return found

    def _size(self, queue: str) -> int:
        return sum(shard.ready for shard in self._sizes(queue))

    def _sizes(self, queue: str) -> list[TopicStats]:
        found: list[TopicStats] = self._link.run(self._link.queue.sizes, topic_of(queue))
        return found

    def _purge(self, queue: str) -> int:
        purged: int = self._link.run(_purge, self._link.queue, topic_of(queue))
        return purged

    # --- publishing ---------------------------------------------------------------------------

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str]:
        """Return a body as text, and the name of the coding that was needed for that."""
        if isinstance(body, str):
            return body, "utf-8"
        return self.codecs["base64"].encode(body), "base64"

    def create_publish_batch(self, max_size: int) -> "PublishBatch":
        """Return a batch of messages that are put together."""
        return PublishBatch(self, max_size)

    def basic_publish(
        self,
        message: dict[str, Any],
        exchange: str = "",
        routing_key: str = "",
        batch: "PublishBatch | None" = None,
        **words: Any,
    ) -> Any:
        """Put a message into each queue that its exchange has for it, whatever the others say.

        Events need no reader; another message is refused if no queue takes it.
        """
        if exchange:
            is_transient = message["properties"].get("delivery_mode") == TRANSIENT
            words["copies"] = Copies(is_needed=not is_transient)
        # A publish that kombu repeats after a lost answer has the same properties.
        properties = message["properties"]
        words["is_repeat"] = UNSURE in properties
        properties.setdefault(PUBLISH, secrets.token_hex(8))
        # All queues of the message are known before it is put into the first.
        gathered = PublishBatch(self, 0) if batch is None else batch
        before = len(gathered.parcels)
        result = super().basic_publish(message, exchange, routing_key, batch=gathered, **words)
        if exchange and len(gathered.parcels) == before:
            if self._restore(exchange, routing_key):
                words["batch"] = gathered
                self.typeof(exchange).deliver(message, exchange, routing_key, **words)
            if len(gathered.parcels) == before and words["copies"].is_needed:
                self._tell(exchange, "the exchange has no queue for a message, which is dropped")
        if batch is None:
            try:
                self.post(gathered.parcels)
            except ServerUnreachable as error:
                if error.may_be_done:
                    properties[UNSURE] = True
                raise
        return result

    def _put(
        self,
        queue: str,
        message: dict[str, Any],
        batch: "PublishBatch",
        copies: Copies | None = None,
        is_repeat: bool = False,
        **words: Any,
    ) -> None:
        properties = message["properties"]
        is_direct = not properties.get("delivery_info", {}).get("exchange")
        is_transient = is_direct and properties.get("delivery_mode") == TRANSIENT
        if is_transient and not self._has_queue(queue) and not self._restore_queue(queue):
            # A reply for a program that has ended must not stay for ever.
            return
        ttl_ms = self._declared(queue).ttl_ms
        parcel = sealed(queue, message, self._now_ms(), ttl_ms)
        parcel.copies, parcel.is_repeat = copies, is_repeat
        batch.add([parcel])

    def _put_fanout(
        self,
        exchange: str,
        message: dict[str, Any],
        routing_key: str,
        batch: "PublishBatch",
        copies: Copies,
        **words: Any,
    ) -> None:
        if tasks := revoked_tasks(message):
            tell_results(self._link.run(cancel_tasks, self._link.queue, tasks))
        now_ms = self._now_ms()
        bound = {one.queue: one for one in self._bindings(exchange)}
        parcels = [sealed(one.queue, message, now_ms, one.ttl_ms) for one in bound.values()]
        # Applications share remote control, and one may have no right to the queues of another.
        copies.is_needed = False
        for parcel in parcels:
            parcel.copies = copies
        batch.add(parcels)

    def post(self, parcels: Sequence[Parcel]) -> None:
        """Put parcels; raises InvalidInput, TopicFull, AccessDenied and StoreError."""
        if not parcels:
            return
        for topic, what in self._link.run(post, self._link.queue, parcels, self.max_attempts):
            self._tell(topic, what)

    def _tell(self, name: str, what: str) -> None:
        """Log what is wrong with a topic or an exchange, once."""
        if name not in self._told:
            self._told.add(name)
            _log.warning("%.200s: %s", name, what)

    def _restore(self, exchange: str, routing_key: str) -> bool:
        """Declare the queues again that this connection has bound for a message nobody gets.

        A Redis may have come back empty, and kombu declares each queue once. Returns whether there
        are such queues.
        """
        kind = self.typeof(exchange)
        own = [
            kind.prepare_bind(queue, exchange, key, None)
            for queue, bound, key in list(self.state.bindings)
            if bound == exchange
        ]
        restored = [*map(self._restore_queue, kind.lookup(own, exchange, routing_key, None))]
        return any(restored)

    def _restore_queue(self, queue: str) -> bool:
        """Declare a queue again that is gone; return False for one that others may have deleted."""
        declared = self.connection.declared.get(queue)
        if declared is None or declared.auto_delete:
            return False
        rows = [declared.row(queue), *self._binding_rows(queue)]
        if self._link.run(self._directory.restore, rows, declared.lives_ms):
            _log.warning("%.200s: the queue or a binding was gone, and is declared again", queue)
        return True

    def _now_ms(self) -> int:
        return int(self._link.queue.clock.now_ms())

    # --- consuming ----------------------------------------------------------------------------

    def basic_consume(
        self,
        queue: str,
        no_ack: bool,
        callback: Callable[[Any], object],
        consumer_tag: str,
        **words: Any,
    ) -> None:
        """Begin to consume from a queue."""
        self._tag_to_queue[consumer_tag] = queue
        self._active_queues.append(queue)
        self._consumers.add(consumer_tag)
        self._callbacks[queue] = callback
        self._keep(queue)
        self._intake.consume(topic_of(queue), Consumed(queue, bool(no_ack)))

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer; a queue that is deleted automatically goes with it."""
        if consumer_tag not in self._consumers:
            return
        self._consumers.remove(consumer_tag)
        queue = self._tag_to_queue.pop(consumer_tag)
        self._active_queues.remove(queue)
        if self._is_consumed(queue):
            return
        self._callbacks.pop(queue, None)
        if self._link.is_elsewhere:
            return
        self._intake.cancel(topic_of(queue))
        self._link.run(self._upkeep.drop, topic_of(queue), self)
        if self._declared(queue).auto_delete:
            self.queue_delete(queue)

    def deliver(self) -> bool:
        """Give a message to its consumer; tell whether there was one."""
        found = self._intake.next()
        if found is None:
            return False
        consumed, message = found
        callback = self._callbacks.get(consumed.queue)
        if callback is None:
            self._intake.requeue(str(message.receipt))
        else:
            self._hand(message, callback)
        return True

    def _hand(self, message: Message, callback: Callable[[Any], object]) -> None:
        """Give a message to a callback; a message that kombu cannot read is set aside."""
        try:
            found = self.Message(opened(message), channel=self)
        except Exception as error:
            # Left unsettled it would be held for ever, and take a place of the prefetch count.
            _log.error("%s: message %s is none of kombu: %r", message.topic, message.id, error)
            self._intake.reject(str(message.receipt), f"no message of kombu: {error!r:.200}")
        else:
            callback(found)

    @property
    def has_more(self) -> bool:
        """Whether there is something to deliver or an error to raise."""
        return self._intake.has_more

    def basic_get(self, queue: str, no_ack: bool = False, **words: Any) -> Any:
        """Return a message that is ready now, or None."""
        got: list[Any] = []
        while not got and (message := self._intake.take_one(topic_of(queue), no_ack=no_ack)):
            self._hand(message, got.append)
        return got[0] if got else None

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Report a message as done, with ``multiple`` all before it, too."""
        (self._intake.ack_until if multiple else self._intake.ack)(delivery_tag)

    def drain_events(self, timeout: float | None = None, callback: object = None) -> None:
        """Deliver a message, as the connection does; raises TimeoutError."""
        self.connection.drain_events(self.connection, timeout=timeout)

    def close(self) -> None:
        """Cancel all consumers and give back what was not acked."""
        is_new, connection = not self.closed, self.connection
        super().close()
        if is_new:
            self._intake.close()
            if connection is not None:
                connection.signal.set()

    def _is_consumed(self, queue: str) -> bool:
        return queue in self._active_queues

    def _keep(self, queue: str) -> None:
        """Keep a queue that expires for as long as this process consumes from it."""
        declared = self._declared(queue)
        rows, lives_ms = [declared.row(queue), *self._binding_rows(queue)], declared.consumed_ms
        self._link.run(self._upkeep.keep, topic_of(queue), self, rows, lives_ms)


class PublishBatch:
    """Gathers messages of :meth:`kombu.Producer.batch`, and puts them together."""

    def __init__(self, channel: Channel, max_size: int) -> None:
        self.channel = channel
        self._most = max_size
        self.parcels: list[Parcel] = []

    def publish(self, message: dict[str, Any], **words: Any) -> Any:
        """Route one message and keep it until the batch is full."""
        result = self.channel.basic_publish(message, batch=self, **words)
        if len(self.parcels) >= self._most:
            self.flush()
        return result

    def add(self, parcels: Sequence[Parcel]) -> None:
        """Keep the parcels of one message."""
        self.parcels.extend(parcels)

    def flush(self) -> None:
        """Put what was gathered; raises BatchPublishError if it is not known what was put."""
        parcels, self.parcels = self.parcels, []
        try:
            self.channel.post(parcels)
        except Exception as error:
            raise BatchPublishError(f"batch: some messages may not be put: {error}") from error

    def discard(self) -> None:
        """Forget what was gathered."""
        self.parcels.clear()

    def close(self) -> None:
        """End the batch."""
        self.discard()


async def _purge(queue: Queue, topic: str) -> int:
    """Cancel all that waits; dead messages stay."""
    purged = 0
    while True:
        changed = await queue.cancel_where(topic, _WAITING)
        purged += changed.results[Result.CANCELLED]
        if changed.is_complete or not changed.matched:
            return purged
