"""The job schedulers of BullMQ as a source: each becomes a schedule.

BullMQ 5 and 6 have for each queue, after ``bull:QUEUE:`` or another prefix, the sorted set
``repeat`` with the next moment of each job scheduler, and a hash ``repeat:ID`` with its rule and
the template of its jobs.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dwell.calendar.epoch import from_ms
from dwell.errors import InvalidInput, InvalidSchedule, InvalidUrl
from dwell.message import DEFAULT_PRIORITY, MAX_ATTEMPTS
from dwell.slices import slices
from dwell.takeover.bullmq import check_version
from dwell.takeover.contract import topic_for
from dwell.takeover.entries import Entry, name_for
from dwell.takeover.redislink import keys_between
from dwell.takeover.redissource import RedisSource, either_day

#: How many job schedulers are read together.
_AT_ONCE = 500


class BullmqSchedulers(RedisSource):
    """Job schedulers of one queue or of all, which go to the topic of their queue, or ``topic``.

    ``prefix`` is that of the app's queues, and ``zone`` is where BullMQ runs, for patterns without
    a zone of their own.
    """

    SYSTEM, SCHEME = "BullMQ", "bullmq-schedulers"
    OPTIONS = {"queue": "", "prefix": "bull", "zone": "UTC"}  # noqa: RUF012 - as declared

    def read(self, client: Any) -> Iterator[Entry]:
        """Yield an entry for each job scheduler."""
        for queue in self._queues(client):
            prefix = f"{self.options['prefix']}:{queue}:"
            topic = topic_for("queue", queue, self.topic)
            found = client.zrange(f"{prefix}repeat", 0, -1, withscores=True)
            for some in slices(found, _AT_ONCE):
                pipe = client.pipeline(transaction=False)
                for id_, _ in some:
                    pipe.hgetall(b"%srepeat:%s" % (prefix.encode(), id_))
                for (id_, next_ms), fields in zip(some, pipe.execute(), strict=True):
                    yield self._entry(queue, id_.decode(), topic, next_ms, fields)

    def _queues(self, client: Any) -> list[str]:
        """Return the queues of BullMQ; raises InvalidUrl if there is none, or for its version."""
        first, last = f"{self.options['prefix']}:", ":repeat"
        names = [self.options["queue"]]
        if not names[0]:
            # A job whose id ends so has a hash of such a name.
            keys = client.scan_iter(match=keys_between(first, last), count=1_000, _type="zset")
            names = sorted({key.decode()[len(first) : -len(last)] for key in keys})
        if not names:
            raise InvalidUrl(f"{self.where}: has no queues of BullMQ with prefix {first[:-1]!r}")
        for name in names:
            check_version(self.where, name, client.hget(f"{first}{name}:meta", "version"))
        return names

    def _entry(
        self, queue: str, id_: str, topic: str, score: float, fields: Mapping[bytes, bytes]
    ) -> Entry:
        where = f"job scheduler {id_!r:.80} of {queue}"
        try:
            next_ms = int(score)
            told = {name.decode(): value.decode() for name, value in fields.items()}
            opts = json.loads(told.get("opts") or "{}")
            name = name_for("bullmq", f"{queue}:{id_}")
            words = {**self._times(told, next_ms), **_template(told, opts)}
            entry = Entry(where, name, topic, (told.get("data") or "{}").encode(), words)
            self.check_next(entry, next_ms)
        except InvalidInput as error:
            return Entry(where, reason=str(error))
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            return Entry(where, reason=f"it is no job scheduler of BullMQ: {error}")
        return entry._replace(is_anchored="every" in told)

    def _times(self, told: Mapping[str, str], next_ms: int) -> dict[str, object]:
        """Return the words that say when it runs; raises InvalidSchedule."""
        if "limit" in told:
            raise InvalidSchedule(f"limit: got {told['limit']}, expected none: use an endDate")
        end = {"end": from_ms(int(told["endDate"]))} if "endDate" in told else {}
        if "every" in told:
            return {"every": f"{int(told['every'])}ms", "start": from_ms(next_ms), **end}
        if "pattern" not in told:
            raise InvalidSchedule("pattern: got none, expected one: an older BullMQ has made it")
        start = {"start": from_ms(int(told["startDate"]))} if "startDate" in told else {}
        zone = told.get("tz") or self.options["zone"]
        return {"cron": either_day(told["pattern"]), "zone": zone, **start, **end}


def _template(told: Mapping[str, str], opts: Any) -> dict[str, object]:
    """Return the words for messages like the jobs that it makes."""
    headers = {
        "content-type": "application/json",
        "bullmq-name": told.get("name", ""),
        "bullmq-opts": told.get("opts") or "{}",
    }
    words: dict[str, object] = {
        "headers": headers,
        "priority": DEFAULT_PRIORITY + int(opts.get("priority") or 0),
    }
    if int(opts.get("attempts") or 0) > 1:
        words["max_attempts"] = min(int(opts["attempts"]), MAX_ATTEMPTS)
    return words
