"""What holds for every system in a Redis whose jobs move: nothing is lost, doubled or early."""

import threading

import pytest

import dwell
from dwell.errors import InvalidUrl
from dwell.takeover.jobs import JobsPlace
from tests.takeover.sources import FIRST_MS, SOURCES, beside, contents, dues, killed, moved

_COUNT = 300


@pytest.fixture(params=sorted(SOURCES))
def source(request, engine):
    engine.ask("FLUSHALL")
    return SOURCES[request.param](engine.url)


def ids(count=_COUNT):
    return {f"{word}-{number}" for word in ("later", "now") for number in range(count)}


def test_all_that_waits_moves_with_its_due(source, tmp_path):
    source.fill(_COUNT)
    before = contents(source.redis)
    told = moved(tmp_path, source.url, dry_run=True)
    assert told.found.waiting == 2 * _COUNT
    assert contents(source.redis) == before
    report = moved(tmp_path, source.url)
    assert (report.moved, report.put["created"], report.left.here) == (2 * _COUNT, 2 * _COUNT, 0)
    assert report.balances
    assert report.is_whole
    found = dues(tmp_path)
    assert set(found) == ids()
    for number in range(_COUNT):
        assert found[f"later-{number}"] == FIRST_MS + 1000 * number + source.later_ms
    with dwell.open(tmp_path) as queue:
        taken = [message.id for message in queue.take("orders", _COUNT)]
    assert taken == [f"now-{number}" for number in range(_COUNT)]


def test_a_takeover_that_is_killed_is_repeated(source, tmp_path):
    source.fill(5)
    killed(tmp_path, source.url, "before")
    # It puts none twice, and removes what the first has put.
    killed(tmp_path, source.url, "after")
    report = moved(tmp_path, source.url)
    assert (report.put["kept"], report.put["created"], report.is_whole) == (0, 5, True)
    assert set(dues(tmp_path)) == ids(5)


def test_two_takeovers_move_each_job_once(source, engine):
    source.fill(_COUNT)
    store = engine.url.replace("/0", "/1")
    runs = [beside(moved, store, source.url) for _ in range(2)]
    for one in runs:
        one.join(60)
        assert one.exitcode == 0
    assert set(dues(store)) == ids()
    assert moved(store, source.url).left.here == 0


def test_jobs_that_are_put_at_the_same_time_move_too(source, tmp_path):
    source.fill(5)
    filling = threading.Thread(target=source.fill, args=(_COUNT,))
    filling.start()
    while filling.is_alive():
        assert moved(tmp_path, source.url).balances
    assert moved(tmp_path, source.url).is_whole
    assert set(dues(tmp_path)) == ids()


def test_what_a_worker_takes_while_it_is_put_is_counted(source, tmp_path, monkeypatch):
    source.fill(5)
    remove, moves = JobsPlace.let_go, iter([1])

    async def let_go(self, load, places):
        if load.puts.topic == "orders" and next(moves, None):
            assert await self._client.delete(source.ready)
        return await remove(self, load, places)

    monkeypatch.setattr(JobsPlace, "let_go", let_go)
    report = moved(tmp_path, source.url)
    assert (report.elsewhere, report.moved, report.balances) == (5, 5, True)


def test_what_a_full_topic_refuses_stays(source, tmp_path):
    source.fill(20)
    with dwell.open(tmp_path) as queue:
        queue.configure("mails", max_pending=8)
    report = moved(tmp_path, source.url)
    assert (report.refused, report.moved, report.left.here) == (12, 28, 12)
    assert "max_pending" in report.reason
    with dwell.open(tmp_path) as queue:
        queue.configure("mails", max_pending=0)
    assert moved(tmp_path, source.url).moved == 12
    assert set(dues(tmp_path)) == ids(20)


def test_keys_of_another_type_are_refused(source, engine, tmp_path):
    source.fill(1)
    assert engine.ask("DEL", source.ready)
    engine.ask("SET", source.ready, "text")
    with pytest.raises(InvalidUrl, match="WRONGTYPE"):
        moved(tmp_path, source.url)
