"""Notes: the log lines of requests, written once they have their answers."""

import asyncio

from dwell.server.http.call import Call
from dwell.server.service import Service


class Notes:
    """Writes an access line for each request, and an audit line for each audited one."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def is_on(self) -> bool:
        """Whether anything is noted."""
        return self._service.access is not None or self._service.audit is not None

    def note(
        self,
        transport: asyncio.Transport,
        method: str,
        call: Call | None,
        status: int,
        out_bytes: int,
        took_s: float,
    ) -> None:
        """Log a request; it has no call if it was malformed or no endpoint matched."""
        path = "" if call is None else call.endpoint.path.replace(":path", "")
        token = "" if call is None else call.token
        who = {"port": "http", "peer": peer_of(transport), "token": token}
        if self._service.access is not None:
            in_bytes = 0 if call is None else call.size_bytes
            self._service.access.write(
                {
                    **who,
                    "method": method,
                    "path": path,
                    "status": status,
                    "in_bytes": in_bytes,
                    "out_bytes": out_bytes,
                    "ms": round(1000 * took_s, 1),
                }
            )
        if self._service.audit is not None and call is not None and call.is_audited:
            line = {**who, "endpoint": f"{method} {path}", "status": status}
            self._service.audit.write({**line, **call.path, **call.change})


def peer_of(transport: asyncio.Transport) -> str:
    """Return the address of the other end; empty over a socket in the file system."""
    name = transport.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else ""
