"""The bystander: an honest client in a process of its own, which puts, takes and acks.

``python -m tools.attack.bystander HOST PORT TOKEN [CA]``: it says a line when it has begun, works
until its input ends, and then tells how long its calls took.
"""

import contextlib
import http.client
import json
import select
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from tools.attack.target import HONEST, Target, token_of
from tools.rooms import ROOT

_TOPIC = f"{HONEST}.jobs"
#: What an honest client does not wait for any longer.
_MOST_S = 30.0


class Seen(NamedTuple):
    """How many calls an honest client made, how long they took, and what was wrong with one."""

    calls: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    wrong: str


class Beside:
    """What the bystander said; it is there when it has ended."""

    seen: Seen


@contextlib.contextmanager
def beside(target: Target) -> Iterator[Beside]:
    """Have an honest client work beside what is in the block."""
    where = [*map(str, target.http), token_of(HONEST), *([str(target.ca)] if target.ca else [])]
    command = [sys.executable, "-m", "tools.attack.bystander", *where]
    found = Beside()
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "begun\n"
            yield found
            process.stdin.close()
            found.seen = msgspec.json.decode(process.stdout.read(), type=Seen)
        finally:
            process.kill()


class Client:
    """One connection that is kept; each call is timed."""

    def __init__(self, host: str, port: int, token: str, ca: str = "") -> None:
        self._connection: http.client.HTTPConnection
        if ca:
            trusting = ssl.create_default_context(cafile=ca)
            self._connection = http.client.HTTPSConnection(
                host, port, timeout=_MOST_S, context=trusting
            )
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=_MOST_S)
        self._headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        self.took_ms: list[float] = []

    def ask(self, path: str, body: object) -> dict[str, list[dict[str, str]]]:
        """Return the answer to a POST, which has to be a good one."""
        start = time.perf_counter()
        self._connection.request("POST", path, json.dumps(body), self._headers)
        answer = self._connection.getresponse()
        data = answer.read()
        self.took_ms.append((time.perf_counter() - start) * 1000)
        assert answer.status == 200, f"{path}: {answer.status} {data[:200]!r}"
        return json.loads(data)

    def live(self) -> None:
        """Put a message, take it, and ack it."""
        text = f"{len(self.took_ms)}"
        self.ask(f"/v1/topics/{_TOPIC}/messages", {"body": text})
        (message,) = self.ask("/v1/take", {"topics": [_TOPIC]})["messages"]
        assert message["body"] == text, message
        done = self.ask("/v1/ack", {"receipts": [message["receipt"]]})
        assert done["results"] == ["acked"], done


def main(host: str, port: str, *rest: str) -> None:
    """Work until the input ends, and print what was seen."""
    client, wrong = Client(host, int(port), *rest), ""
    client.live()
    client.took_ms.clear()
    print("begun", flush=True)
    try:
        while not select.select([sys.stdin], [], [], 0)[0]:
            client.live()
    except (AssertionError, OSError, http.client.HTTPException) as error:
        wrong = f"{type(error).__name__}: {error}"
    took = client.took_ms or [0.0]
    p50, p99 = np.percentile(took, [50, 99])
    seen = Seen(len(client.took_ms), float(p50), float(p99), max(took), wrong)
    print(msgspec.json.encode(seen).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
