"""Run the flights job over Kafka: a year on Spark, a relay killed on the way, and its books."""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import dwell
import dwell.spark
from bench.brokers import connector_jars, kafka_server
from examples.flights import audit, data, report
from examples.flights.plan import TOPIC, Replay, expected
from examples.flights.processes import Outage, Server, now_ms
from examples.flights.sessions import session
from examples.flights_kafka import sent
from examples.flights_kafka.producer import EVENTS, PLAN, Airline, make_topics
from examples.flights_kafka.relays import Relay
from examples.flights_kafka.scheduler import Scheduler

#: A year passes in three minutes: broker, server, relays and Spark share the machine.
_SPEED = 365 * 24 * 20
#: How many seconds the plan has to come to the queue before anything falls due.
_HEAD_START_S = 30
_ROWS_A_MS = 10
_KILL_AT = 0.4
_PATIENCE_MS = 120_000


def main() -> int:
    """Run the job and report; 0 if everything adds up."""
    options = _parser().parse_args()
    out = Path(options.out).resolve()
    kept = out / "audit-kafka"
    shutil.rmtree(kept, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as name, kafka_server() as kafka:
        folder = Path(name)
        spark = session("flights-kafka", folder, "local[2]", {"spark.jars": connector_jars()})
        try:
            with Server(folder, str(folder / "store")) as server:
                return _run(spark, server.url, kafka.hosts, folder, kept, options)
        finally:
            spark.stop()


def _run(
    spark: SparkSession,
    url: str,
    hosts: str,
    folder: Path,
    kept: Path,
    options: argparse.Namespace,
) -> int:
    flights = data.load(options.flights)
    source = folder / "flights.parquet"
    data.save(flights, source)
    print(f"{len(flights):,} flights, {options.speed:,.0f} times as fast as the year was")
    make_topics(hosts)
    _warm_up(spark, url, hosts)
    start_ms = now_ms() + 1_000 * options.head_start + len(flights) // _ROWS_A_MS
    times = Replay.of(flights, start_ms, options.speed)
    truth = _truth(spark, source, times)
    feed = Relay.of_events(url, hosts, folder / "events.log")
    relays = [Relay.of_reminders(url, hosts, folder / f"relay{at}.log") for at in (1, 2)]
    try:
        outage = _replay(Scheduler(spark, hosts, url, folder), truth, times, relays, url, hosts)
        for relay in relays:
            relay.stop()
        return _report(spark, url, hosts, kept, truth, outage)
    finally:
        for relay in (feed, *relays):
            relay.stop()


def _warm_up(spark: SparkSession, url: str, hosts: str) -> None:
    """Let Spark start what it needs to talk to both: that takes long, and only once."""
    spark.read.format("kafka").options(**_options(hosts, PLAN)).load().count()
    Scheduler(spark, hosts, url, Path()).warm_up()


def _options(hosts: str, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": hosts, "subscribe": topic}


def _truth(spark: SparkSession, source: Path, times: Replay) -> DataFrame:
    """Return what is to become of each reminder: here every one has an address."""
    found = expected(spark, str(source), times)
    return found.selectExpr(
        *("id", "is_cancelled", "is_late", "planned_ms", "due_ms", "news_ms", "day"),
        "false AS fails_once",
        "IF(is_cancelled, 'cancel', 'ack') AS kind",
    ).cache()


def _replay(
    scheduler: Scheduler,
    truth: DataFrame,
    times: Replay,
    relays: list[Relay],
    url: str,
    hosts: str,
) -> Outage:
    airline = Airline(hosts, truth)
    with scheduler.running():
        count = airline.plan()
        airline.tell()
        scheduler.wait_for(count)
        late_ms = now_ms() - times.start_ms
        print(f"{count:,} records of the plan are scheduled", flush=True)
        if late_ms > 0:
            raise SystemExit(f"the plan took {late_ms} ms too long: use a longer --head-start")
        time.sleep(max(times.part_ms(_KILL_AT) - now_ms(), 0) / 1000)
        print("killing a relay (SIGKILL) and starting another", flush=True)
        outage = relays[0].kill()
        airline.wait()
    _wait_until_sent(url, relays, times.end_ms)
    return outage


def _wait_until_sent(url: str, relays: list[Relay], end_ms: int) -> None:
    with dwell.open(url) as queue:
        while True:
            counts = queue.stats().topics[TOPIC]
            if counts.delayed == counts.ready == counts.leased == 0:
                return
            for relay in relays:
                relay.check()
            if now_ms() > end_ms + _PATIENCE_MS:
                raise SystemExit(f"reminders are left: {counts}")
            time.sleep(0.1)


def _report(
    spark: SparkSession, url: str, hosts: str, kept: Path, truth: DataFrame, outage: Outage
) -> int:
    where = {"format": "kafka", "option": _options(hosts, EVENTS)}
    books = audit.balance(spark, url, kept, truth, outage, by_relay=True, **where)
    report.show(books)
    found, again = sent.checks(sent.sent(spark, hosts), truth)
    print(f"\nin the topic of the reminders ({again:,} came again, as the relay was killed):")
    for check in found:
        mark = "ok " if check.holds else "NO "
        print(f"{mark} {check.what:42} {check.queue:>9,}   data set {check.data:>9,}")
    print(f"\nThe report of the audit: {kept / 'audit.html'}")
    return 0 if books.is_balanced and all(check.holds for check in found) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.flights_kafka", description=__doc__)
    parser.add_argument("--out", default="report", help="folder of the report (default: report)")
    parser.add_argument("--speed", type=float, default=_SPEED, help="times real time")
    words = "seconds in which the plan is scheduled before anything falls due (default: 30)"
    parser.add_argument("--head-start", type=int, default=_HEAD_START_S, help=words)
    parser.add_argument("--flights", type=int, default=None, help="only the first so many")
    return parser


if __name__ == "__main__":
    sys.exit(main())
