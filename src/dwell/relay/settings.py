"""The settings of a relay process, validated together."""

import msgspec

from dwell.errors import InvalidSettings
from dwell.given import values
from dwell.message import MAX_BATCH_MESSAGES

#: With a shorter lease, a slightly slow broker would get everything twice.
_LEAST_LEASE_MS = 3_000
_REMEMBER = "10m"


class RelaySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The source, the rules, and the sink.

    ``source`` and ``sink`` are addresses of brokers; None is the queue itself, which has ``topics``
    as a source. ``due``, ``delay`` and ``target`` are expressions of JMESPath over the body.
    ``hold`` is the topic of held records, and the prefix for the topics of lanes. With ``events``
    the sink gets the queue's own events, and nothing is held.
    """

    source: str | None
    sink: str | None
    topics: tuple[str, ...] = ()
    due: str | None = None
    delay: str | None = None
    default_delay: str | None = None
    target: str | None = None
    hold: str = "relay"
    dead: str = "relay-dead"
    exactly_once: bool = False
    events: bool = False
    remember: str = _REMEMBER
    lease: str = "30s"
    batch: int = 5_000
    http: str | None = None

    def __post_init__(self) -> None:
        """Refuse settings that do not go together; raises InvalidInput."""
        for name in ("hold", "dead"):
            values.topic(getattr(self, name))
        values.delay_ms(self.remember, "--remember")
        if values.lease_ms(self.lease, "--lease") < _LEAST_LEASE_MS:
            raise InvalidSettings(
                f"--lease: got {self.lease}, expected {_LEAST_LEASE_MS} ms or more"
            )
        if self.sink is None and self.remember != _REMEMBER:
            raise InvalidSettings(
                "--remember: is for --to; without it topics are those of workers, whose ids are "
                "known for as long as dwell settings TOPIC remember_ms=... says"
            )
        if self.default_delay is not None:
            values.delay_ms(self.default_delay, "--default-delay")
        if not 1 <= self.batch <= MAX_BATCH_MESSAGES:
            raise InvalidSettings(f"--batch: got {self.batch}, expected 1 to {MAX_BATCH_MESSAGES}")
        if self.source is None and self.sink is None:
            raise InvalidSettings("--from, --to: got neither, expected a broker in one or both")
        if self.events and (self.source is not None or self.topics or self.exactly_once):
            raise InvalidSettings("--events: goes with --to alone, without --from or --topic")
        if self.events and self.sink is None:
            raise InvalidSettings("--to: got none, expected the broker that is to get the events")
        if self.source is None and not self.topics and not self.events:
            raise InvalidSettings("--topic: got none, expected those that --to is to get")
        if self.source is not None and self.topics:
            raise InvalidSettings("--topic: got some, and --from; expected one of them")
        if self.exactly_once and (self.source is None or self.sink is None):
            raise InvalidSettings("--exactly-once: needs Kafka in --from and in --to")
