"""Addresses of outboxes: ``outbox+postgresql://user@host/db?table=NAME``, ``outbox+sqlite:///x.db``.

The part after ``outbox+`` is SQLAlchemy's name of the database, with a driver's name or without.
"""

from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from dwell.errors import InvalidUrl
from dwell.outbox.table import NAME, name_of
from dwell.urls import shown

PREFIX = "outbox+"
_OURS = ("table", "schema")
_FORMS = (
    "outbox+postgresql://USER@HOST:PORT/DATABASE[?table=NAME&schema=NAME&OPTION=VALUE] "
    "or outbox+sqlite:///FILE[?table=NAME]"
)


@dataclass(frozen=True)
class Address:
    """The place of an outbox: a file for SQLite, a connection string for PostgreSQL."""

    kind: str
    database: str
    table: str = NAME
    schema: str | None = None

    @classmethod
    def of(cls, url: str) -> "Address":
        """Read an address; raises InvalidUrl or InvalidSettings."""
        parts = urlsplit(url.removeprefix(PREFIX))
        kind = parts.scheme.partition("+")[0]
        said = dict(parse_qsl(parts.query, keep_blank_values=True))
        options = {name: value for name, value in said.items() if name not in _OURS}
        if kind == "sqlite" and not parts.netloc and len(parts.path) > 1 and not options:
            database = unquote(parts.path[1:])
        elif kind == "postgresql":
            database = f"postgresql://{parts.netloc}{parts.path}"
            # PostgreSQL's own programs take a plus sign literally.
            database += f"?{urlencode(options, quote_via=quote)}" if options else ""
        else:
            raise InvalidUrl(f"--from: got {shown(url)!r:.120}, expected {_FORMS}")
        schema = said.get("schema")
        if schema is not None:
            name_of(schema, "schema")
        return cls(kind, database, name_of(said.get("table", NAME)), schema)
