"""The benchmark beside peers: each driver answers, and one that fails does not stop the others."""

import dataclasses
import json
import sys
from contextlib import ExitStack

import numpy as np
import pytest

from bench.peers.__main__ import run
from bench.peers.catalogue import PEERS, Peer
from bench.peers.driver import Driver, PeerFailed
from bench.peers.measures import MEASURES, SMALL
from bench.peers.stand import Stand, stand
from bench.process import is_running, now_ms
from tools import benchmarks_page

DWELL = next(peer for peer in PEERS if peer.name == "dwell embedded")
TINY = dataclasses.replace(SMALL, life_s=0.01, late_s=0.1, burst=50, pending=80)


#: A broker that takes ten seconds to start.
SLOW = {"rabbitmq": [pytest.mark.campaign]}


@pytest.fixture(params=[pytest.param(p, id=p.name, marks=SLOW.get(p.name, ())) for p in PEERS])
def place(request):
    peer: Peer = request.param
    if not peer.needs.exists():
        pytest.skip(f"{peer.name} is not installed; make bench-peers installs it")
    with stand(peer, {}) as place:
        place.begin()
        yield place


def test_a_driver_goes_through_the_life_of_a_message(place: Stand):
    """It puts singly and in batches, at once and for later, takes all once, cancels and moves."""
    batch = place.most("put")
    for size in {1, batch}:
        deliveries = place.deliveries(5)
        answer = place.call("put", deliveries.first, 5, size)
        assert answer["count"] == 5
        deliveries.wait_all(30)
    deliveries = place.deliveries(9)
    start_ms = int(now_ms()) + 1500
    place.call("put", deliveries.first, 9, batch, start_ms=start_ms, rate=0, keep=True)
    gone = "cancel" in place.can
    if gone:
        call = place.call("cancel", deliveries.first, 3, place.most("cancel"))
        assert call["count"] == 3
        deliveries.expect(np.arange(3, 9))
    if "move" in place.can:
        later_ms = start_ms + 2000
        batch = place.most("move")
        call = place.call("move", deliveries.first + 6, 3, batch, start_ms=later_ms)
        assert call["count"] == 3
    deliveries.wait_all(30)
    assert sorted(deliveries.numbers) == [*range(3 if gone else 0, 9)]
    if "move" in place.can:
        # RQ cuts off fractions of a second, and what has them comes early.
        early_ms = 1000 if place.peer.name.startswith("rq") else 0
        assert deliveries.at_ms[deliveries.numbers >= 6].min() >= later_ms - early_ms


#: What answers as a driver does, until it is told to put: it ends, or hangs with a child.
_OPENS = """
import json, subprocess, sys, time
for line in sys.stdin:
    do = json.loads(line)["do"]
    if do == "put":
        {then}
    answer = dict(versions={{}}, can={{"put": 1}}) if do == "open" else {{}}
    print(json.dumps(answer), flush=True)
"""
FAULTS = {
    "dies": ("print('out of luck', file=sys.stderr); sys.exit(3)", "status 3: out of luck"),
    "hangs": ("time.sleep(3600)", "no answer within"),
    "babbles": ("print('hello', flush=True)", "the driver said b'hello'"),
    "delivers nothing": (
        'print(\'{"count": 200, "seconds": 1, "errors": 0}\', flush=True); continue',
        "0 of 1 messages were delivered",
    ),
    "cannot put": ('print(\'{"failed": "no room"}\', flush=True); continue', "no room"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_peer_that_fails_is_reported_and_the_rest_goes_on(fault, monkeypatch):
    monkeypatch.setattr("bench.peers.stand.PUT_S", 0.5)
    monkeypatch.setattr("bench.peers.stand.WARM_S", 0.3)
    then, why = FAULTS[fault]
    command = (sys.executable, "-c", _OPENS.format(then=then))
    broken = dataclasses.replace(DWELL, name="broken", command=command)
    ours = dataclasses.replace(DWELL, name="dwell", beside="dwell")
    found = run([broken, ours], [MEASURES[0]], TINY, 2)
    cells = found["measures"][MEASURES[0].name]["peers"]
    assert why in cells["broken"]["why"]
    assert cells["dwell"]["rounds"] == 2
    assert found["dwell"] > 0
    assert found["peers"] == {}


def test_the_page_is_made_of_what_was_measured():
    found = json.loads(benchmarks_page.FOUND.read_text())
    page = benchmarks_page.PAGE.read_text()
    assert page == benchmarks_page.render(found), "run python -m tools.benchmarks_page"
    readme = benchmarks_page.README.read_text()
    assert readme == benchmarks_page.in_readme(found, readme), "run python -m tools.benchmarks_page"


def test_the_page_says_where_dwell_loses_and_why_there_is_no_figure(tmp_path):
    cells = {
        "dwell": {"value": 500.0, "rounds": 2},
        "fast": {"value": 2000.0, "rounds": 2, "ratio": 0.25, "ratio_low": 0.2, "ratio_high": 0.3},
        "even": {"value": 550.0, "rounds": 2, "ratio": 0.9, "ratio_low": 0.8, "ratio_high": 1.1},
        "slow": {"value": 50.0, "rounds": 2, "ratio": 10.0, "ratio_low": 9.0, "ratio_high": 11.0},
        "broken": {"why": "no answer within 30 s"},
    }
    found = json.loads(benchmarks_page.FOUND.read_text())
    measure = {"unit": "messages/s", "what": "lives", "more_is_better": True, "peers": cells}
    page = benchmarks_page.render(found | {"measures": {"singles 2": measure}})
    losses = page.partition("## Where Dwell loses")[2].partition("\n## ")[0]
    assert "| singles 2 | 500 messages/s | fast: 2,000 messages/s | 4.0 |" in losses
    assert not any(peer in losses for peer in ("even", "slow", "broken"))
    assert "| broken | no answer within 30 s |" in page
    assert "| slow | 50 (10; 9 to 11) |" in page
    benchmarks_page.draw("singles 2", measure, tmp_path)
    (chart,) = tmp_path.iterdir()
    assert ">fast<" in chart.read_text()
    assert ">broken<" not in chart.read_text()


def test_a_peer_that_is_not_installed_is_named(tmp_path):
    missing = dataclasses.replace(DWELL, needs=tmp_path / "nowhere")
    found = run([missing], [MEASURES[0]], TINY, 1)
    cell = found["measures"][MEASURES[0].name]["peers"][missing.name]
    assert cell == {"why": "not installed"}


def test_what_a_driver_started_ends_with_it(tmp_path):
    child = "import subprocess, sys; print(subprocess.Popen(['sleep', '3600']).pid, flush=True)"
    wait = "; sys.stdin.read()"
    with ExitStack() as ended:
        driver = Driver([sys.executable, "-c", child + wait], tmp_path / "log")
        ended.callback(driver.end)
        # A number is JSON, too; the answer of a driver would be an object.
        with pytest.raises(PeerFailed, match=r"the driver said b'\d+'") as failed:
            driver.ask("open")
        pid = int(str(failed.value).split("'")[1])
        assert is_running(pid)
    assert not is_running(pid)


@pytest.mark.campaign
def test_dwell_goes_through_every_measure():
    """The engine is killed on the way; what was taken just then may come twice."""
    found = run([dataclasses.replace(DWELL, name="dwell")], MEASURES, TINY, 1)
    for name, measure in found["measures"].items():
        cell = measure["peers"]["dwell"]
        assert "value" in cell, f"{name}: {cell}"
        assert not any(cell.get(count) for count in ("early", "missing"))
