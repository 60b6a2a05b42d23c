"""The tests that Django has for its own backend which runs tasks, with ours in its place."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.django.sites import NEWER
from tools.rooms import ROOT

_SOURCE = ROOT / ".brokers/django/tests/tasks"
#: Those that say what that backend cannot do, and ours can.
_CANNOT = {"test_cannot_get_result", "test_cannot_refresh_result", "test_cannot_pass_run_after"}


@pytest.mark.skipif(not NEWER.exists(), reason="make setup has found no Python 3.12 or later")
def test_the_tests_of_a_backend_pass_as_far_as_they_apply(tmp_path):
    shutil.copytree(_SOURCE, tmp_path / "tasks")
    here = Path(__file__).parent
    for name in ("at_once.py", "reference.py"):
        shutil.copy(here / name, tmp_path)
    path = tmp_path / "tasks/test_immediate_backend.py"
    text = path.read_text()
    text = text.replace("django.tasks.backends.immediate.ImmediateBackend", "at_once.AtOnce")
    text = text.replace(
        "from django.tasks.backends.immediate import", "from at_once import AtOnce as"
    )
    path.write_text(text)
    done = subprocess.run(
        [NEWER, "reference.py", "tasks"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = done.stderr
    assert re.search(r"Ran \d\d+ tests", said), said
    assert set(re.findall(r"^(?:FAIL|ERROR): (\w+)", said, re.MULTILINE)) == _CANNOT, said
