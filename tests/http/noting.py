"""What a client asks of a server, noted."""

import pytest

from dwell.client.connection import Connection


def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by the last word of each path that clients ask for."""
    asked: list[str] = []
    call = Connection.call

    async def noting(self, method, path, *args, **options):
        asked.append(path.rpartition("/")[2])
        return await call(self, method, path, *args, **options)

    monkeypatch.setattr(Connection, "call", noting)
    return asked
