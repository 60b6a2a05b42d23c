"""The shop: orders are placed and paid over HTTP."""

import contextlib
import os
import sqlite3
import uuid
from collections.abc import AsyncIterator

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

import dwell
import orders

URL = os.environ.get("DWELL_STORE", "http://127.0.0.1:8410")
#: How long somebody may take to pay.
MINUTES = float(os.environ.get("SHOP_MINUTES", "30"))


class Order(BaseModel):
    """What is told of an order."""

    id: str
    state: str
    due_ms: int


@contextlib.asynccontextmanager
async def opened(app: FastAPI) -> AsyncIterator[None]:
    """Keep one queue open for as long as the shop is: any thread may call it."""
    with dwell.open(URL) as app.state.queue:
        yield


app = FastAPI(title="Orders", lifespan=opened)


def found(db: sqlite3.Connection, order: str) -> Order:
    """Return an order as it stands."""
    sql = "SELECT id, state, due_ms FROM orders WHERE id = ?"
    row = db.execute(sql, (order,)).fetchone()
    if row is None:
        raise HTTPException(404, "there is no such order")
    return Order(id=row[0], state=row[1], due_ms=row[2])


@app.post("/orders", status_code=201)
def place() -> Order:
    """Take an order."""
    order = uuid.uuid4().hex
    with contextlib.closing(orders.connect()) as db:
        orders.place(db, app.state.queue, order, MINUTES)
        return found(db, order)


@app.post("/orders/{order}/pay")
def pay(order: str) -> Order:
    """Pay an order; 409 if it is closed."""
    with contextlib.closing(orders.connect()) as db:
        is_paid = orders.pay(db, app.state.queue, order)
        answer = found(db, order)
    if not is_paid:
        raise HTTPException(409, "the order is closed")
    return answer


@app.get("/orders/{order}")
def look(order: str) -> Order:
    """Return an order as it stands."""
    with contextlib.closing(orders.connect()) as db:
        return found(db, order)
