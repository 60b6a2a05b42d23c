"""The replay: Spark schedules and brings the news, while the server is killed once."""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import DataFrame, SparkSession

import dwell
from dwell.spark.pipelines import schedule
from examples.flights.plan import BODY, ID, NEWS_MS, TOPIC, Replay, expected
from examples.flights.processes import Outage, Server, now_ms, worker

_KILL_AT = 0.4
_SLICE_MS = 3_000
_LONGEST_REST_MS = 120_000


def run(
    spark: SparkSession, server: Server, source: str, replay: Replay, *, kill: bool
) -> Outage | None:
    """Replay everything to its end; return when the server was away, if it was killed."""
    print(_schedule(spark, server.url, source, replay), flush=True)
    news = News(expected(spark, source, replay), server.url)
    # What is known before anything falls due is told before anybody can take it.
    news.tell(now_ms())
    # The kill comes when it comes, and not when Spark is idle.
    with worker(server.url) as sender, ThreadPoolExecutor(1) as aside:
        killing = aside.submit(_kill, server, replay.part_ms(_KILL_AT)) if kill else None
        news.follow(replay.end_ms - NEWS_MS)
        outage = killing.result() if killing else None
        _wait_until_done(server.url, sender, replay.end_ms)
    return outage


def _schedule(spark: SparkSession, url: str, source: str, replay: Replay) -> str:
    settings = schedule.ScheduleSettings(
        url=url, source=source, id=ID, due=replay.due_ms(), body=BODY, topic=TOPIC
    )
    return schedule.run(spark, settings)


class News:
    """Tells the queue what really happened, slice by slice of the replay's time.

    Spark repeats a task that a killed server has failed, and a verb that was done already changes
    nothing when it is done again.
    """

    def __init__(self, flights: DataFrame, url: str) -> None:
        self._news = flights.where("is_cancelled OR is_late").cache()
        self._url = url
        self._told_ms = 0

    def follow(self, end_ms: int) -> None:
        """Tell what becomes known, until all is known that there is by ``end_ms``."""
        while self._told_ms <= end_ms:
            began_ms = now_ms()
            self.tell(began_ms)
            time.sleep(max(began_ms + _SLICE_MS - now_ms(), 0) / 1000)
        self._news.unpersist()

    def tell(self, until_ms: int) -> None:
        """Tell all that is known by now and was not told before."""
        part = self._news.where(f"news_ms > {self._told_ms} AND news_ms <= {until_ms}")
        self._write(part.where("is_cancelled").select("id"), "cancel")
        self._write(part.where("is_late").selectExpr("id", "due_ms AS due"), "reschedule")
        self._told_ms = until_ms

    def _write(self, rows: DataFrame, op: str) -> None:
        writer = rows.write.format("dwell").mode("append")
        writer.option("url", self._url).option("topic", TOPIC).option("op", op).save()


def _kill(server: Server, at_ms: int) -> Outage:
    time.sleep(max(at_ms - now_ms(), 0) / 1000)
    # A worker whose server is away when it starts says so, and ends.
    with dwell.open(server.url) as queue:
        while not queue.stats().totals["take"] and now_ms() < at_ms + _LONGEST_REST_MS:
            time.sleep(0.05)
    print("killing the server (SIGKILL) and starting it again on the same store", flush=True)
    return server.kill()


def _wait_until_done(url: str, sender: subprocess.Popen[bytes], end_ms: int) -> None:
    """Wait until nothing is pending; raises SystemExit when that does not come."""
    with dwell.open(url) as queue:
        while not _is_done(counts := queue.stats().topics[TOPIC]):
            if sender.poll() is not None:
                raise SystemExit(f"the worker ended with status {sender.returncode}")
            if now_ms() > end_ms + _LONGEST_REST_MS:
                raise SystemExit(f"reminders are left: {counts}")
            time.sleep(0.1)


def _is_done(counts: dwell.TopicStats) -> bool:
    return counts.delayed == counts.ready == counts.leased == 0
