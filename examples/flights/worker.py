"""The worker: it sends the reminders that are due. ``python -m examples.flights.worker URL``."""

import logging
import sys
import zlib

import dwell
from dwell.worker import Bury, Worker
from examples.flights.plan import FAILS, FAILS_EVERY, NO_ADDRESS, NO_ADDRESS_EVERY, TOPIC

_FAILURE = "mail server said 421"
_HANDLERS = 512


async def send(message: dwell.Message) -> None:
    """Send one reminder, as a handler does: it may fail now, or for good."""
    code = zlib.crc32(message.id.encode())
    if code % NO_ADDRESS_EVERY == NO_ADDRESS:
        raise Bury("no address to send to")
    # The failure counts once the server knows of it; what it does not know, happens again.
    if code % FAILS_EVERY == FAILS and _FAILURE not in (message.last_error or ""):
        raise ConnectionError(_FAILURE)


def main(url: str) -> None:
    """Send until told to stop; a server that is away for a while is asked again and again."""
    # Every handler that fails is logged with its traceback; here hundreds fail by design.
    logging.getLogger("dwell.worker").setLevel(logging.CRITICAL)
    worker = Worker(url, owner="reminders")
    worker.on(TOPIC, concurrency=_HANDLERS, lease="2s", retry="200ms")(send)
    worker.run()


if __name__ == "__main__":
    main(sys.argv[1])
