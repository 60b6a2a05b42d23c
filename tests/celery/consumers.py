"""What tests of channels publish, consume and count with."""

from dwell.batch.stats import TopicStats
from dwell.celery.names import topic_of
from tests.waiting import until


class Consumer:
    """Consumes from queues, and keeps what it gets."""

    def __init__(self, connection, *queues, no_ack=False, prefetch=0, acks=0):
        self.connection = connection
        self.messages = []
        self._acks = acks
        self.consumer = connection.Consumer(
            list(queues),
            callbacks=[self._get],
            no_ack=no_ack,
            prefetch_count=prefetch,
        )
        self.consumer.consume()

    def _get(self, body, message):
        self.messages.append(message)
        if len(self.messages) <= self._acks:
            message.ack()

    def drain(self, seconds=0.2):
        """Take what comes until nothing came for so long; return the bodies so far."""
        try:
            while True:
                self.connection.drain_events(timeout=seconds)
        except TimeoutError:
            return self.bodies

    def until(self, count):
        """Wait for so many messages; return their bodies."""
        until(lambda: len(self.drain(0.01)) >= count)
        return self.bodies

    @property
    def bodies(self):
        return [message.payload for message in self.messages]


def publish(connection, queue, *bodies, **words):
    producer = connection.Producer()
    for body in bodies:
        producer.publish(body, routing_key=queue.name, declare=[queue], **words)


def counts(store, queue):
    found = store("stats").topics.get(topic_of(queue.name), TopicStats())
    return found.delayed, found.ready, found.leased, found.dead
