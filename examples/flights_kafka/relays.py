"""The relays: processes that send what falls due to Kafka, of which one is killed."""

import signal
import subprocess
import sys
from pathlib import Path

from examples.flights.plan import TOPIC
from examples.flights.processes import Outage, now_ms, stop
from examples.flights_kafka.producer import EVENTS, REMINDERS

_LEASE = "5s"


class Relay:
    """One ``dwell relay``."""

    def __init__(self, url: str, words: list[str], log: Path) -> None:
        program = str(Path(sys.executable).with_name("dwell"))
        self._command = [program, "--store", url, "relay", "--lease", _LEASE, *words]
        self._log = log
        self._start()

    @classmethod
    def of_reminders(cls, url: str, hosts: str, log: Path) -> "Relay":
        """Send the reminders that are due."""
        return cls(url, ["--topic", TOPIC, "--to", f"kafka://{hosts}/{REMINDERS}"], log)

    @classmethod
    def of_events(cls, url: str, hosts: str, log: Path) -> "Relay":
        """Send the queue's events."""
        return cls(url, ["--events", "--to", f"kafka://{hosts}/{EVENTS}"], log)

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> Outage:
        """End it as a power cut would, and start it again."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        down_ms = now_ms()
        self._start()
        return Outage(down_ms, now_ms())

    def check(self) -> None:
        """Raise SystemExit if it has ended."""
        if self._process.poll() is not None:
            raise SystemExit(f"a relay ended:\n{self._log.read_text()[-2000:]}")

    def stop(self) -> None:
        """End it when what it has taken is sent."""
        stop(self._process)
