"""A program that sends the tasks of shop.py, and looks at the store behind."""

import contextlib

from celery import Celery
from kombu import pools

import dwell
import dwell.celery

_MODULE = "tests.celery.shop"


class Client:
    """An app of its own over a broker and the results of a worker."""

    def __init__(self, worker, results=""):
        self.app = Celery("client", broker=worker.environment["SHOP_BROKER"])
        self.app.conf.result_backend = results or worker.environment["SHOP_RESULTS"]

    def task(self, name, *args, **options):
        """Return the signature of a task."""
        return self.app.signature(f"{_MODULE}.{name}", args, options, app=self.app)

    def send(self, name, *args, **options):
        """Send a task, and return its result to come."""
        return self.task(name, *args).apply_async(**options)

    def close(self):
        pools.reset()
        self.app.close()


@contextlib.contextmanager
def client_of(worker, results=""):
    client = Client(worker, results)
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def store_of(worker):
    """Open the store behind a worker."""
    with dwell.open(worker.environment["SHOP_BROKER"].removeprefix("dwell+")) as queue:
        yield queue


def counts(queue, topic="celery"):
    """Return how many messages a topic has: delayed, ready, leased and dead."""
    found = queue.stats().topics.get(topic)
    return (found.delayed, found.ready, found.leased, found.dead) if found else (0, 0, 0, 0)
