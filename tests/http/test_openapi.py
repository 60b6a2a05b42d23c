"""The OpenAPI document is true: generated requests get only answers that it names.

``DWELL_FUZZ`` says how many requests to try in all; with it they are other ones each time.
"""

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS, load_all_checks

from dwell.clock import RealClock
from dwell.server.http.openapi import document
from dwell.store.memory import MemoryStore
from tests.http.served import served_aside

FUZZ = int(os.environ.get("DWELL_FUZZ", "0"))

load_all_checks()

#: Verbs that never end, or that a store in memory cannot do.
_LEFT_OUT = ["push", "watch", "backup"]


@pytest.fixture(scope="module")
def url():
    with served_aside(lambda: MemoryStore(RealClock())) as url:
        yield url


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
    max_examples=max(10, FUZZ // 1000),
    deadline=None,
    derandomize=not FUZZ,
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_those_of_the_document(case, url):
    case.call_and_validate(base_url=url, timeout=10, excluded_checks=_NOT_CHECKED)
