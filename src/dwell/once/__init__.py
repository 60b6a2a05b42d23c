"""Effects that count once, though a message may be delivered twice.

::

    with once(message, connection) as is_first:
        if is_first:
            connection.execute("UPDATE accounts SET balance = balance - 30 WHERE id = 17")

:func:`once` keeps a mark in the user's own database, in the transaction of the effect;
:func:`once_on_redis` keeps it in a Redis, for effects without a transaction.
"""

from dwell.once.marks import TransactionLost, create_table, forget, once
from dwell.once.tokens import StillRunning, once_on_redis

__all__ = ["StillRunning", "TransactionLost", "create_table", "forget", "once", "once_on_redis"]
