"""The journal's pages: what was read of it does not stay in the memory of the process."""

import re
from pathlib import Path

import dwell

_BODY = b"x" * (256 * 1024)
_COUNT = 200
_MOST_MB = 16


def mapped_mb(folder):
    """Return how much of a store's journal this process has in memory."""
    found, is_journal = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_journal = f"{folder}/store/journal-" in line
        elif is_journal and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found / 1024


async def test_many_large_messages_can_be_read_in_little_memory(tmp_path):
    ids = [f"m{n}" for n in range(_COUNT)]
    async with dwell.open(str(tmp_path / "store")) as queue:
        for at in range(0, _COUNT, 50):
            await queue.put_many("t", [_BODY] * 50, ids=ids[at : at + 50])
        assert [m.id for m in await queue.get("t", ids)] == ids
        assert mapped_mb(tmp_path) < _MOST_MB
        taken = []
        while len(taken) < _COUNT:
            batch = await queue.take("t", 50)
            assert all(len(m.body) == len(_BODY) for m in batch)
            taken += batch.ids
            assert mapped_mb(tmp_path) < _MOST_MB
        assert sorted(taken) == sorted(ids)
        page = await queue.events(0, 10_000)
        assert len(page.events) >= 2 * _COUNT
        assert mapped_mb(tmp_path) < _MOST_MB
