"""A connection with one channel, and its errors as texts.

It connects on request only: the reader or sender knows when that is useful, and which of its
messages were lost with the last connection.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
from aio_pika.exceptions import AMQPError
from aiormq.exceptions import ProtocolSyntaxError

from dwell.relay.contract import BrokerUnreachable
from dwell.relay.rabbitmq.address import Address

#: The errors of a client when a broker is away or closes a channel or connection.
FAULTS = (AMQPError, OSError, TimeoutError, RuntimeError, asyncio.CancelledError)
#: The errors of a client that closes its connection because it cannot read what came.
_UNREADABLE = (ProtocolSyntaxError, ValueError, LookupError, ArithmeticError, RecursionError)

_CONNECT_S = 5.0
_CLOSE_S = 2.0


class Connection:
    """A connection to the broker of an address, with a single channel."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Any = None
        self._channel: Any = None
        #: The number of the channel: delivery tags are not valid on another.
        self.generation = 0

    @property
    def is_open(self) -> bool:
        """Tell whether the channel was open at the last check."""
        return self._channel is not None and not self._channel.is_closed

    @property
    def closed_because(self) -> str:
        """Why the broker closed the last channel; empty if it did not, or gave no reason."""
        error = self._end
        return "" if error is None else words(error)

    @property
    def could_not_read(self) -> bool:
        """Tell whether the client closed the last channel at what it cannot read."""
        return isinstance(self._end, _UNREADABLE)

    @property
    def _end(self) -> BaseException | None:
        """The error that closed the last channel, if any."""
        closing = None if self._channel is None else self._channel.closing
        if closing is None or not closing.done() or closing.cancelled():
            return None
        error: BaseException | None = closing.exception()
        return error

    async def channel(self) -> Any:
        """Return an open channel with publisher confirms; raises BrokerUnreachable."""
        if self.is_open:
            return self._channel
        try:
            if self._connection is None or self._connection.is_closed:
                await self.close()
                # The client logs at each attempt the error that it also raises.
                logging.getLogger("aiormq").setLevel(logging.CRITICAL)
                async with calling(_CONNECT_S):
                    self._connection = await aio_pika.connect(self._address.url)
            async with calling(_CONNECT_S):
                channel = await self._connection.channel(on_return_raises=True)
                self._channel = await channel.get_underlay_channel()
        except FAULTS as error:
            if _is_cancelled(error):
                raise
            await self.close()
            raise BrokerUnreachable(f"{self._address.name}: {words(error)}") from None
        self.generation += 1
        return self._channel

    def unreachable(self, error: BaseException) -> BrokerUnreachable:
        """Return the error to raise for an error of the channel."""
        return BrokerUnreachable(f"{self._address.name}: {words(error)}")

    async def close(self) -> None:
        """Close the connection, even if the broker does not answer."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(*FAULTS):
                async with calling(_CLOSE_S):
                    await connection.close()


@contextlib.asynccontextmanager
async def calling(most_s: float | None = None) -> AsyncIterator[None]:
    """Limit the time of calls of the client, and raise one of FAULTS if a connection is lost."""
    try:
        async with asyncio.timeout(most_s):
            yield
    except Exception as error:
        if (known := fault_of(error)) is error:
            raise
        raise known from None


def fault_of(error: BaseException) -> BaseException:
    """Return an error of the client; a ConnectionError for a plain Exception, without a subclass.

    With it the client fails calls in flight when a connection ends and it knows no reason.
    """
    return ConnectionError("the connection was lost") if type(error) is Exception else error


def words(error: BaseException) -> str:
    """Return the error as text; the client's errors contain no address."""
    if isinstance(error, TimeoutError):
        return "did not answer in time"
    told = ", ".join(str(one) for one in error.args if one is not None)
    return told or type(error).__name__


def _is_cancelled(error: BaseException) -> bool:
    """Tell whether this task is cancelled, and not the client's."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and bool(task and task.cancelling())
