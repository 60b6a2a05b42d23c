"""The same dialogues with the real beanstalkd and with ours: both say what is written there."""

import itertools

import pytest

from dwell.store.embedded.store import EmbeddedStore
from dwell.store.redis import RedisStore
from tests.beanstalk.player import Player, dialogues
from tests.beanstalk.served import Served, beanstalkd
from tests.redis.servers import redis_server

pytestmark = pytest.mark.campaign

_DIALOGUES = dialogues()
_tubes = itertools.count()


@pytest.fixture(scope="module")
def real():
    with beanstalkd() as number:
        yield number


@pytest.fixture(scope="module")
def memory():
    with Served() as served:
        yield served.number


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    with Served(lambda: EmbeddedStore(folder / "store")) as served:
        yield served.number


@pytest.fixture(scope="module")
def redis():
    with redis_server() as engine, Served(lambda: RedisStore(engine.url)) as served:
        yield served.number


@pytest.mark.parametrize("server", ["real", "memory", "embedded", "redis"])
@pytest.mark.parametrize("name", _DIALOGUES)
def test_both_servers_say_the_same(name, server, request):
    number = request.getfixturevalue(server)
    if server != "real":
        return _play(name, number)
    # On a busy machine beanstalkd does not always wake who waits when a TTR ends.
    for _ in range(3):
        try:
            return _play(name, number)
        except TimeoutError:
            pass
    return pytest.skip("beanstalkd said nothing, three times")


def _play(name, number):
    player = Player(number, f"tube{next(_tubes)}")
    for line, expected, came in player.play(_DIALOGUES[name]):
        assert came == expected, line
