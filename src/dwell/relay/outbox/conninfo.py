"""Addresses of PostgreSQL, as its own programs take them."""

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from dwell.errors import InvalidUrl


def parameters_of(url: str, field: str = "from") -> dict[str, Any]:
    """Return the parameters in an address; raises InvalidUrl, with nothing of a password."""
    try:
        found = conninfo_to_dict(url)
    except psycopg.Error:
        # The driver's text may show a part of a password.
        raise InvalidUrl(f"{field}: is no address that PostgreSQL's own programs take") from None
    # The name of an abstract socket begins with one.
    if "@" in str(found.get("host", ""))[1:]:
        # A password with one ends there, so the rest of it is in the host.
        raise InvalidUrl(f"{field}: got a host with @, expected %40 for each @ in a password")
    return found
