"""The example of a shop: real processes, some of them killed; its README and its compose file."""

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
import yaml

import dwell
from dwell.server.settings import FIELDS
from dwell.server.sources import load
from tests.pages import at_free_ports
from tests.server.process import ServerProcess
from tests.waiting import until

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "orders"
TOPIC = "unpaid"
#: How long somebody may take to pay, in minutes: a little more than half a second.
SOON = "0.01"


@pytest.fixture
def folder(tmp_path):
    """A folder with what the example is made of, for one test."""
    return shutil.copytree(EXAMPLE, tmp_path / "orders")


@contextlib.contextmanager
def running(folder, url, *words):
    """Run Python as the README does, and kill it at the end; what it says is in a file."""
    log = folder / f"{Path(words[-1]).stem}.log"
    environ = {**os.environ, "DWELL_STORE": url, "SHOP_MINUTES": SOON}
    with log.open("wb") as out:
        command = [sys.executable, *words]
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def shop_at(folder, queue_url):
    """Run the shop on a free port; give a function that sends it a request."""
    with running(folder, queue_url, "-m", "uvicorn", "--port", "0", "app:app") as process:
        log = folder / "app:app.log"
        says = re.compile(r"running on (http://\S+)")
        until(lambda: process.poll() is not None or says.search(log.read_text()))
        found = says.search(log.read_text())
        assert found, log.read_text()

        def ask(method, path):
            request = urllib.request.Request(found[1] + path, method=method)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, json.load(error)

        yield ask


@contextlib.contextmanager
def database(folder):
    """Open the shop's database, and let it write down every change of an order's state."""
    subprocess.run(
        [sys.executable, "-c", "import orders; orders.connect()"], cwd=folder, check=True
    )
    db = sqlite3.connect(folder / "shop.db", timeout=60, isolation_level=None)
    with contextlib.closing(db):
        db.execute("CREATE TABLE changes (id TEXT, state TEXT)")
        db.execute(
            "CREATE TRIGGER watch AFTER UPDATE OF state ON orders"
            " BEGIN INSERT INTO changes VALUES (new.id, new.state); END"
        )
        yield db


def changed_to(db, state):
    """Return how often each order came to a state."""
    return Counter(id_ for (id_,) in db.execute("SELECT id FROM changes WHERE state = ?", (state,)))


def placed(ask):
    status, order = ask("POST", "/orders")
    assert (status, order["state"]) == (201, "open")
    return order["id"]


def pending(queue):
    counts = queue.stats().topics[TOPIC]
    return counts.delayed + counts.ready + counts.leased


# --- the processes ----------------------------------------------------------------------------


@pytest.mark.campaign
def test_each_order_is_paid_or_closed_once_though_the_worker_is_killed(folder):
    with (
        ServerProcess(store=folder / "queue") as server,
        database(folder) as db,
        shop_at(folder, server.url("")) as ask,
        dwell.open(server.url("")) as queue,
    ):
        queue.configure(TOPIC, lease_ms=3_000)
        ids = [placed(ask) for _ in range(12)]
        paid = ids[::3]
        for id_ in paid:
            assert ask("POST", f"/orders/{id_}/pay")[0] == 200

        # Who holds the database holds the worker up between its take and its ack.
        db.execute("BEGIN IMMEDIATE")
        with running(folder, server.url(""), "closing.py") as worker:
            lost = until(
                lambda: queue.scan(TOPIC, "leased", limit=1).messages, "the worker took nothing"
            )[0]
            worker.send_signal(signal.SIGKILL)
            worker.wait()
        db.execute("ROLLBACK")
        assert not changed_to(db, "closed")
        # Its message cannot be cancelled, and comes back when it is paid already; if the answer to
        # the take had not been sent yet, it is ready again, and is cancelled.
        assert ask("POST", f"/orders/{lost.id}/pay")[0] == 200
        paid.append(lost.id)

        with running(folder, server.url(""), "closing.py") as worker:
            until(lambda: not pending(queue), "not all orders were looked at")
            more = [placed(ask) for _ in range(20)]
            until(lambda: changed_to(db, "closed").keys() & set(more), "no order was closed")
            # From here on payment and closing meet, and the database decides.
            answers = {id_: ask("POST", f"/orders/{id_}/pay")[0] for id_ in reversed(more)}
            until(lambda: not pending(queue), "not all orders were looked at")
            worker.terminate()
            assert worker.wait(60) == 0

        assert set(answers.values()) <= {200, 409}
        paid += [id_ for id_, status in answers.items() if status == 200]
        closed = set(ids + more) - set(paid)
        assert changed_to(db, "paid") == dict.fromkeys(paid, 1)
        assert changed_to(db, "closed") == dict.fromkeys(closed, 1)
        for id_ in ids + more:
            state = "paid" if id_ in paid else "closed"
            assert ask("GET", f"/orders/{id_}")[1]["state"] == state
            assert ask("POST", f"/orders/{id_}/pay")[0] == (200 if id_ in paid else 409)


