"""The tests that kombu has for all transports, over a server, a Redis and memory."""

import importlib.util
import warnings

import kombu
import pytest
from kombu.transport.virtual.base import UndeliverableWarning

import dwell.celery
from tests.celery.brokers import emptied
from tools.rooms import ROOT

_COMMON = ROOT / ".brokers/kombu/t/integration/common.py"
#: A port on which nobody listens.
_NOBODY = f"{dwell.celery.SCHEME}+http://127.0.0.1:1"


def _loaded():
    spec = importlib.util.spec_from_file_location("kombu_common", _COMMON)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common = _loaded()
pytestmark = pytest.mark.campaign


@pytest.fixture(params=["server", "redis", "memory"])
def connection(request):
    url = f"dwell+{emptied(request)}"
    with warnings.catch_warnings():
        # A message that no queue is bound for is warned of.
        warnings.simplefilter("ignore", UndeliverableWarning)
        yield kombu.Connection(url)


@pytest.fixture
def invalid_connection():
    return kombu.Connection(_NOBODY, transport_options={"store": {"retries": 0}})


class TestBasicFunctionality(common.BasicFunctionality):
    pass


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestTimeToLive(common.BaseTimeToLive):
    pass


class TestPriority(common.BasePriority):
    # These two expect that one call delivers several messages.
    test_publish_consume = test_publish_requeue_consume = None


class TestMessage(common.BaseMessage):
    pass


class TestEventLoop(common.BaseEventLoop):
    pass
