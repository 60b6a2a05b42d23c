"""The code of the pages on brokers runs, with a real broker."""

from pathlib import Path

import pytest

from tests.relay.kafka import Topics
from tests.relay.rabbitmq import Queues
from tests.test_examples import ROOT, run

pytestmark = pytest.mark.campaign


def test_the_page_on_kafka(topics, tmp_path):
    mine: Topics = topics(1)
    own = {
        "localhost:9092": mine.hosts,
        "orders-later": mine.came,
        "/orders ": f"/{mine.goes} ",
        '["orders"]': f'["{mine.goes}"]',
        '"shop"': f'"{mine.name}-shop"',
        f"{mine.came} --to": f"{mine.came}?group={mine.name} --to",
    }
    check("kafka.md", own, tmp_path)


def test_the_page_on_rabbitmq(queues, tmp_path):
    mine: Queues = queues()
    own = {"amqp://guest:guest@localhost:5672": mine.hosts, "orders-later": mine.came}
    own |= {"queue=orders'": f"queue={mine.goes}'", '"orders"': f'"{mine.goes}"'}
    check("rabbitmq.md", own, tmp_path)


def check(name: str, own: dict[str, str], folder: Path) -> None:
    """Run a page with names of its own in place of those in it."""
    text = (ROOT / "docs" / "howto" / name).read_text()
    for word, mine in own.items():
        assert word in text
        text = text.replace(word, mine)
    page = folder / name
    page.write_text(text)
    done = run("-m", "tests.pages", str(page), folder=folder)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
