"""The target: a server in a process of its own, those who may use it, and its memory."""

import hashlib
import re
import signal
import ssl
from pathlib import Path
from typing import Any

from tests.http.wire import request
from tests.server.certificates import make_certificate
from tests.server.process import COMMAND, ServerProcess

#: Who has a token: each may do all on the topics that begin with its name and a dot.
HONEST, VICTIM, TENANT = "honest", "victim", "tenant"
#: Who may only look at all that there is, and who may only see the metrics.
READER, SCRAPER = "reader", "scraper"
#: Who has a quota, and how many messages it may have.
BOUNDED, MOST_PENDING = "bounded", 500
#: What callers without a token may put and take.
PUBLIC = "public."

_SPECIAL = {
    READER: "read = ['']\n",
    SCRAPER: "metrics = true\n",
    BOUNDED: "put = ['bounded.']\ntake = ['bounded.']\nadmin = ['bounded.', 'dwell:']\n"
    f"quota = {{pending = {MOST_PENDING}, topics = 20, stored_bytes = 1000000, streams = 3}}\n",
}

_BYTES_A_KB = 1024


class Target:
    """A ``dwell serve`` on loopback with both ports and a token file; use it in a ``with``."""

    def __init__(
        self,
        folder: Path,
        *args: str,
        has_tls: bool = False,
        files: int = 0,
        store: str = "",
        limit_bytes: int = 0,
    ) -> None:
        self.folder = folder.resolve()
        self._is_folder = not store
        self._token_file = self.folder / "tokens.toml"
        self.allow((HONEST, VICTIM, TENANT, READER, SCRAPER, BOUNDED))
        self.ca: Path | None = None
        given = [*args, "--token-file", str(self._token_file)]
        if has_tls:
            self.ca, key = make_certificate(self.folder)
            given += ["--tls-cert", str(self.ca), "--tls-key", str(key)]
        ports = ["--http", "127.0.0.1:0", "--beanstalk", "127.0.0.1:0", "--log-format", "json"]
        serve = [*COMMAND, "serve", store or str(self.folder / "store"), *ports, *given]
        limits = [f"ulimit -n {files} && "] * (files > 0)
        limits += [f"ulimit -v {limit_bytes // _BYTES_A_KB} && "] * (limit_bytes > 0)
        self.server = ServerProcess(
            command=["sh", "-c", "".join(limits) + 'exec "$@"', "sh", *serve]
        )

    def __enter__(self) -> "Target":
        self.server.ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__()

    # --- where ----------------------------------------------------------------------------------

    @property
    def http(self) -> tuple[str, int]:
        """Where HTTP is."""
        return _place(self.server.ready()["http"])

    @property
    def beanstalk(self) -> tuple[str, int]:
        """Where the beanstalk port is."""
        return _place(self.server.ready()["beanstalk"])

    @property
    def context(self) -> ssl.SSLContext | None:
        """What trusts it over TLS; None where it speaks none."""
        return None if self.ca is None else ssl.create_default_context(cafile=self.ca)

    # --- who ------------------------------------------------------------------------------------

    def allow(
        self,
        names: tuple[str, ...],
        anonymous: str = PUBLIC,
        rights: tuple[str, ...] = ("put", "take"),
        ends: dict[str, str] | None = None,
    ) -> None:
        """Write who may do what into the token file; callers without a token have ``rights``.

        ``ends`` says when tokens end, by name.
        """
        lines = ["[anonymous]\n", *(f"{right} = {[anonymous]}\n" for right in rights)]
        for name in names:
            prefix = [f"{name}."]
            digest = hashlib.sha256(token_of(name).encode()).hexdigest()
            granted = _SPECIAL.get(
                name, "".join(f"{right} = {prefix}\n" for right in ("put", "take", "admin"))
            )
            if not self._is_folder:
                granted = granted.replace("stored_bytes = 1000000, ", "")
            if ends and name in ends:
                granted = f'expires = "{ends[name]}"\n{granted}'
            lines.append(f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\n{granted}')
        self._token_file.touch(0o600)
        self._token_file.write_text("\n".join(lines).replace("'", '"'))

    def reload(self) -> None:
        """Have it read the token file again, and wait until it has."""
        self.server.signal(signal.SIGHUP)
        self.server.said("SIGHUP")

    # --- what it costs --------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """How much memory it has (VmRSS)."""
        return self._memory("VmRSS")

    @property
    def most_memory_bytes(self) -> int:
        """How much it had at most since :meth:`forget_most` (VmHWM)."""
        return self._memory("VmHWM")

    @property
    def address_space_bytes(self) -> int:
        """How much of its address space it has (VmSize), which is what a limit bounds."""
        return self._memory("VmSize")

    @property
    def has_ended(self) -> bool:
        """Whether the process is no more."""
        return self.server.process.poll() is not None

    def forget_most(self) -> None:
        """Begin anew to look for the most memory that it has."""
        Path(f"/proc/{self.server.process.pid}/clear_refs").write_text("5")

    def _memory(self, name: str) -> int:
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+) kB", status)
        assert found is not None, status
        return int(found[1]) * _BYTES_A_KB


def token_of(name: str) -> str:
    """Return somebody's token, which is nothing that has to be kept."""
    return f"dwell_{name}-of-an-attack"


def asked(who: str | None, method: str, path: str, body: Any = None, **headers: Any) -> bytes:
    """Return the bytes of a request of somebody; None has no token."""
    if who is not None:
        headers["authorization"] = f"Bearer {token_of(who)}"
    return request(method, path, body, **headers)


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
