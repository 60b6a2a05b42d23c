"""A program that puts tasks of Celery, works on them in its own process, and prints figures.

``python -m bench.celery_worker URL tasks N`` or ``... countdowns N``.
"""

import json
import os
import sys
import threading
import time

from celery import Celery

import dwell.celery
from bench.process import own_memory

_QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR")
#: How long a worker gets to take what it takes before its memory is looked at, seconds.
_SETTLED_S = 3.0


class _Count:
    """Counts what is handled, from the first to the last."""

    wanted = handled = 0
    start = 0.0


#: The figures so far.
_said: dict[str, float] = {}


def _noop() -> None:
    if not _Count.handled:
        _Count.start = time.perf_counter()
    _Count.handled += 1
    if _Count.handled == _Count.wanted:
        _end(handled=(_Count.wanted - 1) / (time.perf_counter() - _Count.start))


def _end(**figures: float) -> None:
    print("\n" + json.dumps(_said | figures), flush=True)
    os._exit(0)


def _app(url: str) -> Celery:
    app = Celery("bench", broker=url)
    app.conf.update(task_ignore_result=True, worker_redirect_stdouts=False)
    return app


def _put(app: Celery, count: int, **options: object) -> float:
    """Put tasks, all in batches; return how many a second."""
    start, task = time.perf_counter(), app.tasks["noop"]
    with app.producer_pool.acquire(block=True) as producer, producer.batch():
        for _ in range(count):
            task.apply_async(producer=producer, **options)
    return count / (time.perf_counter() - start)


def _tasks(app: Celery, count: int) -> None:
    start, task = time.perf_counter(), app.tasks["noop"]
    singly = count // 4
    for _ in range(singly):
        task.apply_async()
    _said["published"] = singly / (time.perf_counter() - start)
    _said["batched"] = _put(app, count - singly)
    _Count.wanted = count
    _work(app)


def _countdowns(app: Celery, count: int) -> None:
    """Put countdowns of an hour while a worker runs, which may hold none of them."""
    grown = threading.Thread(target=_watch, args=(app, count), daemon=True)
    app.set_current()
    grown.start()
    _work(app)


def _watch(app: Celery, count: int) -> None:
    time.sleep(_SETTLED_S)
    before = own_memory()
    # Another process puts them, so that this one holds what the worker holds.
    command = [sys.executable, "-m", "bench.celery_worker", app.conf.broker_url, "put", str(count)]
    os.spawnv(os.P_WAIT, sys.executable, command)
    time.sleep(_SETTLED_S)
    _end(grown_bytes=max(own_memory() - before, 0))


def _work(app: Celery) -> None:
    app.worker_main(["worker", "--pool=solo", *_QUIET])


if __name__ == "__main__":
    _, url, what, number = sys.argv
    assert dwell.celery.SCHEME
    app = _app(url)
    app.task(_noop, name="noop")
    if what == "put":
        _put(app, int(number), countdown=3600)
    else:
        {"tasks": _tasks, "countdowns": _countdowns}[what](app, int(number))
