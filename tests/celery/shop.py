"""An app of Celery whose tasks note what they do, for workers that are processes."""

import os
import time
from pathlib import Path

from celery import Celery
from celery.exceptions import Reject

import dwell.celery  # noqa: F401 - the scheme of the URL

app = Celery("shop", broker=os.environ.get("SHOP_BROKER", "dwell+memory://"))
app.conf.update(
    result_backend=os.environ.get("SHOP_RESULTS", "cache+memory://"),
    broker_transport_options={"lease": os.environ.get("SHOP_LEASE", "60s")},
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=int(os.environ.get("SHOP_PREFETCH", "4")),
)


def note(*words):
    """Append a line to the notes: one write, so that processes do not mix."""
    with Path(os.environ["SHOP_NOTES"]).open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


@app.task
def add(x, y):
    return x + y


@app.task
def total(values):
    return sum(values)


@app.task
def noted(name):
    note(name, time.time())


@app.task(bind=True, acks_late=True)
def late(self, name, seconds):
    note("begins", name, self.request.delivery_info["redelivered"])
    time.sleep(seconds)
    note("ends", name)


@app.task(bind=True, max_retries=5)
def retried(self, late_ack=False):
    if self.request.retries < 3:
        raise self.retry(countdown=0.1)
    return self.request.retries


@app.task(bind=True, acks_late=True, max_retries=5)
def retried_late(self):
    if self.request.retries < 3:
        raise self.retry(countdown=0.1)
    return self.request.retries


@app.task(acks_late=True)
def refused():
    raise Reject("no", requeue=False)


@app.task(bind=True, acks_late=True)
def refused_once(self):
    if not self.request.delivery_info["redelivered"]:
        raise Reject("not yet", requeue=True)
    return "done"


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def dies_once(self):
    if not self.request.delivery_info["redelivered"]:
        os._exit(1)
    return "done"


@app.task(bind=True)
def replaced(self):
    raise self.replace(add.si(20, 22))
