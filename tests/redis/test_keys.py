"""The names of keys: one list for Python, Lua and the docs."""

import re
from importlib.resources import files
from pathlib import Path

from dwell.store.redis.keys import Keys

NAMES = set(vars(Keys(""))) - {"base"}


def test_the_functions_use_no_other_keys():
    folder = Path(str(files("dwell.store.redis"))) / "lua"
    used = {
        name
        for path in folder.rglob("*.lua")
        for name in re.findall(r"\bKEY\.(\w+)", path.read_text())
    }
    assert used <= NAMES
    # The others are Python's alone.
    assert NAMES - used <= {"store", "secret", "log"}


def test_the_docs_tell_of_every_key():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "redis.md").read_text()
    told = re.findall(r"`(:\w+)", page)
    assert {name.strip(":") for name in told} >= NAMES
