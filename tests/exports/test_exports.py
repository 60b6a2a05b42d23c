"""Exports of queues at work, what an import makes of each message, and what it refuses."""

import asyncio
import itertools
import json
import random
import resource
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import dwell
from dwell import Result, State
from dwell.errors import Forbidden, InvalidInput, StoreError, TopicFull
from dwell.queue.exports import manifest as manifests
from dwell.queue.exports import putting, writing
from dwell.queue.exports.manifest import MANIFEST, Manifest
from tests.exports.conftest import everything
from tests.spark.conftest import ServerProcess

FAR_MS = 4_102_444_800_000
HOUR_MS = 3_600_000
_numbers = itertools.count()


@pytest.fixture
def topic():
    """A topic that no other test has, as a server is shared."""
    return f"topic{next(_numbers)}"


@pytest.fixture
def export(tmp_path):
    """An export of 30 messages of one topic, 10 of them dead and 10 with ids of the queue's."""
    with dwell.open(tmp_path / "source") as queue:
        queue.configure("t", max_attempts=3, remember_ms=HOUR_MS)
        queue.put_many("t", [b"%d" % n for n in range(10)])
        queue.bury(queue.take("t", 10), "broken")
        queue.put_many("t", [b"x"] * 10, ids=[f"i{n}" for n in range(10)], due=FAR_MS)
        queue.put_many("t", [b"y"] * 10, due=FAR_MS)
        queue.export(tmp_path / "export")
    return tmp_path / "export"


def table_of(folder):
    return pa.dataset.dataset(folder, format="parquet").to_table()


# --- queues at work ---------------------------------------------------------------------------


