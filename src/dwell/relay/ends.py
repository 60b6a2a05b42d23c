"""The ends of a relay, ``--from`` and ``--to``: the adapter for an address."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from dwell.errors import InvalidSettings, InvalidUrl
from dwell.relay.contract import Sink, Source
from dwell.relay.sent import Owner
from dwell.urls import shown


@dataclass(frozen=True)
class End:
    """One end of a relay: an address, and the topics that it names.

    ``extra`` is the extra of Dwell that it needs. ``has_once`` tells that the broker has
    transactions that cover a batch and the note about it.
    """

    url: str

    extra: ClassVar[str]
    has_once: ClassVar[bool] = False

    @staticmethod
    def of(url: str) -> "End | None":
        """Return the end of an address; None for the address of a store."""
        scheme = urlsplit(url).scheme
        kind = _KINDS.get(scheme.partition("+")[0])
        return None if kind is None else kind(url)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the address names; raises InvalidUrl."""
        return ()

    @property
    def group(self) -> str:
        """The consumer group of the relays of a source; raises InvalidUrl."""
        return ""

    def source(self) -> Source:
        """Return the source; raises InvalidUrl."""
        raise NotImplementedError

    def sink(self, *, most_ms: int, once: Owner | None = None) -> Sink:
        """Return the sink; its broker may take up to ``most_ms``.

        With ``once`` it sends that owner's messages exactly once.
        """
        raise NotImplementedError

    @contextlib.contextmanager
    def _needed(self) -> Iterator[None]:
        try:
            yield
        except ImportError as error:
            raise InvalidUrl(
                f"url: {shown(self.url)!r:.80} needs pip install 'dwell[{self.extra}]': {error}"
            ) from None


class _KafkaEnd(End):
    extra = "kafka"
    has_once = True

    @property
    def topics(self) -> tuple[str, ...]:
        with self._needed():
            from dwell.relay.kafka.address import Address
        return Address.of(self.url).topics

    @property
    def group(self) -> str:
        with self._needed():
            from dwell.relay.kafka.address import Address
        return Address.of(self.url).group

    def source(self) -> Source:
        with self._needed():
            from dwell.relay.kafka.source import KafkaSource
        return KafkaSource(self.url)

    def sink(self, *, most_ms: int, once: Owner | None = None) -> Sink:
        with self._needed():
            from dwell.relay.kafka.once import OnceKafkaSink
            from dwell.relay.kafka.sink import KafkaSink
        if once is None:
            return KafkaSink(self.url, most_ms)
        return OnceKafkaSink(self.url, most_ms, once)


class _RabbitMQEnd(End):
    extra = "rabbitmq"

    @property
    def topics(self) -> tuple[str, ...]:
        with self._needed():
            from dwell.relay.rabbitmq.address import Address
        return Address.of(self.url).topics

    def source(self) -> Source:
        with self._needed():
            from dwell.relay.rabbitmq.source import RabbitMQSource
        return RabbitMQSource(self.url)

    def sink(self, *, most_ms: int, once: Owner | None = None) -> Sink:
        with self._needed():
            from dwell.relay.rabbitmq.sink import RabbitMQSink
        return RabbitMQSink(self.url, most_ms)


class _OutboxEnd(End):
    """An outbox, which is only read: applications write its rows."""

    extra = "outbox"

    def source(self) -> Source:
        with self._needed():
            from dwell.relay.outbox.place import source_at
        return source_at(self.url)

    def sink(self, *, most_ms: int, once: Owner | None = None) -> Sink:
        raise InvalidSettings("--to: got an outbox, expected a broker; an outbox is only read")


#: The kinds by the start of an address; the part after a plus is the database.
_KINDS: dict[str, type[End]] = {
    "kafka": _KafkaEnd,
    "amqp": _RabbitMQEnd,
    "amqps": _RabbitMQEnd,
    "outbox": _OutboxEnd,
}
