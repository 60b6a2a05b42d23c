"""The channels of wakes between instances of one Redis."""

from redis import exceptions

from dwell.store.redis import wakes
from dwell.store.redis.wakes import Wakes
from tests.waiting import until_async


class Engine:
    """Each subscription fails, but every fifth is answered first."""

    name = "here"

    def __init__(self):
        self.count = 0

    def subscription(self):
        self.count += 1
        return Subscription(is_answered=self.count % 5 == 0)


class Subscription:
    def __init__(self, is_answered):
        self.is_answered = is_answered

    async def subscribe(self, *channels):
        pass

    async def get_message(self, timeout):
        if not self.is_answered:
            raise exceptions.ConnectionError("it is away")
        self.is_answered = False
        return {"type": "subscribe"}

    async def aclose(self):
        pass


async def test_a_broken_channel_is_told_once_each_time(caplog, monkeypatch):
    monkeypatch.setattr(wakes, "_PAUSE_S", 0)
    engine = Engine()
    some = Wakes(engine, {b"channel": 0}, lambda *told: None)
    some.start()
    await until_async(lambda: engine.count >= 12)
    await some.stop()
    told = caplog.text.count("the channel of wakes is broken")
    # The last that was answered may not have failed yet.
    assert told - engine.count // 5 in (0, 1)
