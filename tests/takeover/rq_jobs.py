"""Puts jobs into RQ, and shows what it has; it runs where RQ is installed.

``python rq_jobs.py URL VERB [COUNT]``.
"""

import sys
from datetime import UTC, datetime, timedelta

from redis import Redis
from rq import Queue, Repeat, SimpleWorker
from rq.job import Job
from rq.registry import FailedJobRegistry, ScheduledJobRegistry
from rq.serializers import JSONSerializer


def main(url: str, verb: str, count: str = "10") -> None:
    """Do what a test wants."""
    connection = Redis.from_url(url)
    mails, orders = (Queue(name, connection=connection) for name in ("mails", "orders"))
    if verb == "fill":
        for number in range(int(count)):
            due = datetime(2099, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
            mails.enqueue_at(
                due, print, number, job_id=f"later-{number}", description=f"no {number}"
            )
            orders.enqueue(print, number, job_id=f"now-{number}")
    elif verb == "odd":
        mails.enqueue_in(timedelta(hours=1), print, "x" * (2 << 20), job_id="large")
        mails.enqueue(print, 1, job_id="repeats", repeat=Repeat(times=3, interval=5))
        first = orders.enqueue(print, 1, job_id="first")
        orders.enqueue(print, 2, job_id="second", depends_on=first)
        Queue("json", connection=connection, serializer=JSONSerializer).enqueue(
            "shop.pay", 17, job_id="json"
        )
        connection.delete("rq:job:gone")
        connection.rpush("rq:queue:mails", "gone")
    elif verb == "soon":
        mails.enqueue_in(timedelta(seconds=2), print, 1, job_id="soon")
    elif verb == "work":
        SimpleWorker([mails, orders], connection=connection).work(burst=True, with_scheduler=False)
    elif verb == "ids":
        for queue in Queue.all(connection):
            registry = ScheduledJobRegistry(queue=queue)
            print(*queue.job_ids, *registry.get_job_ids(), sep="\n")
    elif verb == "run":
        # What a message holds is what RQ had: it can be put back, byte for byte.
        job = Job.create(print, args=(1,), connection=connection, id="again")
        job.data = sys.stdin.buffer.read()
        print(job.func_name, job.args)
    elif verb == "failed":
        print(len(FailedJobRegistry(queue=mails)))


main(*sys.argv[1:])
