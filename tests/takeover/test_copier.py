"""Copies of sources that are killed, run twice at once, or refused in part."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from dwell.clock import RealClock
from dwell.errors import StoreError
from dwell.handle import store_at
from dwell.message import MAX_BATCH_BYTES
from dwell.queue import Queue
from dwell.takeover.copier import Copier
from dwell.takeover.entries import Entry
from dwell.takeover.process import run
from tests.takeover.copies import copied, messages, reasons, schedules

_LATER_MS = 4_070_908_800_000


class Listed:
    """A source in the test's own memory."""

    def __init__(self, *entries):
        self._entries = entries

    def entries(self):
        yield from self._entries


def copy_of(store, *entries, change=None):
    async def copying():
        async with Queue(store_at(str(store), RealClock(), {})) as queue:
            if change is not None:
                await change(queue)
            return await Copier(Listed(*entries), queue, lambda report: None).run()

    return asyncio.run(copying())


def _crontab(folder, count):
    path = folder / "tab"
    path.write_text("".join(f"{n % 60} {n // 60 % 24} * * * job {n}\n" for n in range(count)))
    return f"crontab:{path}?zone=UTC"


def test_a_copy_that_is_killed_is_done_by_the_next(tmp_path):
    url, store = _crontab(tmp_path, 1_200), tmp_path / "store"
    # It stops dead after its first batch, before anybody is told.
    code = (
        "import os, sys; from dwell.takeover.process import run\n"
        f"run({str(store)!r}, {url!r}, tell=lambda report: os.kill(os.getpid(), 9))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == -9
    before = len(schedules(store))
    assert 0 < before < 1_200
    report = copied(store, url)
    assert report.put == {"kept": before, "created": 1_200 - before}
    assert len(schedules(store)) == 1_200


def test_two_copies_at_once_put_each_once(tmp_path):
    url, store = _crontab(tmp_path, 1_000), tmp_path / "store"

    async def both():
        from dwell.takeover.crontab import Crontab

        async with Queue(store_at(str(store), RealClock(), {})) as queue:
            copiers = [Copier(Crontab(url), queue, lambda report: None) for _ in range(2)]
            return await asyncio.gather(*(copier.run() for copier in copiers))

    reports = asyncio.run(both())
    assert sum(report.put["created"] for report in reports) == 1_000
    assert sum(report.put["kept"] for report in reports) == 1_000
    assert all(report.balances and report.is_whole for report in reports)
    assert len(schedules(store)) == 1_000


def test_a_stopped_copy_is_not_whole(tmp_path):
    copiers = []

    async def stopped():
        async with Queue(store_at(str(tmp_path / "store"), RealClock(), {})) as queue:
            entries = [Entry("", f"n{n}", "t", b"", {"every": 60}) for n in range(1_000)]
            copiers.append(Copier(Listed(*entries), queue, lambda report: copiers[0].stop()))
            return await copiers[0].run()

    report = asyncio.run(stopped())
    assert (report.is_whole, report.put["created"], report.balances) == (False, 500, True)


def test_a_full_topic_refuses_messages_one_by_one(tmp_path):
    entries = [Entry(f"no {n}", f"n{n}", "few", b"", due_ms=_LATER_MS) for n in range(5)]
    entries += [Entry("other", "o", "free", b"", due_ms=_LATER_MS)]

    async def limited(queue):
        await queue.configure("few", max_pending=3)

    report = copy_of(tmp_path / "store", *entries, change=limited)
    assert (report.put["created"], report.refused, report.balances) == (4, 2, True)
    assert all("few" in reason for reason in reasons(report).values())

    async def dropping(queue):
        await queue.configure("few", max_pending=3, on_full="drop")

    report = copy_of(tmp_path / "store", *entries, change=dropping)
    assert (report.put["kept"], report.refused, report.balances) == (4, 2, True)
    assert set(messages(tmp_path / "store", "few")) == {"n0", "n1", "n2"}


def test_large_bodies_go_in_batches_that_fit(tmp_path, monkeypatch):
    put, sizes = Queue.put_puts, []

    async def measured(self, puts, on_conflict="keep"):
        sizes.append(puts.size_bytes)
        return await put(self, puts, on_conflict)

    monkeypatch.setattr(Queue, "put_puts", measured)
    body = b"x" * 700_000
    entries = [Entry("", f"n{n}", "t", body, {"every": 60}) for n in range(30)]
    entries += [Entry("", f"m{n}", "t", body, due_ms=_LATER_MS) for n in range(30)]
    entries += [Entry("too large", "l", "t", b"x" * 1_000_000, {"every": 60})]
    report = copy_of(tmp_path / "store", *entries)
    assert (report.put["created"], report.refused) == (60, 1)
    assert max(sizes) < MAX_BATCH_BYTES
    assert len(sizes) < 12
    assert len(messages(tmp_path / "store", "t")) == 30


async def test_large_bodies_are_read_a_few_at_a_time(monkeypatch):
    put, ahead = Copier._copy, []

    class Large:
        read = 0

        def entries(self):
            for number in range(60):
                self.read += 1
                yield Entry(f"{number}", f"n{number}", "t", b"x" * 700_000, due_ms=_LATER_MS)

    async def noted(self, entries, **how):
        ahead.append(source.read - self.report.moved)
        await put(self, entries, **how)

    monkeypatch.setattr(Copier, "_copy", noted)
    source = Large()
    async with Queue(store_at("memory:", RealClock(), {})) as queue:
        report = await Copier(source, queue, lambda report: None).run()
    assert (report.put["created"], report.is_whole) == (60, True)
    assert max(ahead) * 700_000 < MAX_BATCH_BYTES


def test_something_else_of_that_name_is_kept_and_told(tmp_path):
    store = tmp_path / "store"

    async def others(queue):
        await queue.schedules.put("a", "t", b"mine", every="1h")
        await queue.put("t", b"mine", id="b", due=_LATER_MS)
        await queue.put("t", b"theirs", id="c", due=_LATER_MS + 1)

    entries = [
        Entry("1", "a", "t", b"theirs", {"every": 3600}),
        Entry("2", "b", "t", b"theirs", due_ms=_LATER_MS),
        Entry("3", "c", "t", b"theirs", due_ms=_LATER_MS),
    ]
    report = copy_of(store, *entries, change=others)
    assert (report.others, report.moved, report.balances) == (3, 0, True)
    assert schedules(store)["a"].body == b"mine"
    assert messages(store, "t")["b"].body == b"mine"


def test_what_was_paused_resumed_or_taken_here_since_is_the_same(tmp_path):
    store = tmp_path / "store"
    entries = [
        Entry("1", "a", "t", b"", {"cron": "@daily"}),
        Entry("2", "b", "t", b"", {"cron": "@daily"}, is_paused=True),
        Entry("3", "c", "t", b"", due_ms=_LATER_MS),
    ]
    copy_of(store, *entries)
    assert [one.paused for one in schedules(store).values()] == [False, True]

    async def changed(queue):
        await queue.schedules.pause("a")
        await queue.schedules.resume("b")
        await queue.reschedule("t", "c", delay=0)
        (taken,) = await queue.take("t")
        await queue.release(taken, "1h")

    assert copy_of(store, *entries, change=changed).put == {"kept": 3}


def test_an_entry_that_has_ended_is_over_and_one_that_never_fires_is_refused(tmp_path):
    ended = {"every": 60, "end": 1_600_000_000_000}
    entries = [
        Entry("1", "a", "t", b"", ended),
        Entry("2", "b", "t", b"", {"cron": "0 0 30 2 *"}),
        Entry("3", "c", "t", b"", reason="not this one"),
        Entry("4", "d", "t", b"", due_ms=_LATER_MS * 1000),
        Entry("5", "e e", "t", b"", {"every": 60}),
        Entry("6", "f", "t t", b"", due_ms=_LATER_MS),
        Entry("7", "g", "t", b"", {"every": 60, "headers": {"a": 1}}),
    ]
    report = copy_of(tmp_path / "store", *entries)
    assert (report.over, report.refused, report.moved, report.balances) == (1, 6, 0, True)


def test_a_store_that_fails_ends_the_copy_with_what_was_put(tmp_path, monkeypatch):
    put, turns = Queue.put_puts, iter([1])

    async def once(self, puts, on_conflict="keep"):
        if next(turns, None) is None:
            raise StoreError("store: gone")
        return await put(self, puts, on_conflict)

    monkeypatch.setattr(Queue, "put_puts", once)
    seen = []
    with pytest.raises(StoreError):
        run(str(tmp_path / "store"), _crontab(tmp_path, 1_500), tell=seen.append)
    assert seen[-1].moved == len(schedules(tmp_path / "store")) == 500


def test_the_command_lists_what_it_would_put_and_what_it_refuses(tmp_path):
    (tmp_path / "tab").write_text("0 1 * * * a\n@reboot b\n")
    program = Path(sys.executable).with_name("dwell")
    command = [program, "--store", tmp_path / "store", "takeover", f"crontab:{tmp_path}/tab"]
    told = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, timeout=60)
    assert told.returncode == 0
    assert "created  line 1  crontab:a-" in told.stdout
    assert "nothing was put" in told.stdout
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert told.returncode == 1
    assert "refused  line 2" in told.stdout
    assert "there are 2: 1 put, 0 put before, 1 refused" in told.stdout
    assert len(schedules(tmp_path / "store")) == 1


def test_a_look_makes_no_store(tmp_path):
    (tmp_path / "tab").write_text("0 3 * * * backup\n")
    url = f"crontab:{tmp_path / 'tab'}"
    assert copied(tmp_path / "new", url, dry_run=True).put == {"created": 1}
    assert not (tmp_path / "new").exists()
    assert copied(tmp_path / "new", url).put == {"created": 1}
    assert copied(tmp_path / "new", url, dry_run=True).put == {"kept": 1}
