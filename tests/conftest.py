"""What holds for all tests."""

import gc
import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, Phase, settings

# How long one drawn input takes says nothing on a busy machine, nor how long it took to draw it. In
# CI a commit is always tried with the same inputs; anywhere else each run draws others.
settings.register_profile(
    "dwell",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("dwell")
settings.register_profile("first", settings(), phases=[Phase.explicit, Phase.reuse, Phase.generate])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let nobody look for garbage among thousands of tests, which stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what tests log on purpose from ending the run: reports travel as UTF-8."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report
