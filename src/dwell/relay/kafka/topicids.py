"""The ids that Kafka gives to topics, as a part of the ids of their records.

Topic, partition and offset alone name a record of another cluster as well, and one of a topic that
was deleted and made anew; such a record would be taken for a repetition, and be gone.
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

#: What stands before the topic's id; no topic's name has it.
MARK = "@"
#: As long as two topics of one name are hardly ever alike in it.
_LENGTH = 8
_PLACE = re.compile(rb"([A-Za-z0-9._-]+)-[0-9]+-[0-9]+")


class TopicIds:
    """The ids of the topics that a source reads, as the broker last told them."""

    def __init__(self, address: Address, ask_s: float = 10.0) -> None:
        self._address = address
        self._ask_s = ask_s
        self._admin: AdminClient | None = None
        self._marks: dict[str, str] = {}

    def learn(self, topics: Collection[str]) -> None:
        """Ask for those that are not known; raises BrokerUnreachable."""
        new = [topic for topic in topics if topic not in self._marks]
        self.refresh(new, self._ask_s)
        for topic in new:
            if topic not in self._marks:
                # An id of its own, as its records are no repetitions of any others.
                _log.warning("kafka: topic %s: was deleted before its id was read", topic)
                self._marks[topic] = f"{MARK}{uuid.uuid4().hex[:_LENGTH]}"

    def refresh(self, topics: Collection[str], ask_s: float) -> None:
        """Ask for the ids of some topics, for so long; raises BrokerUnreachable.

        A topic that is not there keeps the id that it had.
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
            # A client whose controller is gone waits for it and for no other.
            self._admin = None
            raise BrokerUnreachable(f"kafka: ids of topics: {reason(error)}") from None

    def forget(self, topics: Collection[str]) -> None:
        """Ask again for some before the next of their records."""
        for topic in topics:
            self._marks.pop(topic, None)

    def known(self, topic: str) -> str | None:
        """Return the mark of a topic, or None before the broker has told its id."""
        return self._marks.get(topic)

    def mark(self, topic: str) -> str:
        """Return what is added to the ids of a topic's records."""
        return self._marks[topic]

    def cancelling(self, headers: Headers) -> Headers:
        """Return headers with the whole id that a cancel by topic, partition and offset may mean.

        What it says stays, as it may be an id of somebody's own that looks like a place.
        """
        places = [
            (CANCEL_PLACE, value + mark.encode())
            for name, value in headers
            if name == CANCEL and value and (place := _PLACE.fullmatch(value))
            if (mark := self._marks.get(place[1].decode()))
        ]
        return [*headers, *places] if places else headers