@pytest.mark.campaign
def test_what_is_ordered_while_the_queue_is_away_is_swept_up(folder):
    with database(folder) as db, ServerProcess(store=folder / "queue") as server:
        url = server.url("")
        with shop_at(folder, url) as ask:
            server.signal(signal.SIGKILL)
            server.wait()
            id_ = placed(ask)
            assert db.execute("SELECT is_put FROM orders").fetchall() == [(0,)]
            address = url.removeprefix("http://")
            with (
                ServerProcess("--http", address, store=folder / "queue") as again,
                running(folder, url, "closing.py"),
            ):
                again.ready()
                until(lambda: changed_to(db, "closed"), "the order was not closed")
                assert changed_to(db, "closed") == {id_: 1}
                assert ask("GET", f"/orders/{id_}")[1]["state"] == "closed"


@pytest.mark.campaign
def test_the_readme_runs(folder):
    page = folder / "README.md"
    text = at_free_ports(page.read_text())
    page.write_text(text)
    # The worker of the example looks for the queue where the page does not say it.
    store = re.search(r"http://127.0.0.1:\d+(?=/readyz)", text)
    assert store
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "DWELL_STORE": store[0]}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.pages", str(page)],
        cwd=folder,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, error = process.communicate(timeout=240)
        assert process.returncode == 0, error
    finally:
        # Where the page stopped half-way, its programs are still there.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


# --- the containers, as far as they can be tried without what runs them ---------------------------

COMPOSE = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SERVICES = COMPOSE["services"]


def test_the_queue_starts_with_what_compose_gives_it():
    own = re.findall(r"(DWELL_\w+)=(\S+)", DOCKERFILE.partition("ENV ")[2])
    given = SERVICES["queue"]["environment"]
    assert set(given) <= {field.env for field in FIELDS.values()}
    settings = load({}, {**dict(own), **given}).settings
    assert settings.insecure
    host, _, port = (
        SERVICES["shop"]["environment"]["DWELL_STORE"].removeprefix("http://").partition(":")
    )
    assert host in SERVICES
    assert host in settings.allowed_hosts
    assert int(port) == settings.addresses["http"].port
    assert "ports" not in SERVICES["queue"]


def test_the_image_of_the_shop_is_made_of_what_reaches_the_builder():
    lines = SERVICES["shop"]["build"]["dockerfile_inline"].splitlines()
    assert lines[0] in DOCKERFILE
    copies = [line for line in lines if line.startswith("COPY")]
    assert copies
    assert all(line in DOCKERFILE for line in copies)
    extras = next(re.search(r"/src\[([a-z,]+)\]", line)[1] for line in lines if "pip" in line)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


@pytest.mark.parametrize("name", ["shop", "closing"])
def test_shop_and_worker_have_code_database_and_queue(name):
    service = SERVICES[name]
    mounts = dict(mount.split(":")[:2] for mount in service["volumes"])
    assert mounts == {".": "/shop", "shop": "/data"}
    assert "shop" in COMPOSE["volumes"]
    assert service["depends_on"] == {"queue": {"condition": "service_healthy"}}
    words = service["command"].split()
    files = {"uvicorn": EXAMPLE / "app.py", "python": EXAMPLE / Path(words[-1]).name}
    assert files[words[0]].exists()
    assert "/shop" in service["command"]
    assert SERVICES["closing"]["ports"] == []
