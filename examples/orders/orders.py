"""Orders that are paid or closed, and never both. What is not paid in time is closed."""

import contextlib
import sqlite3
import time

import dwell

TOPIC = "unpaid"
TABLE = """CREATE TABLE IF NOT EXISTS orders (
    id TEXT PRIMARY KEY, state TEXT NOT NULL, due_ms INTEGER NOT NULL, is_put INTEGER NOT NULL)"""


def connect(path: str = "shop.db") -> sqlite3.Connection:
    """Open the database."""
    db = sqlite3.connect(path, timeout=30)
    with db:
        db.execute(TABLE)
    return db


def place(
    db: sqlite3.Connection, queue: dwell.SyncQueue, order: str, minutes: float = 30.0
) -> None:
    """Take an order: after so many minutes somebody looks whether it was paid."""
    due_ms = time.time_ns() // 1_000_000 + round(minutes * 60_000)
    with db:
        db.execute("INSERT OR IGNORE INTO orders VALUES (?, 'open', ?, 0)", (order, due_ms))
    # What cannot be put now, because the server is away, the sweep puts later.
    with contextlib.suppress(dwell.StoreError):
        sweep(db, queue)


def sweep(db: sqlite3.Connection, queue: dwell.SyncQueue) -> None:
    """Put what the database owes the queue: at once, at the start, and every minute."""
    owed = db.execute(
        "SELECT id, due_ms FROM orders WHERE state = 'open' AND NOT is_put LIMIT 1000"
    ).fetchall()
    if owed:
        ids, dues_ms = zip(*owed, strict=True)
        queue.put_many(TOPIC, [""] * len(ids), ids=ids, due=dues_ms)
        with db:
            db.executemany("UPDATE orders SET is_put = 1 WHERE id = ?", [(id_,) for id_ in ids])


def pay(db: sqlite3.Connection, queue: dwell.SyncQueue, order: str) -> bool:
    """Tell whether the order is paid; repeated, it answers the same."""
    with db:
        sql = "UPDATE orders SET state = 'paid' WHERE id = ? AND state = 'open'"
        db.execute(sql, (order,))
        row = db.execute("SELECT state FROM orders WHERE id = ?", (order,)).fetchone()
    is_paid: bool = row == ("paid",)
    if is_paid:
        # Nobody has to look any more. If this is lost, somebody looks and finds it paid.
        with contextlib.suppress(dwell.StoreError):
            queue.cancel(TOPIC, order)
    return is_paid


def close(db: sqlite3.Connection, order: str) -> bool:
    """Tell whether the order is closed: it was open, and nobody can pay it from now on."""
    with db:
        # What closing brings with it, such as goods that are free again, belongs in here, too.
        sql = "UPDATE orders SET state = 'closed' WHERE id = ? AND state = 'open'"
        return db.execute(sql, (order,)).rowcount == 1
