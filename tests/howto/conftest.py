import importlib
import sys
from pathlib import Path

import pytest

from tests.pages import files_of

HOWTO = Path(__file__).parents[2] / "docs" / "howto"


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Return a function that gives the module which a page tells its reader to write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    loaded = []

    def load(page, name):
        for file, text in files_of((HOWTO / f"{page}.md").read_text()).items():
            (tmp_path / file).write_text(text)
        loaded.append(name)
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield load
    for name in loaded:
        sys.modules.pop(name, None)
