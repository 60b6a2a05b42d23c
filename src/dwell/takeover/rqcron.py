"""The cron schedulers of RQ as a source: each of their jobs becomes a schedule.

RQ 2.5 to 3 has the jobs of a cron scheduler in code, and shows them in Redis while that runs: the
sorted set ``rq:cron_schedulers`` has the names, and the hash ``rq:cron_scheduler:NAME`` the jobs as
JSON.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from dwell.calendar.dialects import has_wrapping_step
from dwell.calendar.epoch import to_ms
from dwell.errors import InvalidInput, InvalidSchedule, InvalidUrl
from dwell.given import values
from dwell.takeover.contract import topic_for
from dwell.takeover.entries import Entry, digest, moment_of, name_for
from dwell.takeover.redissource import RedisSource, either_day

_SCHEDULERS, _SCHEDULER = "rq:cron_schedulers", b"rq:cron_scheduler:"
#: The fields of a job that change with each run.
_TIMES = ("latest_enqueue_time", "next_enqueue_time")
#: Stands in the place of arguments that are not JSON.
_NO_JSON = "<not JSON serializable>"
#: A weekday without a range, before its step.
_STEP = re.compile(r"(?<![^,])(\w+)/")


class RqCron(RedisSource):
    """Jobs of the cron schedulers that run, which go to the topic of their queue, or ``topic``.

    ``zone`` is where they run, as RQ reads lines of cron in local time.
    """

    SYSTEM, SCHEME = "RQ", "rq-cron"
    OPTIONS = {"zone": "UTC"}  # noqa: RUF012 - as declared

    def read(self, client: Any) -> Iterator[Entry]:
        """Yield an entry for each job; raises InvalidUrl if no cron scheduler runs."""
        seen, is_any = Counter[str](), False
        for name in client.zrange(_SCHEDULERS, 0, -1):
            data = client.hget(_SCHEDULER + name, "cron_jobs")
            if data is None:
                # It has ended, or was killed two minutes ago.
                continue
            is_any, own = True, Counter[str]()
            for entry in self._scheduler(f"of {name.decode()!r:.80}", _jobs(data)):
                if entry.reason:
                    yield entry
                    continue
                own[entry.name] += 1
                # A second scheduler with the same configuration has the same jobs.
                if own[entry.name] > seen[entry.name]:
                    seen[entry.name] += 1
                    yield entry._replace(name=_numbered(entry.name, own[entry.name]))
        if not is_any:
            raise InvalidUrl(f"{self.where}: has no cron scheduler of RQ that runs, expected one")

    def _scheduler(self, where: str, jobs: list[Any]) -> list[Entry]:
        """Return the entries of a scheduler, whose lines are all in one zone.

        A wrong zone may read some of the lines alike, so all are refused then.
        """
        found = [self._entry(f"cron job {at} {where}", job) for at, job in enumerate(jobs, 1)]
        wrong = next((one.reason for one in found if one.reason.startswith("zone: ")), "")
        return [
            Entry(one.where, reason=wrong) if wrong and "cron" in one.words else one
            for one in found
        ]

    def _entry(self, where: str, job: Any) -> Entry:
        try:
            func, queue, told = job["func_name"], job["queue_name"], job.get("next_enqueue_time")
            lasting = {name: value for name, value in job.items() if name not in _TIMES}
            text = f"{job.get('name') or func}:{digest(json.dumps(lasting, sort_keys=True))}"
            body = {"func": func, "args": _given(job, "args") or []}
            body["kwargs"] = _given(job, "kwargs") or {}
            next_at = moment_of(told, "next_enqueue_time") if told else None
            words = {**self._times(job, next_at), **_options(job)}
            topic = topic_for("queue", queue, self.topic)
            entry = Entry(where, name_for("rq", text), topic, values.body(body), words)
            if job.get("cron") and next_at is not None:
                self.check_next(entry, to_ms(next_at))
        except InvalidInput as error:
            return Entry(where, reason=str(error))
        except (ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
            return Entry(where, reason=f"it is no cron job of RQ: {error}")
        return entry._replace(is_anchored=not job.get("cron"))

    def _times(self, job: Mapping[str, Any], next_at: datetime | None) -> dict[str, object]:
        """Return the words that say when it runs; raises InvalidSchedule."""
        if job.get("cron"):
            return {"cron": _in_crontab(job["cron"]), "zone": self.options["zone"]}
        if not isinstance(job.get("interval"), int):
            raise InvalidSchedule(f"interval: got {job.get('interval')!r:.40}, expected seconds")
        return {"every": f"{job['interval']}s", "start": next_at}


def _numbered(name: str, number: int) -> str:
    """Return the name of a job that is registered ``number`` times, and runs as often."""
    return name if number == 1 else name_for("rq", f"{name.removeprefix('rq:')}-{number}")


def _in_crontab(line: str) -> str:
    """Return a line as crontab(5) has it; raises InvalidSchedule.

    RQ reads it by croniter: a sixth field has the seconds, a weekday with a step goes on to 6, and
    a range with a step, of one value or one that wraps around, in another way.
    """
    fields = line.split()
    if len(fields) == 6:
        fields.insert(0, fields.pop())
    if len(fields) > 1:
        fields[-1] = _STEP.sub(lambda found: f"{found[1].replace('7', '0')}-6/", fields[-1])
    if has_wrapping_step(line):
        allowed = "all values in place of a range that has a step and goes not from less to more"
        raise InvalidSchedule(f"cron: got {line!r:.80}, expected {allowed}")
    return either_day(" ".join(fields))


def _jobs(data: bytes) -> list[Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    # An entry that is no job is refused as such.
    return found if isinstance(found, list) else [found]


def _given(job: Mapping[str, Any], name: str) -> Any:
    """Return arguments; raises InvalidInput if RQ could not show them."""
    if job.get(name) == _NO_JSON:
        raise InvalidInput(f"{name}: got values that are not JSON, which RQ does not show")
    return json.loads(job[name]) if job.get(name) else None


def _options(job: Mapping[str, Any]) -> dict[str, object]:
    headers = {"content-type": "application/json"}
    if job.get("job_timeout"):
        headers["rq-timeout"] = str(job["job_timeout"])
    if job.get("meta") not in (None, _NO_JSON):
        headers["rq-meta"] = str(job["meta"])
    ttl = {"ttl": f"{job['ttl']}s"} if job.get("ttl") else {}
    return {"headers": headers, **ttl}
