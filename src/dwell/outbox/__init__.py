"""The outbox: messages that an application writes in the SQL transaction of its own rows.

::

    outbox = Outbox()
    outbox.create(engine)
    with engine.begin() as connection:
        connection.execute(orders.insert().values(id=7))
        outbox.put(connection, "unpaid", {"order": 7}, delay="30m")

``dwell relay --from outbox+postgresql://...`` moves them into the queue. It needs the extra
``outbox``.
"""

from dwell.outbox.outbox import Outbox
from dwell.outbox.table import NAME, table_of

__all__ = ["NAME", "Outbox", "table_of"]
