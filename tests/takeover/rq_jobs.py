"""Puts jobs into RQ, and shows what it has; it runs where RQ is installed.

``python rq_jobs.py URL VERB [COUNT]``.
"""

import sys
from datetime import UTC, datetime, timedelta

from croniter import croniter
from redis import Redis
from rq import Callback, Queue, RateLimit, Repeat, SimpleWorker
from rq.cron import CronScheduler
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
    elif verb == "ttl":
        orders.enqueue(print, 1, job_id="waits", ttl=600)
        mails.enqueue_in(timedelta(minutes=10), print, 1, job_id="later", ttl=3600)
        mails.enqueue_in(timedelta(hours=1), print, 1, job_id="never", ttl=600)
    elif verb == "callbacks":
        calls = {"on_success": Callback(print), "on_failure": Callback(print, timeout=7)}
        orders.enqueue(print, 1, job_id="calls", failure_ttl=77, **calls)
    elif verb == "limited":
        limit = RateLimit("customer", int(count))
        for number in range(5):
            mails.enqueue(print, number, job_id=f"mail-{number}", rate_limit=limit)
            orders.enqueue(print, number, job_id=f"order-{number}", rate_limit=limit)
        due = datetime(2099, 1, 1, tzinfo=UTC)
        mails.enqueue_at(due, print, 9, job_id="later", rate_limit=limit)
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
    elif verb == "cron":
        # It starts as ``rq cron`` does, and is killed.
        scheduler = CronScheduler(connection, name=count)
        jobs = {"queue_name": "mails", "job_timeout": 30, "ttl": 600}
        scheduler.register(print, args=(1, "a"), kwargs={"end": ""}, cron="0 3 * * *", **jobs)
        scheduler.register(print, "orders", interval=90, name="often", meta={"a": 1})
        scheduler.register(print, "orders", cron="*/5 9-17 * * 1-5")
        scheduler.register(print, "mails", args=({1},), interval=60)
        scheduler.register_birth()
        scheduler.enqueue_jobs()
        scheduler.save()
        for job in scheduler.get_jobs():
            print(job.next_enqueue_time.isoformat())
    elif verb == "lines":
        scheduler = CronScheduler(connection, name="lines")
        for line in count.split(";"):
            scheduler.register(print, "mails", cron=line, args=(line,))
        scheduler.register_birth()
        scheduler.enqueue_jobs()
        scheduler.save()
        for line in count.split(";"):
            runs = croniter(line, datetime.now(UTC))
            print(*[int(runs.get_next(float)) for _ in range(12)])
    elif verb == "failed":
        print(len(FailedJobRegistry(queue=mails)))


main(*sys.argv[1:])
