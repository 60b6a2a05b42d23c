"""``manage.py dwell_worker``: runs tasks until a signal stops it."""

import os
import socket
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dwell.django.backend import DwellBackend
from dwell.django.executing import Executor
from dwell.django.tasks import task_backend
from dwell.errors import DwellError
from dwell.given.values import delay_ms
from dwell.handle import open as open_queue
from dwell.queue import Queue
from dwell.worker import Worker


class Command(BaseCommand):
    """Runs the tasks of a backend; after SIGTERM or Ctrl-C it completes running tasks and ends."""

    help = "Runs tasks that were enqueued with dwell.django.DwellBackend."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--backend", default="default", help="its name in TASKS")
        parser.add_argument(
            "--queue-name", action="append", dest="queue_names", help="by default all of QUEUES"
        )
        parser.add_argument("--concurrency", type=int, default=4, help="tasks at once, in threads")
        parser.add_argument("--burst", action="store_true", help="end when nothing is left to run")
        parser.add_argument("--http", default="", help="HOST:PORT for health and metrics")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run tasks; raises CommandError."""
        backend = task_backend(options["backend"])
        if not isinstance(backend, DwellBackend):
            raise CommandError(f"--backend: got a {type(backend).__name__}, expected DwellBackend")
        names = options["queue_names"] or sorted(backend.queues)
        if not names:
            raise CommandError("--queue-name: expected some, as the backend names no QUEUES")
        if strange := set(names) - (backend.queues or set(names)):
            known = ", ".join(sorted(backend.queues))
            raise CommandError(f"--queue-name: got {', '.join(sorted(strange))}, expected {known}")
        try:
            self._run(backend, [backend.topic(name) for name in names], options)
        except DwellError as error:
            raise CommandError(str(error)) from error

    def _run(self, backend: DwellBackend, topics: list[str], options: dict[str, Any]) -> None:
        settings = backend.settings
        keep_ms = delay_ms(settings["keep_results"], "keep_results")
        with open_queue(settings["url"], **settings["store"]) as queue:
            for topic in topics:
                queue.configure(topic, remember_ms=keep_ms)
        owner = f"{socket.gethostname()}:{os.getpid()}"
        store = open_queue(settings["url"], **settings["store"]).store
        worker = Worker(Queue(store), owner=owner)
        executor = Executor(backend, worker, owner)
        worker.on(
            topics,
            concurrency=options["concurrency"],
            lease=settings["lease"],
            retry=settings["retry"],
            timeout=settings["timeout"],
            results=True,
        )(executor)
        try:
            worker.run(burst=options["burst"], http=options["http"])
        finally:
            executor.end()
