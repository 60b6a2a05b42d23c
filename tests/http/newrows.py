"""New messages of a body, read outside of an event loop."""

import asyncio

from dwell.server.http.newrows import rows_in_turns


def rows_of(data, form):
    """Return the messages of a body; raises as the server does."""
    return asyncio.run(rows_in_turns(data, form))
