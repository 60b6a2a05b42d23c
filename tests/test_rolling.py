"""A rolling upgrade from an older revision: nothing is lost, and no process has an error."""

import subprocess

import pytest

from tools.rolling.upgrade import run
from tools.rooms import ROOT

#: The oldest revision from which processes can be replaced one by one.
OLDEST = "db5e3a72"


@pytest.mark.campaign
@pytest.mark.parametrize("store", ["http", "redis"])
def test_processes_of_two_revisions_work_together(store):
    git = ["git", "-C", str(ROOT), "cat-file", "-e", f"{OLDEST}^{{commit}}"]
    if subprocess.run(git, capture_output=True, check=False).returncode:
        pytest.skip(f"this checkout has no revision {OLDEST}")
    found = run(OLDEST, store)
    assert found.errors == []
    assert (found.lost, found.accepted > 200) == (0, True)
