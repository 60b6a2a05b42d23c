"""One Spark session for all tests, and servers that are real processes."""

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dwell
import dwell.spark
from bench.brokers import connector_jars, kafka_server
from bench.servers import free_port
from dwell.spark.session import session
from tests.ports import accepts
from tests.spark import PATIENCE_S
from tests.waiting import until


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(4 * PATIENCE_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        # Compiling each query takes longer than its few rows do; the demo and the benchmarks do it.
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
        # Off by default, as Spark keeps filters; tests of what is pushed down load for each query.
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("local")),
        "spark.driver.memory": "1g",
        "spark.jars": connector_jars(),
        "spark.driver.extraJavaOptions": "-Dderby.stream.error.file=/dev/null",
    }
    spark = session("tests", "local[2,4]", settings)
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def registered(spark):
    """Let the session know the data source by its name."""
    dwell.spark.register(spark)


class ServerProcess:
    """``dwell serve`` over a folder, on a port that stays the same when it starts again."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self._options = folder, options
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        program = Path(sys.executable).with_name("dwell")
        words = ["serve", str(self._folder / "store"), "--http", self.url.removeprefix("http://")]
        with (self._folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [program, *words, "--beanstalk", "off", *self._options], stdout=log, stderr=log
            )
        log = self._folder / "server.log"
        until(
            lambda: accepts(self._port) or self.process.poll() is not None,
            log.read_text,
            PATIENCE_S,
        )
        assert self.process.poll() is None, log.read_text()

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()


@pytest.fixture
def server(tmp_path):
    """A server of its own, for tests that kill it."""
    one = ServerProcess(tmp_path)
    yield one
    one.stop()


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A server that is there for all tests; each uses topics of its own."""
    one = ServerProcess(tmp_path_factory.mktemp("server"))
    yield one
    one.stop()


_numbers = itertools.count()


@pytest.fixture
def topic():
    """A topic that no other test uses."""
    return f"own-{next(_numbers)}"


@pytest.fixture
def queue(server):
    with dwell.open(server.url) as queue:
        yield queue


@pytest.fixture(scope="session")
def kafka_hosts():
    with kafka_server() as kafka:
        yield kafka.hosts
