"""A server in a process of its own, as people start it."""

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE_S, until

COMMAND = [sys.executable, "-c", "from dwell.cli import main; main()"]


class ServerProcess:
    """``dwell serve`` on ports that are free; it is killed at the end of a ``with``."""

    def __init__(
        self,
        *args: str,
        store: str | Path | None = None,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        command: list[str] | None = None,
    ) -> None:
        given = ["serve", *([] if store is None else [str(store)]), "--log-format", "json"]
        if "--http" not in args:
            given += ["--http", "127.0.0.1:0"]
        if "--beanstalk" not in args:
            given += ["--beanstalk", "off"]
        own = {k: v for k, v in os.environ.items() if not k.startswith("DWELL_")}
        self.logs: list[dict[str, Any]] = []
        self.other: list[str] = []
        self._ready = threading.Event()
        self.process = subprocess.Popen(
            command or [*COMMAND, *given, *args],
            cwd=cwd,
            env={**own, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    # --- what it says ---------------------------------------------------------------------------

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                try:
                    self.logs.append(json.loads(line))
                except json.JSONDecodeError:
                    self.other.append(line.rstrip("\n"))
                else:
                    if self.logs[-1]["message"] == "serving":
                        self._ready.set()
        self._ready.set()

    def ready(self) -> dict[str, Any]:
        """Wait until it serves, and return what it says of itself."""
        assert self._ready.wait(30), (self.logs, self.other)
        found = [line for line in self.logs if line["message"] == "serving"]
        assert found, (self.logs, self.other)
        return found[0]

    def said(self, text: str, timeout: float = PATIENCE_S) -> dict[str, Any]:
        """Wait until it logs a message with a text, and return the line."""
        found: list[dict[str, Any]] = []

        def is_said() -> bool:
            found[:] = [line for line in self.logs if text in line["message"]]
            return bool(found)

        until(is_said, lambda: (text, self.logs, self.other), timeout)
        return found[0]

    # --- how it ends ----------------------------------------------------------------------------

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self, timeout: float = 30) -> int:
        """Wait for its end, and return its exit code."""
        code = self.process.wait(timeout)
        self.reader.join()
        return code

    def stop(self) -> int:
        """Let it stop in order, and return its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def error(self) -> str:
        """Wait for its end, and return the one line that it ends with."""
        self.wait()
        assert len(self.other) == 1, (self.logs, self.other)
        return self.other[0]

    # --- over HTTP ------------------------------------------------------------------------------

    def url(self, path: str) -> str:
        """Return an address of its HTTP port."""
        found = self.ready()
        return f"{'https' if found['tls'] else 'http'}://{found['http']}{path}"

    def ask(
        self,
        method: str,
        path: str,
        value: object = None,
        token: str | None = None,
        context: ssl.SSLContext | None = None,
    ) -> tuple[int, Any]:
        """Send a request; return the status, and the answer if it is JSON."""
        headers = {"content-type": "application/json"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        data = None if value is None else json.dumps(value).encode()
        request = urllib.request.Request(self.url(path), data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                return answer.status, _decoded(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _decoded(error.read())

    def put(self, topic: str, body: str, **how: Any) -> tuple[int, Any]:
        """Put one message."""
        return self.ask("POST", f"/v1/topics/{topic}/messages", {"body": body}, **how)

    def take(self, topic: str, wait_ms: int = 0, **how: Any) -> tuple[int, Any]:
        """Take one message."""
        wish = {"topics": [topic], "limit": 1, "wait_ms": wait_ms}
        return self.ask("POST", "/v1/take", wish, **how)


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data
