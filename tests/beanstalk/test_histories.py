"""What was done with jobs, as their documents tell it: beside beanstalkd, and on its own."""

import asyncio
import re

from dwell.clock import RealClock
from dwell.server.beanstalk import tubes as beanstalk_tubes
from dwell.server.beanstalk.histories import Histories
from dwell.store.embedded import EmbeddedStore
from dwell.store.memory import MemoryStore
from tests.beanstalk.served import Line, Served, beanstalkd
from tests.waiting import until

_COUNTS = ("state", "pri", "delay", "reserves", "timeouts", "releases", "buries", "kicks")


def counts(line: Line, job: int) -> dict[str, str]:
    stats = line.stats(b"stats-job %d" % job)
    return {name: stats[name] for name in _COUNTS}


def life(line: Line):
    """Let jobs go every way that there is, and yield their counts after each step."""
    job = line.put(pri=3, delay=3, ttr=1)
    for command in (
        b"kick 1",
        b"reserve",
        b"release # 5 4",
        b"kick-job #",
        b"reserve",
        b"bury # 7",
        b"kick 1",
        b"reserve-job #",
        b"bury # 2000",
        b"reserve-job #",
        b"release # 8 0",
        b"reserve",
        b"bury # 1",
        b"kick-job #",
        b"reserve",
    ):
        line.ask(command.replace(b"#", b"%d" % job) + b"\r\n")
        yield command, counts(line, job)
    until(lambda: counts(line, job)["state"] == "ready")
    yield "lease ended", counts(line, job)
    line.ask(b"reserve\r\n")
    line.ask(b"bury %d 1\r\n" % job)
    line.ask(b"kick 1\r\n")
    yield "kicked", counts(line, job)


def test_the_counts_of_a_job_are_those_of_beanstalkd(line):
    with beanstalkd() as number, Line(number) as real:
        for expected, found in zip(life(real), life(line), strict=True):
            assert found == expected
    assert found[1]["timeouts"] == "1"


def test_a_limit_on_releases_ends(line):
    job = line.put()
    for _ in range(3):
        assert line.reserve() is not None
        releases = int(line.stats(b"stats-job %d" % job)["releases"])
        line.ask(b"release %d 0 0\r\n" % job if releases < 2 else b"bury %d 0\r\n" % job)
    assert line.reserve() is None
    assert counts(line, job)["state"] == "buried"


def test_a_limit_on_releases_holds_after_a_restart(tmp_path):
    with Served(lambda: EmbeddedStore(tmp_path / "store")) as served, Line(served.number) as line:
        job = line.put()
        for _ in range(2):
            line.reserve()
            line.ask(b"release %d 0 0\r\n" % job)
    with Served(lambda: EmbeddedStore(tmp_path / "store")) as served, Line(served.number) as line:
        new = line.put(ttr=1)
        assert line.reserve() == (job, b"x")
        assert counts(line, job)["releases"] == "2"
        line.ask(b"release %d 0 0\r\n" % job)
        assert counts(line, job)["releases"] == "3"
        line.ask(b"delete %d\r\n" % job)
        assert line.reserve() == (new, b"x")
        until(lambda: counts(line, new)["state"] == "ready")
        # Of what was put since, how each take ended is known.
        assert (counts(line, new)["timeouts"], counts(line, new)["releases"]) == ("1", "0")


def test_delay_and_what_is_left_of_it_are_rounded_up(served, line):
    job = line.put(delay=10, ttr=30)
    stats = line.stats(b"stats-job %d" % job)
    assert (stats["delay"], stats["time-left"]) == ("10", "10")
    line.ask(b"kick 1\r\n")
    line.reserve()
    until(lambda: line.stats(b"stats-job %d" % job)["time-left"] == "29")
    assert line.stats(b"stats-job %d" % job)["delay"] == "10"
    put = served.call(served.queue.put("default", b"x", delay=20))
    stats = line.stats(b"stats-job %d" % put.number)
    assert (stats["delay"], stats["time-left"]) == ("20", "20")


