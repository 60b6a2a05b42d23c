"""Systems with queues in a Redis, each with programs of its own that put jobs."""

import atexit
import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import tempfile
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import redis
from celery import Celery
from kombu import pools

import dwell
from bench.bullmq import HERE as BULLMQ
from bench.bullmq import install
from dwell.message import State
from dwell.takeover.jobs import JobsPlace
from dwell.takeover.process import run
from tests.beanstalk.served import need
from tools.rooms import ROOT

HERE = Path(__file__).parent
FIRST = datetime(2099, 1, 1, tzinfo=UTC)
#: The first due of what is delayed; the others follow each a second later.
FIRST_MS = int(FIRST.timestamp() * 1000)


def asked(command, given=b"", **words):
    """Return the lines that a program printed."""
    done = subprocess.run(command, input=given, capture_output=True, timeout=120, **words)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split("\n")[:-1]


class Source:
    """``fill`` puts ``count`` delayed jobs into mails, and as many ready ones into orders.

    Their ids are ``later-N`` and ``now-N``.
    """

    name = ""
    #: The list of the jobs that are ready.
    ready = ""
    #: What every message of a delayed job is later, to be never early.
    later_ms = 0

    def __init__(self, url):
        self.url = f"{self.name}+{url}"
        self.redis = url

    def fill(self, count):
        raise NotImplementedError


class Rq(Source):
    name, ready = "rq", "rq:queue:orders"

    def fill(self, count):
        asked(
            [
                ROOT / ".brokers/tasks/bin/python",
                HERE / "rq_jobs.py",
                self.redis,
                "fill",
                str(count),
            ]
        )


@contextlib.contextmanager
def celery_at(url, **options):
    """An app of Celery that sends tasks to a Redis."""
    app = Celery("client", broker=url, set_as_current=False)
    app.conf.broker_transport_options = options
    try:
        yield app
    finally:
        pools.reset()
        app.close()


class InCelery(Source):
    name, ready = "celery", "orders"

    def fill(self, count):
        with celery_at(self.redis) as app, app.producer_pool.acquire(block=True) as producer:
            for number in range(count):
                ids = {"producer": producer, "args": (number,)}
                eta = FIRST + timedelta(seconds=number)
                app.send_task("a", task_id=f"later-{number}", queue="mails", eta=eta, **ids)
                app.send_task("a", task_id=f"now-{number}", queue="orders", **ids)


class Bullmq(Source):
    name, ready = "bullmq", "bull:orders:wait"

    def fill(self, count):
        bullmq(self.redis, "fill", str(count))


def bullmq(url, *words):
    """Run bullmq_jobs.mjs to its end; return what it printed."""
    return asked(bullmq_command(url, *words))


def bullmq_command(url, *words):
    node = need("node", "Node.js (nodejs)")
    need("npm", "npm")
    install()
    return [node, HERE / "bullmq_jobs.mjs", BULLMQ, str(urlsplit(url).port), *words]


class Asynq(Source):
    name, ready, later_ms = "asynq", "asynq:{orders}:pending", 1_000

    def fill(self, count):
        asynq(self.redis, "fill", str(count))


def asynq(url, *words):
    """Run the program in Go to its end; return what it printed."""
    return asked([_built(), str(urlsplit(url).port), *words])


@cache
def _built():
    go = need("go", "Go (golang)")
    program = Path(tempfile.mkdtemp(prefix="dwell-asynq-")) / "asynq"
    atexit.register(shutil.rmtree, program.parent)
    env = {**os.environ, "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}
    asked([go, "build", "-o", program, "."], cwd=HERE / "asynq", env=env)
    return program


SOURCES = {source.name: source for source in (Rq, InCelery, Bullmq, Asynq)}


def moved(store, url, **how):
    return run(str(store), url, tell=lambda report: None, **how)


def everything(queue, topic):
    return [m for s in (State.DELAYED, State.READY) for page in queue.pages(topic, s) for m in page]


def dues(store):
    """Return the dues of all messages of a store, by their ids."""
    with dwell.open(store) as queue:
        return {m.id: m.due_ms for topic in ("mails", "orders") for m in everything(queue, topic)}


def contents(url):
    """Return all that a Redis has."""
    with redis.Redis.from_url(url) as client:
        return {key: client.dump(key) for key in client.scan_iter()}


def beside(function, *words):
    """Run a function in a process of its own, and return it."""
    process = multiprocessing.get_context("fork").Process(target=function, args=words)
    process.start()
    return process


def killed(store, url, moment):
    """Run a takeover that is killed ``before`` or ``after`` it removes the first jobs."""
    process = beside(_moved_until, store, url, moment)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def _moved_until(store, url, moment):
    remove = JobsPlace.let_go

    async def let_go(self, load, places):
        if moment == "after":
            await remove(self, load, places)
        os.kill(os.getpid(), signal.SIGKILL)

    JobsPlace.let_go = let_go
    moved(store, url)
