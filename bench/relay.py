"""A broker's messages held by a relay until they are due: how many a second, and how late.

``--broker kafka`` compares with a loop of the client that only copies; ``--broker rabbitmq`` also
with RabbitMQ's own delay, a queue whose messages expire into another.
"""

from bench import relay_kafka, relay_rabbitmq
from bench.result import Result

#: RabbitMQ moves about a tenth of what Kafka does.
_RABBITMQ_PART = 10


def run(*, broker: str, messages: int, rate: int, seconds: int, once: str, rounds: int) -> Result:
    """Measure one broker; for RabbitMQ a tenth of the messages and of the rate."""
    if broker == "rabbitmq":
        messages, rate = messages // _RABBITMQ_PART, rate // _RABBITMQ_PART
    elif broker != "kafka":
        raise SystemExit(f"broker: got {broker!r}, expected kafka or rabbitmq")
    params = {"broker": broker, "messages": messages, "rate": rate, "seconds": seconds}
    result = Result("relay", params | {"once": once, "rounds": rounds, "body_bytes": 200}, _UNIT)
    if broker == "rabbitmq":
        relay_rabbitmq.measure(result, messages=messages, rate=rate, seconds=seconds, rounds=rounds)
    else:
        relay_kafka.measure(
            result, messages=messages, rate=rate, seconds=seconds, once=once, rounds=rounds
        )
    return result


_UNIT = "messages/s"
