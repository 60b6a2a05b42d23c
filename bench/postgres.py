"""A real PostgreSQL for tests and benchmarks, with a folder and a port of its own."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from bench.redis_servers import steady_port

_START_S = 60.0
#: Who runs it where we are root, as it refuses to be.
_USER = "postgres"


def _program(name: str) -> str:
    """Return the path of one of its programs; Debian has them outside of the usual folders."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    found = next(iter(map(str, places)), None) or shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is not installed; make setup installs it")
    return found


def _as_user() -> dict[str, Any]:
    """Return what makes a process that of a user who may run it."""
    if os.geteuid() != 0:
        return {}
    return {"user": _USER, "group": pwd.getpwnam(_USER).pw_gid, "extra_groups": []}


@dataclass
class Postgres:
    """One server with one database; ``kill`` it and ``start`` it again."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    port: int = field(default_factory=steady_port)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        """The address, as its own programs take it."""
        return f"postgresql://dwell@127.0.0.1:{self.port}/postgres"

    #: What tests that share a server hand on.
    hosts = url

    def prepare(self) -> None:
        """Make its folder what it wants."""
        if os.geteuid() == 0:
            shutil.chown(self.folder, _USER)
        command = [_program("initdb"), "--pgdata", str(self.folder / "data"), "--no-sync"]
        command += ["--username=dwell", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, **_as_user())
        own = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
        }
        lines = [f"{name} = '{value}'\n" for name, value in (own | self.config).items()]
        with (self.folder / "data" / "postgresql.conf").open("a") as file:
            file.writelines(lines)

    def start(self) -> None:
        """Start it, and wait until it answers.

        The processes of one that was killed end a little later, and until then none can begin.
        """
        end = time.monotonic() + _START_S
        while not self._is_up():
            assert time.monotonic() < end, (self.folder / "log.txt").read_text()[-2000:]
            time.sleep(0.02)

    def _is_up(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            command = [_program("postgres"), "-D", str(self.folder / "data")]
            with (self.folder / "log.txt").open("ab") as log:
                self.process = subprocess.Popen(
                    command, stdout=log, stderr=log, cwd=self.folder, **_as_user()
                )
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(self.url, connect_timeout=5).close()
            return True
        return False

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it; what it has written stays. SIGINT ends it at once and in order."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def postgres_server(**config: Any) -> Iterator[Postgres]:
    """Run a server; ``config`` is more of its settings."""
    with tempfile.TemporaryDirectory(prefix="dwell-postgres-") as folder:
        server = Postgres(Path(folder), config)
        server.prepare()
        try:
            server.start()
            yield server
        finally:
            server.kill(signal.SIGINT)
