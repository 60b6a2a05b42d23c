"""The OpenAPI document is true: generated requests get only answers that it names.

``DWELL_FUZZ`` says how many requests to try in all; with it they are other ones each time.
"""

import asyncio
import os
import threading

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS, load_all_checks

from dwell.clock import RealClock
from dwell.server.http.openapi import document
from dwell.store.memory import MemoryStore
from tests.http.served import Served

FUZZ = int(os.environ.get("DWELL_FUZZ", "0"))

load_all_checks()

#: Verbs that never end, or that a store in memory cannot do.
_LEFT_OUT = ["push", "backup"]


class _Thread(threading.Thread):
    """A server in a thread of its own, so that plain clients can ask it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.is_up = threading.Event()

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        served = Served(MemoryStore(RealClock()))
        await served.start()
        self.url = served.url
        self.is_up.set()
        await self._end.wait()
        await served.stop()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self.join()


@pytest.fixture(scope="module")
def url():
    thread = _Thread()
    thread.start()
    assert thread.is_up.wait(10)
    yield thread.url
    thread.stop()


#: Which ways to say a thing exclude each other, and how long a text is in bytes, are not something
#: that a JSON schema says; so some requests that fit the schemas are refused.
_NOT_CHECKED = [CHECKS.get_one("positive_data_acceptance")]

schema = schemathesis.openapi.from_dict(document()).exclude(operation_id=_LEFT_OUT)
# Its cases at each bound are made while tests are collected, by every program that runs some.
schema.config.phases.coverage.enabled = bool(FUZZ)


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore:Skipped test cases with unsupported payload")
@schema.parametrize()
@settings(
    max_examples=max(20, FUZZ // 1000),
    deadline=None,
    derandomize=not FUZZ,
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_those_of_the_document(case, url):
    case.call_and_validate(base_url=url, timeout=10, excluded_checks=_NOT_CHECKED)
