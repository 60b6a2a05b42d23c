"""The soak of the benchmarks, for seconds instead of minutes, so that it cannot rot."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.campaign


def test_a_short_soak_balances_its_books():
    command = [sys.executable, "-m", "bench.soak", "--seed", "1", "--every", "2"]
    done = subprocess.run(
        [*command, "--minutes", "0.08", "--connections", "60", "--rate", "600"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    assert done.stdout.count("ok    ") == 8
