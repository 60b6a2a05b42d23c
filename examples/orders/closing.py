"""The worker: it closes what falls due, and puts what a process that was killed had not put."""

import os
import threading
import time

import dwell
import orders
from dwell.worker import Worker

URL = os.environ.get("DWELL_STORE", "http://127.0.0.1:8410")
worker = Worker(URL)


@worker.on(orders.TOPIC, concurrency=4)
def close(message: dwell.Message) -> None:
    """Close an order, if it is still open. The ack follows when this has returned."""
    db = orders.connect()
    try:
        print(message.id, "closed" if orders.close(db, message.id) else "stays", flush=True)
    finally:
        db.close()


def sweep_each(seconds: float) -> None:
    """Put what a process that was killed had not put."""
    db = orders.connect()
    while True:
        try:
            with dwell.open(URL) as queue:
                orders.sweep(db, queue)
        except dwell.StoreError as error:
            print("will be swept later:", error, flush=True)
        time.sleep(seconds)


if __name__ == "__main__":
    threading.Thread(target=sweep_each, args=[60], daemon=True).start()
    worker.run()
