"""Readers of many messages give all that the disk has not damaged, and say that others are."""

import asyncio
import json
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import dwell
from dwell.batch.batch import Batch
from dwell.cli.app import app
from dwell.errors import StoreDamaged
from dwell.message import State
from dwell.queue import search
from dwell.store.embedded import EmbeddedStore
from dwell.store.embedded.check import check
from tests import RUNS
from tests.http.served import served
from tests.store.test_damage import flip

COUNT = 24
TOPICS = ("delayed", "ready", "leased", "dead")
OWNER = "w"
#: Which of the messages have ids of the caller's; the queue made the others.
OWN = range(0, COUNT, 2)


def topic_of(number: int) -> str:
    return TOPICS[number // 2 % 4]


def body_of(number: int) -> str:
    return f"body {number:03}" * 40


async def filled(folder: Path) -> dict[int, str]:
    """Put messages of each state, each in a frame of its own; return their ids."""
    ids = {}
    async with dwell.open(folder, segment_bytes=64 * 1024) as queue:
        for n in range(COUNT):
            own = {"id": f"id {n:03}"} if n in OWN else {}
            topic, key = topic_of(n), f"key {n:03}"
            delay = "1h" if topic == "delayed" else 0
            ids[n] = (await queue.put(topic, body_of(n), key=key, delay=delay, **own)).id
        for topic in ("leased", "dead"):
            taken = await queue.take(topic, COUNT, owner=OWNER, lease="1h")
            if topic == "dead":
                await queue.bury(taken)
    return ids


def numbers(batch: Batch) -> list[int]:
    return sorted(int(message.body[5:8]) for message in batch)


async def scanned(queue: dwell.Queue, topic: str, state: State) -> list[int]:
    """Scan a topic by pages of two messages."""
    page = await queue.scan(topic, state, limit=2)
    found = numbers(page.messages)
    while page.cursor is not None:
        page = await queue.scan(topic, state, cursor=page.cursor, limit=2)
        assert len(page.versions) == len(page.messages)
        found += numbers(page.messages)
    return sorted(found)


async def reads(queue: dwell.Queue, ids: dict[int, str], bad: set[int]) -> None:
    """Look at messages in each way that gives many, and at each damaged one alone."""
    for topic in TOPICS:
        all_of_it = [n for n in range(COUNT) if topic_of(n) == topic]
        whole = [n for n in all_of_it if n not in bad]
        found = await queue.get(topic, [ids[n] for n in all_of_it])
        assert [m and int(m.body[5:8]) for m in found] == [
            n if n in whole else None for n in all_of_it
        ]
        state = State[topic.upper()]
        assert await scanned(queue, topic, state) == whole
        assert numbers(await queue.find(topic, dwell.select(attempt_to=5), state=state)) == whole
        for n in set(all_of_it) & bad:
            with pytest.raises(StoreDamaged, match=re.escape(repr(ids[n]))):
                await queue.get(topic, ids[n])
        # Calls that are joined do not answer for each other.
        alone = await asyncio.gather(
            *(queue.get(topic, ids[n]) for n in all_of_it), return_exceptions=True
        )
        assert [isinstance(one, StoreDamaged) for one in alone] == [n in bad for n in all_of_it]
    swept, place = [], 0
    while place is not None:
        part = await queue.sweep(start=place, limit=5)
        assert len(part.versions) == len(part.messages)
        swept += numbers(part.messages)
        place = part.next_place
    assert sorted(swept) == [n for n in range(COUNT) if n not in bad]
    assert numbers(await queue.held(OWNER)) == [
        n for n in range(COUNT) if topic_of(n) == "leased" and n not in bad
    ]
    assert len((await queue.events(0, 1_000)).events) == COUNT + COUNT // 2 + COUNT // 4
    assert (await queue.store.condition()).get("damaged_messages", len(bad)) == len(bad)


def listed(folder: Path, topic: str) -> list[int]:
    done = CliRunner().invoke(
        app, ["--json", "list", topic], env={"DWELL_STORE": str(folder)}, catch_exceptions=False
    )
    assert done.exit_code == 0
    return sorted(int(json.loads(line)["body"][5:8]) for line in done.stdout.splitlines())


@settings(max_examples=10 * RUNS)
@given(st.dictionaries(st.integers(0, COUNT - 1), st.sampled_from(["body", "key"]), max_size=COUNT))
def test_what_is_damaged_is_left_out_and_no_other(hits):
    bad = set(hits)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "s"
        ids = asyncio.run(filled(folder))
        for n, where in hits.items():
            flip(folder, f"{where} {n:03}".encode())

        async def look() -> None:
            async with dwell.open(folder) as queue:
                await reads(queue, ids, bad)
            async with served(EmbeddedStore(folder)) as server, dwell.open(server.url) as queue:
                await reads(queue, ids, bad)

        with pytest.MonkeyPatch.context() as patch:
            # So that all messages of a page may be damaged.
            patch.setattr(search, "_PAGE", 1)
            asyncio.run(look())
        for topic in TOPICS:
            whole = [n for n in range(COUNT) if topic_of(n) == topic and n not in bad]
            assert listed(folder, topic) == whole
        findings = check(folder).findings
        for n in bad:
            assert any(f"of topic {topic_of(n)}, id {ids[n]!r}" in one for one in findings)


async def test_a_damage_is_logged_once_and_a_named_message_keeps_its_name(tmp_path, caplog):
    ids = await filled(tmp_path / "s")
    flip(tmp_path / "s", b"body 004")
    flip(tmp_path / "s", b"id 008")
    async with dwell.open(tmp_path / "s") as queue:
        for _ in range(3):
            for topic in (topic_of(4), topic_of(8)):
                await queue.scan(topic, State[topic.upper()])
        table = queue.store.core.machine.table
        found = await queue.named(table.seq[:COUNT].tolist())
        # The id of the other is damaged itself.
        named = {n: (topic_of(n), ids[n]) for n in range(COUNT) if n != 8}
        assert dict(enumerate(found)) == {**named, 8: None}
    assert caplog.text.count("are left out of what is read") == 2
