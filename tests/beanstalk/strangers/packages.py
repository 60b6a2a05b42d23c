"""Packages of Node that programs of strangers need: fetched once, and kept in the tests' cache."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.beanstalk.served import need


def modules_of(config: pytest.Config, wanted: Path) -> Path:
    """Return the folder of the modules that a ``package.json`` names."""
    need("node", "Node.js (nodejs)")
    npm = need("npm", "npm")
    folder = config.cache.mkdir(wanted.parent.name)
    made = folder / "package.json"
    if not made.exists() or made.read_bytes() != wanted.read_bytes():
        shutil.copy(wanted, made)
        command = [npm, "install", "--prefix", ".", "--no-audit", "--no-fund", "--no-package-lock"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
        if done.returncode:
            made.unlink()
            pytest.fail(f"npm install did not work:\n{done.stdout}\n{done.stderr}")
    return folder / "node_modules"
