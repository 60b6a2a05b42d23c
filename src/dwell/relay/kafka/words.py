"""What errors of Kafka mean to a relay."""

from confluent_kafka import KafkaError, KafkaException

from dwell.relay.record import Refusal

#: What no second try will change, for this record.
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
#: What a broker says of a whole batch for the sake of one record in it.
_SHARED = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD}


#: How a question to a broker ends that is not answered: whoever waits may be told by either first.
UNANSWERED = (KafkaException, TimeoutError)


def reason(error: Exception) -> str:
    """Return what happened, in words."""
    if isinstance(error, TimeoutError):
        return "no broker answered in time"
    first = error.args[0] if error.args else error
    return first.str() if isinstance(first, KafkaError) else str(first)


def refusal(error: KafkaError) -> Refusal:
    """Return why a record was not written."""
    code = error.code()
    return Refusal(error.str(), code in _FINAL, code in _SHARED)
