"""The database for an address."""

from dwell.relay.outbox.address import Address
from dwell.relay.outbox.postgres import PostgresRows
from dwell.relay.outbox.source import OutboxSource, Rows
from dwell.relay.outbox.sqlite import SqliteRows


def source_at(url: str) -> OutboxSource:
    """Return the outbox at an address, as a source; raises InvalidUrl."""
    address = Address.of(url)
    rows: Rows = SqliteRows(address) if address.kind == "sqlite" else PostgresRows(address)
    return OutboxSource(address.table, rows)
