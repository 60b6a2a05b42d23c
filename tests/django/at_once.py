"""A backend that runs each task as it is enqueued, as the one does that Django's tests are for."""

from types import SimpleNamespace

from dwell.django import DwellBackend
from dwell.django.executing import Executor
from dwell.worker import Bury


class AtOnce(DwellBackend):
    """Enqueues a task, takes it, and runs it in the way of a worker."""

    def __init__(self, alias, params):
        super().__init__(alias, params | {"OPTIONS": {"url": "memory:"}})
        self.options = params.get("OPTIONS", {})

    def enqueue(self, task, args, kwargs):
        result = super().enqueue(task, args, kwargs)
        batch = self.queue.take_ids(self.topic(task.queue_name), result.id)
        if len(batch):
            worker = SimpleNamespace(sync_queue=self.queue)
            try:
                done = Executor(self, worker, "worker")(batch[0])
            except Bury as failed:
                self.queue.bury(batch[0], failed.reason)
            else:
                self.queue.ack(batch[0], result=done)
        return self.get_result(result.id)