async def test_a_message_that_moves_all_the_time_is_in_it_once(store, topic, tmp_path, monkeypatch):
    """Between the pages of an export every message goes to any state, and some come and go."""
    monkeypatch.setattr(writing, "_PAGE_ROWS", 20)
    chance, pages = random.Random(7), itertools.count()
    async with dwell.open(store) as queue:
        stays = [f"s{n}" for n in range(200)]
        await queue.put_many(topic, [b"x"] * 200, ids=stays, due=[0, FAR_MS] * 100)
        await queue.put_many(topic, [b"x"] * 100, ids=[f"g{n}" for n in range(100)])
        real = queue.sweep

        async def sweep(*args, **words):
            some, number = chance.sample(stays, 60), next(pages)
            await queue.kick(topic, some[:20])
            await queue.reschedule(topic, some[20:40], due=chance.choice([0, FAR_MS]))
            taken = await queue.take_ids(topic, some[40:], lease="1h")
            await queue.bury(taken[: len(taken) // 2])
            await queue.release(taken[len(taken) // 2 :], chance.choice([0, 3_600]))
            await queue.ack(
                await queue.take_ids(topic, [f"g{n}" for n in chance.sample(range(100), 5)])
            )
            await queue.put(topic, b"x", id=f"n{number}")
            return await real(*args, **words)

        queue.sweep = sweep
        manifest = await queue.export(tmp_path / "export", topic)
    assert next(pages) > 10
    table = table_of(tmp_path / "export")
    ids = table.column("id").to_pylist()
    assert sorted(id_ for id_ in ids if id_[0] == "s") == sorted(stays)
    assert len(set(ids)) == len(ids) == manifest.rows
    assert len(set(table.column("state").to_pylist())) > 2


async def test_an_export_that_is_broken_off_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "_PAGE_ROWS", 10)
    monkeypatch.setattr(writing, "_GROUP_ROWS", 10)
    monkeypatch.setattr(writing, "_FILE_ROWS", 20)
    seen, folder = [], tmp_path / "export"
    async with dwell.open("memory:") as queue:
        await queue.put_many("t", [b"x"] * 100)

        def end(rows):
            seen.append(sorted(path.name for path in folder.iterdir()))
            if rows >= 50:
                raise RuntimeError("ended")

        with pytest.raises(RuntimeError, match="ended"):
            await queue.export(folder, tell=end)
        assert seen[-1] == [f"messages-0000{n}.parquet" for n in range(3)]
        assert list(folder.iterdir()) == []
        task = asyncio.ensure_future(queue.export(folder, tell=lambda rows: task.cancel()))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert list(folder.iterdir()) == []
        # So that it can be repeated.
        assert (await queue.export(folder)).rows == 100


def test_row_groups_and_files_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "_PAGE_ROWS", 10)
    monkeypatch.setattr(writing, "_GROUP_ROWS", 40)
    monkeypatch.setattr(writing, "_GROUP_BYTES", 100_000)
    monkeypatch.setattr(writing, "_FILE_ROWS", 100)
    with dwell.open("memory:") as queue:
        queue.put_many("t", [b"x"] * 300)
        queue.put_many("t", [b"x" * 20_000] * 30)
        manifest = queue.export(tmp_path / "export")
        files = [pq.ParquetFile(tmp_path / "export" / file.name) for file in manifest.files]
        groups = [
            file.metadata.row_group(at).num_rows
            for file in files
            for at in range(file.num_row_groups)
        ]
        for file in files:
            file.close()
        assert groups == [40] * 7 + [30, 10, 10]
        assert [file.rows for file in manifest.files[:2]] == [120, 120]
        queue.clear("t")
        done = queue.put_export(tmp_path / "export")
        assert (done.total.created, done.balances) == (330, True)


# --- what an import makes of them -------------------------------------------------------------


async def test_no_taker_gets_what_is_dead(export, store):
    async with dwell.open(store) as queue:
        await queue.clear("t")
        taken = []

        async def take():
            while not taken or taken[-1].body != b"last":
                taken.extend(await queue.take("t", 100, wait="30s"))

        taker = asyncio.ensure_future(take())
        done = await queue.put_export(export)
        assert done.total.created + done.total.kept == 30
        await queue.put("t", "last")
        await taker
        await queue.ack(taken)
        assert [message.body for message in taken] == [b"last"]
        dead = [m async for page in queue.pages("t", "dead") for m in page]
        assert [m.headers for m in dead] == [{"dwell-reason": "broken"}] * 10
        assert {m.last_error for m in dead} == {"expired"}
        # They come back like others, and do not expire again.
        assert (await queue.kick("t", [m.id for m in dead])).count(Result.KICKED) == 10
        again = await queue.take("t", 100)
        assert {m.id for m in again} == {m.id for m in dead}
        await queue.ack(again)


def test_a_reason_without_room_is_left_out(tmp_path):
    with dwell.open("memory:") as queue:
        queue.put("t", b"", headers={"h": "x" * 16_380}, id="full")
        queue.bury(queue.take("t"), "broken")
        queue.export(tmp_path / "export")
        queue.cancel("t", "full")
        assert queue.put_export(tmp_path / "export").balances
        assert list(queue.get("t", "full").headers) == ["h"]
        assert queue.get("t", "full").state is State.DEAD


def test_the_store_itself_gets_only_what_is_gone(store, topic, tmp_path):
    """Messages whose ids the queue made are found by their numbers, and put no second time."""
    with dwell.open(store) as queue:
        made = queue.put_many(topic, [b"%d" % n for n in range(20)], due=FAR_MS)
        queue.put_many(topic, [b"own"] * 10, ids=[f"i{n}" for n in range(10)], due=FAR_MS)
        queue.export(tmp_path / "export", topic)
        queue.cancel(topic, [*made.ids[:5], "i1", "i2"])
        for created in (7, 0):
            done = queue.put_export(tmp_path / "export")
            assert (done.total.created, done.total.kept) == (created, 30 - created)
        found = everything(queue, [topic])
        assert len(found) == 30
        assert sorted(m.body for m in found.values())[:20] == sorted(b"%d" % n for n in range(20))
        assert sum(id_.startswith("moved-") for _, id_ in found) == 5


def test_a_copy_of_the_store_takes_the_same_messages_for_the_same(tmp_path):
    with dwell.open(tmp_path / "a") as queue:
        queue.put_many("t", [b"x"] * 10, due=FAR_MS)

    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with dwell.open(tmp_path / "a") as queue:
        queue.put_many("t", [b"y"] * 10, due=FAR_MS)
        queue.export(tmp_path / "export")
    with dwell.open(tmp_path / "b") as queue:
        # In the rows of the others, and in another life.
        queue.put_many("t", [b"z"] * 10, due=FAR_MS)
        done = queue.put_export(tmp_path / "export")
        assert (done.total.created, done.total.kept) == (10, 10)
        found = sorted(m.body for m in everything(queue, ["t"]).values())
        assert found == [b"x"] * 10 + [b"y"] * 10 + [b"z"] * 10


def test_a_second_run_goes_on_where_the_first_ended(export, store, monkeypatch):
    monkeypatch.setattr(putting, "_TOPICS", 1)
    told = []

    def end(done):
        if done.total.created:
            told.append(done)
            raise RuntimeError("ended")

    with dwell.open(store) as queue:
        queue.clear("t")
        assert everything(queue, ["t"]) == {}
        with pytest.raises(RuntimeError, match="ended"):
            queue.put_export(export, tell=end)
        first = told[0].total.created
        second = queue.put_export(export)
        assert second.total.created + first == 30
        assert len(everything(queue, ["t"])) == 30


async def test_to_be_broken_off_waits_for_the_answers(export):
    told = []
    async with dwell.open("memory:") as queue:
        real, begun, may_end = queue.put_puts, asyncio.Event(), asyncio.Event()

        async def put_puts(puts, on_conflict="keep"):
            begun.set()
            await may_end.wait()
            return await real(puts, on_conflict)

        queue.put_puts = put_puts
        task = asyncio.ensure_future(queue.put_export(export, tell=told.append))
        await begun.wait()
        task.cancel()
        asyncio.get_running_loop().call_soon(may_end.set)
        with pytest.raises(asyncio.CancelledError):
            await task
        counts = (await queue.stats()).topics["t"]
        assert told[0].total.created == counts.delayed + counts.ready + counts.dead == 30
        assert not told[0].is_whole


def test_settings_are_given_to_topics_that_have_none(export):
    with dwell.open("memory:") as queue:
        assert queue.put_export(export).settings == []
        assert queue.settings("t") == dwell.TopicSettings()
        assert queue.put_export(export, settings=True).settings == ["t"]
        assert (queue.settings("t").max_attempts, queue.settings("t").remember_ms) == (3, HOUR_MS)
    with dwell.open("memory:") as queue:
        queue.configure("t", max_attempts=9)
        assert queue.put_export(export, settings=True).settings == []
        assert queue.settings("t").max_attempts == 9


def test_settings_of_topics_without_messages_are_in_it(tmp_path):
    with dwell.open("memory:") as queue:
        queue.configure("empty", paused=True)
        assert queue.export(tmp_path / "export").settings == {"empty": {"paused": True}}


def test_schedules_go_on(tmp_path):
    with dwell.open("memory:") as queue:
        queue.schedules.put("daily", "jobs", "x", cron="0 9 * * *", zone="Europe/Berlin")
        before = queue.schedules.get("daily")
        queue.export(tmp_path / "export")
    with dwell.open("memory:") as queue:
        assert queue.put_export(tmp_path / "export").total.created == 1
        after = queue.schedules.get("daily")
        assert (after.schedule.cron, after.next_ms) == (before.schedule.cron, before.next_ms)


def test_what_the_queue_refuses_is_told_with_its_number(tmp_path):
    with dwell.open("memory:") as queue:
        queue.put_many("t", [b"x"] * 6, due=[0, FAR_MS] * 3, ids=list("abcdef"))
        queue.put("u", b"x")
        queue.export(tmp_path / "export")
    rows = table_of(tmp_path / "export").to_pylist()
    # There it is 1970, and 2100 too far away.
    with dwell.open("memory:", clock=dwell.SimulatedClock(0)) as queue:
        bad = {}
        done = queue.put_export(tmp_path / "export", on_bad=bad.__setitem__)
        assert (done.topics["t"].created, done.topics["t"].rejected, done.balances) == (3, 3, True)
        assert {rows[number]["id"] for number in bad} == set("bdf")
        assert all(reason.startswith("due: got ") for reason in bad.values())
        with pytest.raises(InvalidInput, match=rf"^row {min(bad)}: due: got "):
            queue.put_export(tmp_path / "export")


def test_what_a_server_refuses_is_told_as_well(tmp_path):
    with dwell.open("memory:") as queue:
        queue.put_many("t", [b"small", b"x" * 5_000, b"small"], ids=list("abc"))
        queue.export(tmp_path / "export")
    server = ServerProcess(tmp_path, "--max-body-bytes", "1000")
    try:
        with dwell.open(server.url) as queue:
            bad = {}
            done = queue.put_export(tmp_path / "export", on_bad=bad.__setitem__)
            assert (done.total.created, list(bad)) == (2, [1])
    finally:
        server.stop()


def test_full_topics_drop_or_refuse(export):
    with dwell.open("memory:") as queue:
        queue.configure("t", max_pending=5, on_full="drop")
        done = queue.put_export(export, dead="skip")
        assert (done.total.created, done.total.dropped, done.total.skipped) == (5, 15, 10)
        assert done.balances
        queue.configure("t", on_full="refuse")
        with pytest.raises(TopicFull):
            queue.put_export(export)


# --- what is refused --------------------------------------------------------------------------


def resealed(folder, change):
    """Change the manifest, and give it the checksum that it then has."""
    raw = json.loads((folder / MANIFEST).read_text())
    change(raw)
    manifest = msgspec.convert(raw, Manifest)
    (folder / MANIFEST).write_bytes(manifests.written(manifest))


def first_file(folder):
    return folder / "messages-00000.parquet"


def damage(folder):
    data = bytearray(first_file(folder).read_bytes())
    data[len(data) // 2] ^= 1
    first_file(folder).write_bytes(data)


def other_columns(folder):
    pq.write_table(pa.table({"topic": ["t"] * 30}), first_file(folder))
    data = first_file(folder).read_bytes()
    file = {"bytes": len(data), "crc": zlib.crc32(data)}
    resealed(folder, lambda raw: raw["files"][0].update(file))


def other_rows(folder):
    def change(raw):
        raw["files"][0]["rows"] = 31
        raw["topics"]["t"]["dead"] += 1

    resealed(folder, change)


def a_name_outside(folder):
    (folder.parent / "outside.parquet").write_bytes(first_file(folder).read_bytes())
    resealed(folder, lambda raw: raw["files"][0].update(name="../outside.parquet"))
    first_file(folder).unlink()


def edited(folder):
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace('"dead": 10', '"dead": 11'))


FAULTS = {
    "no manifest": (
        lambda folder: (folder / MANIFEST).unlink(),
        r"export: got '.*' without a _manifest.json .*, expected the folder of an export that",
    ),
    "newer": (
        lambda folder: resealed(folder, lambda raw: raw.update(dwell_export=2)),
        "export: got format 2, expected 1 or older",
    ),
    "no JSON": (
        lambda folder: (folder / MANIFEST).write_text("{"),
        "export: got a _manifest.json that cannot be read, expected one of an export",
    ),
    "no manifest of ours": (
        lambda folder: (folder / MANIFEST).write_text('{"a": 1}'),
        "export: got a _manifest.json that cannot be read, expected one of an export",
    ),
    "edited": (edited, "export: got a damaged _manifest.json, expected checksum "),
    "counts": (
        lambda folder: resealed(folder, lambda raw: raw["topics"]["t"].update(dead=11)),
        "export: got 30 rows in its files, expected 31, as its topics have",
    ),
    "missing": (
        lambda folder: first_file(folder).unlink(),
        "export: got no messages-00000.parquet .*, expected 30 rows",
    ),
    "cut": (
        lambda folder: first_file(folder).write_bytes(first_file(folder).read_bytes()[:-1]),
        r"export: got messages-00000.parquet of \d+ bytes, expected \d+",
    ),
    "damaged": (
        damage,
        r"export: got messages-00000.parquet damaged, with checksum \d+, expected \d+",
    ),
    "strange": (
        lambda folder: (folder / "other.parquet").write_text(""),
        "export: got the file 'other.parquet', expected those of _manifest.json",
    ),
    "columns": (
        other_columns,
        r"export: got messages-00000.parquet with \['topic'\], expected \['topic', 'id'",
    ),
    "rows": (other_rows, "export: got messages-00000.parquet of 30 rows, expected 31"),
    "outside": (a_name_outside, "export: got the file '../outside.parquet', expected messages-0"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_whole_export_is_refused_as_a_whole(export, fault):
    change, told = FAULTS[fault]
    change(export)
    with dwell.open("memory:") as queue:
        with pytest.raises(InvalidInput, match=f"^{told}"):
            queue.put_export(export)
        assert queue.stats().topics == {}


def test_an_export_goes_to_a_folder_of_its_own(export, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").write_text("")
    cases = {
        export: r"to: got '.*' with '_manifest.json' in it, expected a new folder or an empty one",
        tmp_path / "other": "to: got '.*' with 'mine' in it, expected a new folder",
        tmp_path / "file": "to: cannot make '.*': File exists",
        "": "to: got str '', expected the path of a folder",
    }
    with dwell.open("memory:") as queue:
        for folder, told in cases.items():
            with pytest.raises(InvalidInput, match=f"^{told}"):
                queue.export(folder)
        with pytest.raises(InvalidInput, match=r"^dead: got str 'bury', expected one of keep"):
            queue.put_export(export, dead="bury")
    assert (tmp_path / "other" / "mine").exists()


def test_an_export_is_its_owners_alone(tmp_path):
    with dwell.open("memory:") as queue:
        queue.export(tmp_path / "a" / "export")
        assert (tmp_path / "a" / "export").stat().st_mode & 0o777 == 0o700


def test_an_export_names_the_life_of_the_store(store, topic, tmp_path):
    with dwell.open(store) as queue:
        queue.put(topic, b"")
        manifest = queue.export(tmp_path / "export", topic)
        page = queue.events(0, 10_000)
        assert manifest.history == page.history != ""
        assert manifest == msgspec.structs.replace(manifests.read(tmp_path / "export"), crc=0)


class Replaced:
    """A queue whose store is another one once a page of it was read."""

    def __init__(self, queue, other):
        self._queue, self._other = queue, other

    def __getattr__(self, name):
        return getattr(self._queue, name)

    def replace(self, rows):
        self._queue = self._other


@pytest.mark.parametrize("count", [0, 50])
async def test_an_export_of_a_store_that_is_replaced_ends_with_an_error(
    count, tmp_path, monkeypatch
):
    """The places of the one say nothing in the other."""
    monkeypatch.setattr(writing, "_PAGE_ROWS", 4)
    async with dwell.open("memory:") as queue, dwell.open("memory:") as other:
        await queue.put_many("t", [b"x"] * 10)
        if count:
            await other.put_many("t", [b"y"] * count)
        replaced = Replaced(queue, other)
        with pytest.raises(StoreError, match="put back or replaced while it was read"):
            await writing.export(replaced, tmp_path / "export", (), replaced.replace)
        assert list((tmp_path / "export").iterdir()) == []
        assert (await writing.export(queue, tmp_path / "whole", (), None)).rows == 10


def test_a_token_for_topics_is_enough(tmp_path):
    """What it may not know is left out: who else is there, and what happened to them."""
    program, file = Path(sys.executable).with_name("dwell"), tmp_path / "tokens.json"
    words = ["token", "mine", "--put", "mine.", "--read", "mine.", "--file", str(file)]
    made = subprocess.run([program, "--quiet", *words], capture_output=True, text=True, check=True)
    server = ServerProcess(tmp_path, "--token-file", str(file))
    try:
        with dwell.open(server.url, token=made.stdout.strip()) as queue:
            queue.put_many("mine.a", [b"x"] * 3)
            manifest = queue.export(tmp_path / "export", ["mine.a", "mine.b"])
            assert (manifest.rows, manifest.history) == (3, "")
            with pytest.raises(Forbidden):
                queue.export(tmp_path / "all")
            assert list((tmp_path / "all").iterdir()) == []
            # In the store itself messages are found by their numbers, of all topics.
            with pytest.raises(Forbidden):
                queue.put_export(tmp_path / "export")
        with dwell.open("memory:") as queue:
            queue.put_many("mine.a", [b"y"] * 5)
            queue.export(tmp_path / "other")
        with dwell.open(server.url, token=made.stdout.strip()) as queue:
            assert queue.put_export(tmp_path / "other").total.created == 5
    finally:
        server.stop()


def test_an_export_of_nothing_has_the_columns(tmp_path):
    with dwell.open("memory:") as queue:
        assert queue.export(tmp_path / "export").rows == 0
        assert table_of(tmp_path / "export").schema.equals(writing.SCHEMA)
        assert queue.put_export(Path(tmp_path / "export")).is_whole


def test_a_disk_that_is_full_ends_it(tmp_path):
    """A process that may write no large files meets what a full disk does."""
    program, folder = Path(sys.executable).with_name("dwell"), tmp_path / "export"
    server = ServerProcess(tmp_path)
    try:
        with dwell.open(server.url) as queue:
            queue.put_many("t", [random.Random(n).randbytes(1_000) for n in range(1_000)])
        done = subprocess.run(
            [program, "--store", server.url, "export", "--to", str(folder)],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        server.stop()
    assert (done.returncode, done.stderr) == (3, "OSError: [Errno 27] File too large\n")
    assert list(folder.iterdir()) == []
