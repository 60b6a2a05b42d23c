"""The table of an outbox: a row is a message that is on its way into the queue.

Times are epoch milliseconds. ``seq`` is the order of insertion. No number is given out twice, as
a relay deletes by it: on SQLite that takes AUTOINCREMENT. All but ``id``, ``topic``, ``body`` and
``due_ms`` have defaults, so that other languages can write rows, too. ``headers`` is a JSON object
of texts.
"""

import re

from sqlalchemy import BigInteger, Column, Identity, Integer, LargeBinary, MetaData, Table, Text

from dwell.errors import InvalidSettings
from dwell.message import DEFAULT_PRIORITY

#: What the table is called where nobody says it.
NAME = "dwell_outbox"

# Names stand in SQL, in addresses and in the names of notices, of which PostgreSQL takes 63 bytes.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def name_of(name: object, field: str = "table") -> str:
    """Return the name of a table or a schema as it is; raises InvalidSettings."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise InvalidSettings(
        f"{field}: got {name!r:.80}, expected 1-63 of A-Z a-z 0-9 _, and no digit first"
    )


def table_of(name: str, metadata: MetaData, schema: str | None = None) -> Table:
    """Return the table, as a part of an application's metadata; raises InvalidSettings."""
    return Table(
        name_of(name),
        metadata,
        Column("seq", BigInteger().with_variant(Integer, "sqlite"), Identity(), primary_key=True),
        Column("id", Text, nullable=False),
        Column("topic", Text, nullable=False),
        Column("body", LargeBinary, nullable=False),
        Column("due_ms", BigInteger, nullable=False),
        Column("priority", BigInteger, nullable=False, server_default=str(DEFAULT_PRIORITY)),
        Column("lease_ms", BigInteger, nullable=False, server_default="0"),
        Column("max_attempts", Integer, nullable=False, server_default="0"),
        Column("expires_ms", BigInteger, nullable=False, server_default="0"),
        Column("key", Text),
        Column("headers", Text),
        schema=None if schema is None else name_of(schema, "schema"),
        sqlite_autoincrement=True,
    )
