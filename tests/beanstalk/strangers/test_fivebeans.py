"""The own test suite of fivebeans, a client in Node: the same outcome as with beanstalkd."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.beanstalk.served import Served, beanstalkd
from tests.beanstalk.strangers.packages import modules_of

HERE = Path(__file__).parent / "fivebeans"


@pytest.fixture(scope="module")
def suite(request):
    """The folder of the package, which is fetched once and kept."""
    return modules_of(request.config, HERE / "package.json") / "fivebeans"


def outcome(suite: Path, number: int) -> dict[str, str]:
    """Return what became of each test of the suite against a server."""
    mocha = suite.parent / "mocha" / "bin" / "_mocha"
    command = ["node", str(mocha), "-r", str(HERE / "port.js"), "-t", "8000", "-R", "json", "test/"]
    env = {**os.environ, "BEANSTALK_PORT": str(number)}
    done = subprocess.run(command, cwd=suite, env=env, capture_output=True, text=True, timeout=120)
    report = json.loads(done.stdout[done.stdout.index("{\n") :])
    return {
        test["fullTitle"]: kind
        for kind in ("passes", "failures", "pending")
        for test in report[kind]
    }


@pytest.mark.campaign
def test_the_suite_of_fivebeans_has_the_same_outcome_as_with_beanstalkd(suite):
    with beanstalkd() as real, Served() as served, ThreadPoolExecutor() as pool:
        expected, found = pool.map(partial(outcome, suite), (real, served.number))
    assert found == expected
    # With a Node of today, one test of its own expects a number that it is not given any more.
    assert list(expected.values()).count("passes") >= 53
    assert list(expected.values()).count("failures") <= 1
