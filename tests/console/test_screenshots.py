"""The pictures in the docs are of the console as it is."""

import re
from pathlib import Path

from dwell.clock import RealClock
from dwell.store.memory import MemoryStore
from tests.http.served import served_aside
from tools import screenshots

ROOT = Path(__file__).parents[2]


async def test_the_docs_show_the_pictures_that_are_taken():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {
        name for page in pages for name in re.findall(r"images/([\w-]+)\.png", page.read_text())
    }
    there = {path.stem for path in screenshots.FOLDER.glob("*.png")}
    assert there == set(screenshots.PICTURES)
    assert shown <= there


async def test_the_pictures_can_be_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(
        screenshots, "PICTURES", {"one": ("#/dead?topic=mail.reminders", 800, True)}
    )
    with served_aside(lambda: MemoryStore(RealClock())) as url:
        await screenshots.take(url, tmp_path)
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
