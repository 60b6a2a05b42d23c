"""The floor: a server that parses requests and answers fixed bytes, on the same loop and parser.

What it costs is what HTTP costs in Python whatever is behind it; no queue can be quicker.
"""

import asyncio
import sys
from typing import cast

import httptools
import uvloop

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_ANSWERS = {
    b"/v1/topics/single/messages": b'{"results":[{"id":"0","result":"created","number":1}]}',
    b"/v1/take": b'{"messages":[{"id":"0","body":"%b","receipt":"%b"}]}' % (b"x" * 100, b"0" * 32),
    b"/v1/ack": b'{"results":["acked"]}',
}
_WHOLE = {path: _HEAD % (len(body), body) for path, body in _ANSWERS.items()}


class _Floor(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """Note which answer is asked for."""
        self._url = url

    def on_message_complete(self) -> None:
        """Answer."""
        self._transport.write(_WHOLE[self._url])


async def _serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Floor, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
