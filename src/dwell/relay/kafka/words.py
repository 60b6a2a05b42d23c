"""The errors of Kafka and their meaning for a relay."""

from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from dwell.relay.record import Refusal

T = TypeVar("T")

#: Errors of a record that no second attempt can change.
_FINAL = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.INVALID_RECORD,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError._INVALID_ARG,
}
#: Errors of a broker for a whole batch because of one record in it.
_SHARED = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD}


def told(answer: "Future[T]", ask_s: float) -> T:
    """Return the broker's answer in time; raises KafkaException.

    The client has the same time limit, so either may end the wait first.
    """
    try:
        return answer.result(ask_s)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None


def reason(error: KafkaException) -> str:
    """Return the reason of an error as text."""
    first = error.args[0] if error.args else error
    return first.str() if isinstance(first, KafkaError) else str(first)


def refusal(error: KafkaError) -> Refusal:
    """Return why a record was not written."""
    code = error.code()
    return Refusal(error.str(), code in _FINAL, code in _SHARED)
