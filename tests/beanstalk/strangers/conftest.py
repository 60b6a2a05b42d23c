"""The servers that the strangers' programs run against: the real one, and ours."""

import pytest

from tests.beanstalk.served import Served, beanstalkd


@pytest.fixture(params=["beanstalkd", "dwell"])
def number(request):
    """The number of a server's port."""
    if request.param == "beanstalkd":
        with beanstalkd() as port:
            yield port
    else:
        with Served() as served:
            yield served.number
