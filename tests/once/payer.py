"""A worker that books payments, and kills itself at drawn moments.

``python -m tests.once.payer STORE DATABASE SEED``; it ends with 0 when nothing is left to do.
"""

import contextlib
import os
import random
import signal
import sqlite3
import sys

import psycopg

from dwell.once import once
from dwell.worker import Worker


def connected(database):
    """Return a connection to a PostgreSQL, or to a file of SQLite."""
    if database.startswith("postgresql:"):
        return psycopg.connect(database)
    return sqlite3.connect(database, timeout=60, check_same_thread=False)


def main(store, database, seed):
    draw = random.Random(int(seed))

    def maybe_die():
        if draw.random() < 0.15:
            os.kill(os.getpid(), signal.SIGKILL)

    worker = Worker(store)

    @worker.on("payments", concurrency=1, lease="200ms")
    def pay(message):
        with contextlib.closing(connected(database)) as connection:
            maybe_die()
            with once(message, connection) as is_first:
                if is_first:
                    cursor = connection.cursor()
                    cursor.execute("UPDATE accounts SET balance = balance + 1")
                    cursor.close()
                maybe_die()
            # The effect is there, and the message is not acked.
            maybe_die()

    worker.run(burst=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
