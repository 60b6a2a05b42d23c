"""The ids that Kafka gives to topics, as a part of the ids of their records.

Topic, partition and offset alone also name a record of another cluster, or of a topic that was
deleted and made again; such a record would be taken for a repetition, and be lost.
"""

import logging
import re
import uuid
from collections.abc import Collection
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from dwell.relay.contract import BrokerUnreachable
from dwell.relay.kafka.address import Address
from dwell.relay.kafka.words import reason, told
from dwell.relay.record import Headers
from dwell.relay.rules import CANCEL, CANCEL_PLACE

_log = logging.getLogger(__name__)

#: Stands before the topic's id; no topic's name contains it.
MARK = "@"
#: Long enough that two topics of one name hardly ever share it.
_LENGTH = 8
_PLACE = re.compile(rb"([A-Za-z0-9._-]+)-[0-9]+-[0-9]+")


class TopicIds:
    """The ids of the topics that a source reads, from the last answer of the broker."""

    def __init__(self, address: Address, ask_s: float = 10.0) -> None:
        self._address = address
        self._ask_s = ask_s
        self._admin: AdminClient | None = None
        self._marks: dict[str, str] = {}

    def learn(self, topics: Collection[str]) -> None:
        """Ask the broker for unknown ids; raises BrokerUnreachable."""
        new = [topic for topic in topics if topic not in self._marks]
        self.refresh(new, self._ask_s)
        for topic in new:
            if topic not in self._marks:
                # It gets a unique id, because its records repeat no others.
                _log.warning("kafka: topic %s: was deleted before its id was read", topic)
                self._marks[topic] = f"{MARK}{uuid.uuid4().hex[:_LENGTH]}"

    def refresh(self, topics: Collection[str], ask_s: float) -> None:
        """Ask for the ids of some topics, within a time; raises BrokerUnreachable.

        A missing topic keeps its last id.
        """
        if not topics:
            return
        options: dict[str, Any] = self._address.options | {"logger": _log}
        try:
            if self._admin is None:
                self._admin = AdminClient(options)
            asked = self._admin.describe_topics(
                TopicCollection(list(topics)), request_timeout=ask_s
            )
            for topic, answer in asked.items():
                try:
                    id_ = str(told(answer, ask_s).topic_id)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
                else:
                    self._marks[topic] = f"{MARK}{id_[:_LENGTH]}"
        except KafkaException as error:
            # A client whose controller is gone waits for that controller only.
            self._admin = None
            raise BrokerUnreachable(f"kafka: ids of topics: {reason(error)}") from None

    def forget(self, topics: Collection[str]) -> None:
        """Ask again for some topics before their next record."""
        for topic in topics:
            self._marks.pop(topic, None)

    def known(self, topic: str) -> str | None:
        """Return the mark of a topic, or None before the broker has told its id."""
        return self._marks.get(topic)

    def mark(self, topic: str) -> str:
        """Return the suffix for the ids of a topic's records."""
        return self._marks[topic]

    def cancelling(self, headers: Headers) -> Headers:
        """Return headers with the whole id that a cancel by topic, partition and offset may mean.

        The given id stays, because it may be a caller's own id that looks like a place.
        """
        places = [
            (CANCEL_PLACE, value + mark.encode())
            for name, value in headers
            if name == CANCEL and value and (place := _PLACE.fullmatch(value))
            if (mark := self._marks.get(place[1].decode()))
        ]
        return [*headers, *places] if places else headers