def test_urgent_jobs_are_counted(served, line):
    for pri in (0, 1023, 1024, 5000):
        line.put(pri=pri)
    line.put(pri=0, delay=100)
    line.ask(b"use other\r\n")
    line.put(pri=1)
    assert line.stats(b"stats")["current-jobs-urgent"] == "3"
    assert line.stats(b"stats-tube default")["current-jobs-urgent"] == "2"
    line.reserve()
    assert line.stats(b"stats-tube default")["current-jobs-urgent"] == "1"


def tubes(line: Line) -> list[str]:
    return re.findall("^- (.*)$", line.ask(b"list-tubes\r\n").decode(), re.MULTILINE)


def test_tubes_are_listed_in_the_order_in_which_they_came(served, line):
    with beanstalkd() as number, Line(number) as real:
        for each in (real, line):
            for tube in (b"z", b"b", b"a", b"c"):
                each.ask(b"use %b\r\n" % tube)
                each.put()
            each.ask(b"watch y\r\nwatch d\r\nuse b\r\n", 3)
        assert tubes(line) == tubes(real) == ["default", "z", "b", "a", "c", "y", "d"]
    served.call(served.queue.put("first", b"x"))
    for _ in range(2):
        assert tubes(line) == ["default", "z", "b", "a", "c", "y", "d", "first"]


def test_noted_tubes_are_bounded(served, line):
    for start in range(0, 25_000, 1000):
        line.send(b"".join(b"use t%d\r\n" % at for at in range(start, start + 1000)))
        for _ in range(1000):
            line.read()
    assert len(served.port.desk.hall.order._noted) <= 20_000
    assert tubes(line) == ["default", "t24999"]


def test_all_tubes_with_jobs_are_listed_however_many_there_are(served, line, monkeypatch):
    monkeypatch.setattr(beanstalk_tubes, "_MOST_NOTED", 10)
    served.port.desk.hall.order._purge_at = 10
    names = [f"t{at}" for at in range(50)]
    for name in names:
        served.call(served.queue.put(name, b"x"))
    for _ in range(3):
        assert tubes(line) == ["default", *names]
        assert line.stats(b"stats")["current-tubes"] == "51"
        # What is chosen then comes after them, and puts none of them out of its place.
        line.ask(b"use t7\r\n")


def test_histories_are_bounded_and_the_latest_are_kept():
    histories = Histories(most_jobs=10)
    histories.put([1], [7])
    for number in range(2, 100):
        histories.buried(number)
        assert histories.delay_s(1) == 7
        assert len(histories._newer) + len(histories._older) <= 20
    assert histories.delay_s(2) is None


def test_a_job_that_is_gone_leaves_nothing(served, line):
    for held in (True, False):
        jobs = [line.put(delay=100) for _ in range(3)]
        if held:
            line.ask(b"kick 5\r\n")
            for _ in jobs:
                line.reserve()
        line.ask(b"".join(b"delete %d\r\n" % job for job in jobs), 3)
    histories = served.port.desk.hall.histories
    assert not histories._newer
    assert not histories._older


def test_urgent_jobs_of_many_tubes_are_counted_in_turns_of_their_own():
    """Others go on between any two of them."""

    class Noting(MemoryStore):
        turn, noted = 0, []

        async def count_urgent(self, topic, priority):
            self.noted.append(self.turn)
            asyncio.get_running_loop().call_soon(self._next_turn)
            return await super().count_urgent(topic, priority)

        def _next_turn(self):
            self.turn += 1

    with Served(lambda: Noting(RealClock())) as served, Line(served.number) as line:
        for number in range(5):
            line.ask(b"use t%d\r\n" % number)
            line.put(pri=1)
        assert line.stats(b"stats")["current-jobs-urgent"] == "5"
        assert served.queue.store.noted == [*range(5)]
