"""Connections to RabbitMQ that are lost without a reason: the client fails calls by Exception."""

import asyncio
import contextlib
import logging

import aio_pika
import pytest

from dwell.relay.contract import BrokerUnreachable
from dwell.relay.rabbitmq.connection import Connection, calling
from dwell.relay.rabbitmq.sink import RabbitMQSink
from dwell.relay.rabbitmq.source import RabbitMQSource
from dwell.relay.record import Record
from tests.waiting import until_async


def lose(channel):
    """Fail each further call of a channel, as the client does before it tells that it is closed."""
    channel._Base__future_store.reject_reason = None


async def read(source, count):
    found = []

    async def are_read():
        with contextlib.suppress(BrokerUnreachable):
            found.extend(await source.read(10))
        return len(found) >= count

    await until_async(are_read)
    return found


@pytest.fixture
def lost(monkeypatch):
    """Lose each channel once it is open."""
    opened = Connection.channel

    async def channel(self):
        lose(found := await opened(self))
        return found

    monkeypatch.setattr(Connection, "channel", channel)


def test_messages_come_again_when_their_ack_is_lost(queues, caplog):
    mine = queues()
    mine.say_all([(b"%d" % at, None) for at in range(4)])

    async def go():
        source = RabbitMQSource(mine.source)
        try:
            records = await read(source, 4)
            lose(channel := await source._connection.channel())
            with caplog.at_level(logging.WARNING, "dwell"):
                await source.done(records)
            await channel.connection.close()
            again = await read(source, 4)
            assert sorted(one.body for one in again) == [b"0", b"1", b"2", b"3"]
        finally:
            await source.close()

    asyncio.run(go())
    assert "the connection was lost" in caplog.text


@pytest.mark.parametrize("call", ["count", "refuse_stream"])
def test_a_question_without_an_answer_is_told_as_a_broker_that_is_away(queues, lost, call):
    mine = queues()

    async def go():
        with pytest.raises(BrokerUnreachable, match="the connection was lost"):
            await getattr(RabbitMQSource(mine.source), call)()

    asyncio.run(go())


def test_a_consumer_that_cannot_begin_is_told_as_a_broker_that_is_away(queues, lost):
    mine = queues()

    async def go():
        source = RabbitMQSource(mine.source)
        source._is_queue = True
        with pytest.raises(BrokerUnreachable, match="the connection was lost"):
            await source.read(1)

    asyncio.run(go())


def test_a_message_whose_confirm_is_lost_is_sent_again(queues):
    mine = queues()

    async def go():
        sink = RabbitMQSink(mine.sink, 10_000)
        try:
            lose(await sink._connection.channel())
            (refusal,) = await sink.send([Record(mine.goes, "1", b"a")])
        finally:
            await sink.close()
        return refusal

    refusal = asyncio.run(go())
    assert (refusal.reason, refusal.is_final) == ("the connection was lost", False)


def test_a_connection_that_is_lost_as_it_begins_is_told(queues, monkeypatch):
    mine = queues()

    async def connect(url):
        raise Exception

    monkeypatch.setattr(aio_pika, "connect", connect)
    with pytest.raises(BrokerUnreachable, match="the connection was lost"):
        asyncio.run(RabbitMQSource(mine.source).count())


def test_errors_of_other_types_are_no_lost_connection():
    async def go():
        async with calling():
            raise LookupError("a fault of this code")

    with pytest.raises(LookupError, match="a fault of this code"):
        asyncio.run(go())
