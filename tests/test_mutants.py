"""The known defects can be brought back: each is a change of the code as it stands now."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_each_applies():
    found = sorted((ROOT / "tests" / "mutants").glob("*.patch"))
    assert len(found) >= 25
    stale = [
        path.stem
        for path in found
        if subprocess.run(
            ["git", "apply", "--check", path], cwd=ROOT, capture_output=True, check=False
        ).returncode
    ]
    assert stale == []
