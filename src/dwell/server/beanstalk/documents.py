"""The documents of the stats and list commands: small YAML, with all the keys of beanstalkd.

Keys without a counterpart in Dwell are 0; the page of the protocol names them.
"""

import asyncio
import os
import resource
from collections.abc import Iterable, Mapping

from dwell.batch.stats import Stats, TopicStats
from dwell.message import Message, State
from dwell.server.beanstalk.commands import Verb
from dwell.server.beanstalk.hall import Hall
from dwell.server.beanstalk.histories import Histories
from dwell.server.beanstalk.replies import ok
from dwell.server.beanstalk.tubes import is_tube, topic_of, tube_of

#: The version of beanstalkd whose protocol is implemented. Clients derive the commands from it.
PROTOCOL_VERSION = "1.13"

#: How many topics are looked at in one turn of the event loop.
_AT_ONCE = 2000
_STATES = {
    State.DELAYED: "delayed",
    State.READY: "ready",
    State.LEASED: "reserved",
    State.DEAD: "buried",
}
#: The verbs that the server counts, in the order of its document.
_COUNTED = (
    Verb.PUT,
    Verb.PEEK,
    Verb.PEEK_READY,
    Verb.PEEK_DELAYED,
    Verb.PEEK_BURIED,
    Verb.RESERVE,
    Verb.RESERVE_WITH_TIMEOUT,
    Verb.DELETE,
    Verb.RELEASE,
    Verb.USE,
    Verb.WATCH,
    Verb.IGNORE,
    Verb.BURY,
    Verb.KICK,
    Verb.TOUCH,
    Verb.STATS,
    Verb.STATS_JOB,
    Verb.STATS_TUBE,
    Verb.LIST_TUBES,
    Verb.LIST_TUBE_USED,
    Verb.LIST_TUBES_WATCHED,
    Verb.PAUSE_TUBE,
)


def tube_list(tubes: Iterable[str]) -> bytes:
    """List tubes."""
    return ok("---\n" + "".join(f"- {tube}\n" for tube in tubes))


def server_stats(hall: Hall, stats: Stats, urgent: int, tubes: int) -> bytes:
    """Return the statistics of the server, which has so many urgent jobs and tubes."""
    return _document(
        {
            **_jobs(list(stats.topics.values()), urgent),
            **{f"cmd-{_word(verb)}": hall.commands[verb] for verb in _COUNTED},
            "job-timeouts": stats.totals.get("lapse", 0),
            "total-jobs": stats.totals.get("put", 0),
            "max-job-size": hall.service.most_body_bytes,
            "current-tubes": tubes,
            **_connections(hall),
            **_process(hall),
        }
    )


def _connections(hall: Hall) -> dict[str, int]:
    sessions = hall.sessions
    return {
        "current-connections": len(sessions),
        "current-producers": sum(session.is_producer for session in sessions),
        "current-workers": sum(session.is_worker for session in sessions),
        "current-waiting": len(hall.waiting),
        "total-connections": hall.connections,
    }


def _process(hall: Hall) -> dict[str, object]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    system = os.uname()
    return {
        "pid": os.getpid(),
        "version": _quoted(PROTOCOL_VERSION),
        "rusage-utime": f"{usage.ru_utime:.6f}",
        "rusage-stime": f"{usage.ru_stime:.6f}",
        "uptime": (hall.now_ms - hall.service.started_ms) // 1000,
        "binlog-oldest-index": 0,
        "binlog-current-index": 0,
        "binlog-records-migrated": 0,
        "binlog-records-written": 0,
        "binlog-max-size": 0,
        "draining": "true" if hall.service.is_draining else "false",
        "id": hall.id,
        "hostname": _quoted(system.nodename),
        "os": _quoted(system.version),
        "platform": _quoted(system.machine),
    }


def tube_stats(hall: Hall, tube: str, topic: str, counts: TopicStats, urgent: int) -> bytes:
    """Return the statistics of a tube."""
    total = hall.totals[topic]
    watching = [session for session in hall.sessions if tube in session.watched]
    return _document(
        {
            "name": _quoted(tube),
            **_jobs([counts], urgent),
            "total-jobs": total.puts,
            "current-using": sum(session.tube == tube for session in hall.sessions),
            "current-watching": len(watching),
            "current-waiting": sum(session in hall.waiting for session in watching),
            "cmd-delete": total.deletes,
            "cmd-pause-tube": total.pauses,
            "pause": hall.pauses.delay_s(topic),
            "pause-time-left": hall.pauses.left_ms(topic) // 1000,
        }
    )


def job_stats(message: Message, histories: Histories, now_ms: int) -> bytes:
    """Return the statistics of a job."""
    left_s = _left_s(message, now_ms)
    delay_s = histories.delay_s(message.number)
    if delay_s is None:
        # The delay of a job put elsewhere, or long ago, is at least the time left of it.
        delay_s = left_s if message.state is State.DELAYED else 0
    return _document(
        {
            "id": message.number,
            "tube": _quoted(tube_of(message.topic)),
            "state": _STATES[message.state],
            "pri": message.priority,
            "age": max(now_ms - message.due_ms, 0) // 1000,
            "delay": delay_s,
            "ttr": message.lease_ms // 1000,
            "time-left": left_s,
            "file": 0,
            **histories.counts(message),
        }
    )


def _left_s(message: Message, now_ms: int) -> int:
    """Return in how many seconds a job is due or its lease ends.

    A job is not due before that: so this is rounded up. Nor has its holder more time than that: so
    this is rounded down, as in beanstalkd, and the suite of fivebeans insists on it.
    """
    if message.state is State.LEASED:
        return (message.lease_until_ms - now_ms) // 1000
    return -((now_ms - message.due_ms) // 1000) if message.state is State.DELAYED else 0


async def tubes_of(hall: Hall, stats: Stats) -> dict[str, str]:
    """Return the tubes that there are, as they came, and their topics: with jobs, used, watched.

    It yields to other tasks in between.
    """
    tubes = {}
    for at, (topic, counts) in enumerate(stats.topics.items(), 1):
        if is_tube(topic) and _has_jobs(counts):
            tubes[tube_of(topic)] = topic
        if at % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return hall.order.ordered({tube: topic_of(tube) or tube for tube in hall.chosen} | tubes)


def is_there(hall: Hall, tube: str, counts: TopicStats) -> bool:
    """Tell whether a tube is there: with jobs, used or watched."""
    return tube in hall.chosen or _has_jobs(counts)


def _has_jobs(counts: TopicStats) -> bool:
    return bool(counts.delayed or counts.ready or counts.leased or counts.dead)


def _jobs(counts: list[TopicStats], urgent: int) -> dict[str, int]:
    return {
        "current-jobs-urgent": urgent,
        "current-jobs-ready": sum(each.ready for each in counts),
        "current-jobs-reserved": sum(each.leased for each in counts),
        "current-jobs-delayed": sum(each.delayed for each in counts),
        "current-jobs-buried": sum(each.dead for each in counts),
    }


def _word(verb: Verb) -> str:
    return verb.name.lower().replace("_", "-")


def _quoted(text: str) -> str:
    return f'"{text}"'


def _document(values: Mapping[str, object]) -> bytes:
    return ok("---\n" + "".join(f"{name}: {value}\n" for name, value in values.items()))
