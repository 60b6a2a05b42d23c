"""A topic of Kafka that takes nothing, beside others that do."""

import contextlib
import socket
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import dwell
from bench.brokers import Kafka, kafka_beside, kafka_server
from dwell.relay.contract import BrokerUnreachable
from dwell.relay.kafka.address import Address
from dwell.relay.kafka.topicids import TopicIds
from tests.relay.kafka import Topics, numbers, read_all, relaying
from tests.relay.test_kafka import committed
from tests.waiting import until

LANES = 6
ROUNDS = 4


@pytest.fixture
def kafka():
    with kafka_server(auto_create_topics_enable="false") as server:
        yield server


@contextlib.contextmanager
def broker_of(kafka: Kafka, topic: str) -> Iterator[Kafka]:
    """Run a second broker, which has the only copy of a topic and nothing else."""
    admin = AdminClient({"bootstrap.servers": kafka.hosts})
    with kafka_beside(kafka) as second:

        def is_made() -> bool:
            new = NewTopic(topic, 1, replica_assignment=[[2]])
            with contextlib.suppress(KafkaException):
                admin.create_topics([new])[topic].result(60)
                return True
            # The controller does not count on the broker yet.
            return False

        until(is_made)
        yield second


@pytest.mark.campaign
def test_a_topic_that_takes_nothing_holds_up_no_other_and_doubles_nothing(kafka, tmp_path):
    mine = Topics(kafka.hosts, "stuck", LANES)
    none = f"{mine.name}-none"
    # Makes the topic of the groups, where the second broker is not there to have it.
    until(lambda: committed(mine) == 0)

    def say(number: int) -> None:
        for lane in range(LANES):
            to_none = {"dwell-delay": "1ms", "dwell-to": none}
            mine.say(b"%d" % (-lane - 1000 * number), to_none, partition=lane)
            mine.say(b"%d" % (lane + 1000 * number), {"dwell-delay": "1ms"}, partition=lane)
        mine.flush()

    options = ["--from", mine.source, "--to", mine.sink, "--lease", "3s"]
    with broker_of(kafka, none) as second:
        second.kill()
        say(1)
        with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
            for number in range(1, ROUNDS):
                mine.read(mine.goes, LANES * number)
                say(number + 1)
            mine.read(mine.goes, LANES * ROUNDS)
            assert "wait for the broker" in relay.log
            second.start()
            until(lambda: len(list(read_all(mine.hosts, none, 1))) >= LANES * ROUNDS)
            assert relay.end() == 0
    counts = Counter(numbers(mine.read(mine.goes, 1)))
    assert (len(counts), max(counts.values())) == (LANES * ROUNDS, 1)
    assert "leases had ended" not in relay.log


@pytest.mark.campaign
def test_a_topic_without_a_leader_holds_up_no_other_exactly_once(kafka, tmp_path):
    mine = Topics(kafka.hosts, "once", 1)
    none = f"{mine.name}-none"
    options = ["--from", mine.source, "--to", mine.sink, "--exactly-once"]
    soon = {"dwell-delay": "1ms"}
    mine.say(b"1", soon)
    mine.flush()
    # Makes the topics of transactions, where the second broker is not there to have them.
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        mine.read(mine.goes, 1)
        assert relay.end() == 0
    admin = AdminClient({"bootstrap.servers": kafka.hosts})
    with broker_of(kafka, none) as second:
        second.kill()
        until(lambda: admin.list_topics(timeout=60).topics[none].partitions[0].leader < 0)
        mine.say(b"0", soon | {"dwell-to": none})
        mine.say(b"2", soon)
        mine.flush()
        with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
            assert numbers(mine.read(mine.goes, 2)) == [1, 2]
            second.start()
            until(lambda: len(list(read_all(mine.hosts, none, 1))) == 1)
            assert relay.end() == 0


@pytest.mark.campaign
def test_a_topic_that_is_not_there_is_a_dead_letter(kafka, tmp_path):
    mine = Topics(kafka.hosts, "unknown", 1)
    mine.say(b"1", {"dwell-delay": "1ms", "dwell-to": "nowhere"})
    mine.say(b"2", {"dwell-delay": "1ms"})
    mine.flush()
    options = ["--from", mine.source, "--to", mine.sink, "--dead", mine.dead, "--lease", "9s"]
    with relaying(tmp_path / "store", options, tmp_path / "log") as relay:
        (dead,) = mine.read(mine.dead, 1)
        assert numbers(mine.read(mine.goes, 1)) == [2]
        assert relay.end() == 0
    assert dead.value() == b"1"
    with dwell.open(tmp_path / "store") as queue:
        assert queue.stats().topics[f"relay.{mine.came}-0"].dead == 0


def test_ids_of_topics_that_nobody_tells_in_time_are_asked_for_again():
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = Address.of(f"kafka://127.0.0.1:{deaf.getsockname()[1]}/t")
        # The client's own time-out and that of who waits for it race.
        for _ in range(6):
            with pytest.raises(BrokerUnreachable, match="ids of topics"):
                TopicIds(address, ask_s=0.3).learn({"t"})
