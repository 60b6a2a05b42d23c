"""What a takeover tells on the command line."""

import logging
from collections import Counter

from dwell.cli import takeover
from dwell.errors import ServerUnreachable
from dwell.takeover.contract import Counts
from dwell.takeover.takeover import Report


def test_what_another_takeover_moved_is_told_as_such():
    report = Report(
        found=Counts(ready=16_000),
        left=Counts(gone=16_000),
        put=Counter(kept=5_000),
        elsewhere=3_000,
        is_whole=True,
    )
    assert takeover._text(report, dry_run=False).splitlines() == [
        "2,000 moved (5,000 of them and of the others below had been put before)",
        "3,000 others had got there by then: they may be done twice, "
        "unless it was another takeover",
        "there were 0 delayed, 16,000 ready, 0 leased, 0 dead; 0 came, "
        "14,000 were finished, or moved by another takeover",
        "left there: 0 delayed, 0 ready, 0 leased, 0 dead",
        "the count balances",
    ]


def test_a_run_that_left_some_for_a_reason_came_to_its_end():
    report = Report(found=Counts(ready=1), left=Counts(ready=1), by_reason=Counter(odd=1))
    text = takeover._text(report, dry_run=False)
    assert "1 stay there: odd" in text
    assert "run it again" not in text


def test_a_store_that_goes_away_is_told_once(cli, monkeypatch, caplog):
    def run(*given, **how):
        for name in ("store.redis.wakes", "queue.ticker", "queue.retention"):
            logging.getLogger(f"dwell.{name}").warning("the store is away")
        logging.getLogger("dwell.queue.ticker").error("a mistake of ours")
        raise ServerUnreachable("redis://h: is away")

    monkeypatch.setattr(takeover, "run", run)
    lines = cli.run("takeover", "beanstalk://h", code=3).stderr.splitlines()
    assert lines == ["0 moved before this; run it again", "ServerUnreachable: redis://h: is away"]
    assert [record.message for record in caplog.records] == ["a mistake of ours"]
    logging.getLogger("dwell.queue.ticker").warning("after it")
    assert caplog.records[-1].message == "after it"
