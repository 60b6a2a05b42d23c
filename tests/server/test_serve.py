"""``dwell serve`` as a process: its signals, its errors, and what is there after it."""

import http.client
import json
import os
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import dwell
from bench.servers import free_port
from dwell.server.tokens import hash_of
from tests.ports import accepts
from tests.server.certificates import make_certificate
from tests.server.process import COMMAND, ServerProcess
from tests.waiting import PATIENCE_S, until

#: A server whose port never stops, or cannot start.
STUBBORN = """
import asyncio, sys
from dwell.server import logs
from dwell.server.serve import Server
from dwell.server.settings import ServerSettings

class Port:
    address = ("127.0.0.1", 1)
    async def start(self):
        {start}
    async def stop(self):
        {stop}

logs.setup(form="json")
settings = ServerSettings(store={store!r}, beanstalk="off", grace_ms={grace_ms})
asyncio.run(Server(settings, lambda *given: Port()).run())
"""


def stubborn(store: Path, start: str = "pass", stop: str = "pass", grace_ms: int = 0) -> list[str]:
    text = STUBBORN.format(store=str(store), start=start, stop=stop, grace_ms=grace_ms)
    return [sys.executable, "-c", text]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def bodies(store: Path, topic: str = "t") -> list[str]:
    """Return the bodies of all messages of a topic in a store that is not open."""
    found: list[str] = []
    with dwell.open(store) as queue:
        for state in ("delayed", "ready", "leased"):
            found += [m.body.decode() for m in queue.scan(topic, state, limit=10_000).messages]
    return sorted(found)


# --- start and stop -----------------------------------------------------------------------------


def test_it_serves_and_stops_in_order(store: Path) -> None:
    with ServerProcess("--grace-ms", "1h", store=store) as server:
        said = server.ready()
        assert said["store"] == str(store)
        assert said["pid"] == server.process.pid
        assert server.put("t", "hello")[0] == 200
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < PATIENCE_S
        assert [line["message"] for line in server.logs] == [
            "serving",
            "SIGTERM: stopping",
            "stopped",
        ]
        assert server.other == []
    assert bodies(store) == ["hello"]


def test_ctrl_c_is_a_way_to_stop(store: Path) -> None:
    with ServerProcess(store=store) as server:
        server.put("t", "hello")
        server.signal(signal.SIGINT)
        assert server.wait() == 0
    assert bodies(store) == ["hello"]


def test_the_default_store_lies_in_the_current_folder(tmp_path: Path) -> None:
    with ServerProcess(cwd=tmp_path) as server:
        assert server.ready()["store"] == "./dwell-data"
        assert server.stop() == 0
    assert (tmp_path / "dwell-data" / "dwell.json").exists()


def test_a_store_in_memory() -> None:
    with ServerProcess(store="memory:") as server:
        server.put("t", "hello")
        assert server.take("t")[1]["messages"][0]["body"] == "hello"
        assert server.stop() == 0


def test_who_waits_is_answered_when_it_stops(store: Path) -> None:
    answers: list[tuple[int, object]] = []
    with ServerProcess(store=store) as server:
        server.ready()
        waiting = threading.Thread(target=lambda: answers.append(server.take("t", 60_000)))
        waiting.start()
        until(lambda: b"dwell_waiting_requests 1" in server.ask("GET", "/metrics")[1], seconds=60)
        assert answers == []
        assert server.stop() == 0
        waiting.join(10)
    assert [status for status, _ in answers] in ([200], [503])


def test_what_was_answered_survives_a_kill(store: Path) -> None:
    answered: list[str] = []
    lock = threading.Lock()

    def work(server: ServerProcess, name: int) -> None:
        for number in range(10_000):
            try:
                status, _ = server.put("t", f"{name}-{number}")
            except (OSError, http.client.HTTPException):
                return
            if status == 200:
                with lock:
                    answered.append(f"{name}-{number}")

    for _ in range(2):
        with ServerProcess(store=store) as server:
            server.ready()
            threads = [threading.Thread(target=work, args=(server, n)) for n in range(4)]
            for thread in threads:
                thread.start()
            more = len(answered) + 20
            until(lambda more=more: len(answered) > more, seconds=60)
            server.signal(signal.SIGKILL)
            assert server.wait() == -signal.SIGKILL
            for thread in threads:
                thread.join(60)
    assert set(answered) <= set(bodies(store))


def test_a_second_signal_ends_it_at_once(store: Path) -> None:
    command = stubborn(store, stop="await asyncio.sleep(60)", grace_ms=60_000)
    with ServerProcess(command=command) as server:
        server.ready()
        server.signal(signal.SIGTERM)
        server.said("SIGTERM: stopping")
        server.signal(signal.SIGTERM)
        assert server.wait(10) == 130
        assert server.logs[-1]["message"] == "SIGTERM again: ending at once"
    with dwell.open(store):
        pass


def test_what_does_not_end_within_the_grace_is_left_behind(store: Path) -> None:
    command = stubborn(store, stop="await asyncio.sleep(60)", grace_ms=200)
    with ServerProcess(command=command) as server:
        server.ready()
        started = time.monotonic()
        assert server.stop() == 0
        assert 0.2 <= time.monotonic() - started < 30
        assert server.said("a port did not stop within 200 ms")["level"] == "warning"
        assert server.logs[-1]["message"] == "stopped"


def test_a_port_that_fails_to_stop_stops_nobody_else(store: Path) -> None:
    command = stubborn(store, stop="raise ValueError('stuck')", grace_ms=1000)
    with ServerProcess(command=command) as server:
        server.ready()
        assert server.stop() == 0
        assert "ValueError: stuck" in server.said("a port did not stop as it should")["error"]


# --- other signals ------------------------------------------------------------------------------


def test_it_drains(store: Path) -> None:
    with ServerProcess(store=store) as server:
        server.put("t", "hello")
        schedule = {"topic": "u", "body": "x", "every": "1s"}
        assert server.ask("PUT", "/v1/schedules/s", schedule)[0] == 200
        until(lambda: "u" in server.ask("GET", "/v1/stats")[1]["topics"])
        server.signal(signal.SIGUSR1)
        server.said("draining")
        until(lambda: server.ask("GET", "/readyz")[0] == 503)
        fired = server.ask("GET", "/v1/stats")[1]["totals"]["put"]
        time.sleep(2.5)
        # The one that was fired ahead may have come in between.
        assert server.ask("GET", "/v1/stats")[1]["totals"]["put"] <= fired + 1
        status, problem = server.put("t", "more")
        assert (status, "ServerDraining" in str(problem)) == (503, True)
        assert server.take("t")[1]["messages"][0]["body"] == "hello"
        assert server.ask("GET", "/readyz")[0] == 503
        assert server.ask("GET", "/healthz")[0] == 200
        assert server.stop() == 0


def test_tokens_are_read_again(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"

    def write(token: str) -> None:
        entry = f'[[token]]\nname = "{token}"\nsha256 = "{hash_of(token)}"\nput = ["t"]\n'
        path.write_text(entry)
        path.chmod(0o600)

    write("old")
    with ServerProcess("--token-file", str(path), store=store) as server:
        assert server.ready()["tokens"] == 1
        assert server.put("t", "a", token="old")[0] == 200
        assert server.put("t", "a", token="new")[0] == 401
        assert server.put("t", "a")[0] == 401
        assert server.put("u", "a", token="old")[0] == 403
        write("new")
        assert server.put("t", "a", token="new")[0] == 401
        server.signal(signal.SIGHUP)
        server.said("SIGHUP: reloaded")
        assert server.put("t", "a", token="new")[0] == 200
        assert server.put("t", "a", token="old")[0] == 401
        path.write_text("[[token")
        server.signal(signal.SIGHUP)
        line = server.said("SIGHUP: nothing changed")
        assert (line["level"], str(path) in line["message"]) == ("error", True)
        assert server.put("t", "a", token="new")[0] == 200
        assert server.stop() == 0


def test_requests_and_changes_are_logged(store: Path, tmp_path: Path) -> None:
    path, access, audit = (tmp_path / name for name in ("tokens.toml", "access", "audit"))
    rights = 'put = [""]\nadmin = [""]\n'
    path.write_text(f'[[token]]\nname = "root"\nsha256 = "{hash_of("root")}"\n{rights}')
    path.chmod(0o600)
    logs = ("--access-log", str(access), "--audit-log", str(audit))
    with ServerProcess("--token-file", str(path), *logs, store=store) as server:
        assert server.put("t", "a", token="root")[0] == 200
        server.signal(signal.SIGHUP)
        server.said("SIGHUP: reloaded")
        path.write_text("[[token")
        server.signal(signal.SIGHUP)
        server.said("SIGHUP: nothing changed")
        server.signal(signal.SIGUSR1)
        server.said("draining")
        assert server.put("t", "a")[0] == 401
        assert server.stop() == 0
    # All is there when it has ended.
    found = [json.loads(line) for line in access.read_text().splitlines()]
    assert [(line["token"], line["status"]) for line in found] == [("root", 200), ("", 401)]
    told = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["endpoint"], line["status"]) for line in told] == [
        ("SIGHUP reload", 200),
        ("SIGHUP reload", 400),
        ("SIGUSR1 drain", 200),
    ]
    assert told[0]["tokens"] == ["root"]
    assert str(path) in told[1]["error"]


def test_a_log_that_cannot_be_kept(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "no" / "log"
    with ServerProcess("--audit-log", str(path), store=store) as server:
        assert server.error().startswith(f"InvalidSettings: audit_log: {path}: No such file")
        assert server.wait() == 2


def test_tls_and_a_new_certificate(store: Path, tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path)
    options = ("--tls-cert", str(cert), "--tls-key", str(key))
    with ServerProcess(*options, store=store) as server:
        assert server.ready()["tls"] is True
        trusting = ssl.create_default_context(cafile=cert)
        assert server.put("t", "hello", context=trusting)[0] == 200
        plain = server.ready()["http"]
        with socket.create_connection(("127.0.0.1", int(plain.rpartition(":")[2]))) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            client.settimeout(10)
            assert b"200 OK" not in client.recv(1000)
        new = make_certificate(tmp_path, "new")
        shutil.copy(new[0], cert)
        shutil.copy(new[1], key)
        server.signal(signal.SIGHUP)
        server.said("SIGHUP: reloaded")
        assert server.put("t", "hello", context=ssl.create_default_context(cafile=cert))[0] == 200
        assert server.stop() == 0


def test_a_certificate_that_is_broken_leaves_the_tokens_as_they_were(
    store: Path, tmp_path: Path
) -> None:
    cert, key = make_certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=cert)
    tokens = tmp_path / "tokens.toml"

    def write(token: str) -> None:
        tokens.write_text(f'[[token]]\nname = "a"\nsha256 = "{hash_of(token)}"\nput = ["t"]\n')
        tokens.chmod(0o600)

    write("old")
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--token-file", str(tokens))
    with ServerProcess(*options, store=store) as server:
        server.ready()
        write("new")
        whole = cert.read_text()
        cert.write_text("broken")
        server.signal(signal.SIGHUP)
        server.said("SIGHUP: nothing changed")
        assert server.put("t", "a", token="old", context=trusting)[0] == 200
        assert server.put("t", "a", token="new", context=trusting)[0] == 401
        cert.write_text(whole)
        server.signal(signal.SIGHUP)
        server.said("SIGHUP: reloaded")
        assert server.put("t", "a", token="old", context=trusting)[0] == 401
        assert server.put("t", "a", token="new", context=trusting)[0] == 200
        assert server.stop() == 0


# --- what it needs ------------------------------------------------------------------------------


@pytest.mark.parametrize("port", ["http", "beanstalk"])
def test_an_address_that_is_in_use(store: Path, port: str) -> None:
    """When the second port cannot start, the first stops."""
    pytest.importorskip("dwell.server.beanstalk.port")
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with ServerProcess(f"--{port}", address, store=store) as server:
            assert server.error() == (
                f"PortUnavailable: {port}: cannot listen on {address}: Address already in use"
            )
            assert server.wait() == 3
    with dwell.open(store):
        pass


def test_an_address_that_is_not_of_this_machine(store: Path) -> None:
    with ServerProcess("--http", "192.0.2.1:8410", "--insecure", store=store) as server:
        assert server.error().startswith("PortUnavailable: http: cannot listen on 192.0.2.1:8410: ")
        assert server.wait() == 3
    with ServerProcess("--http", "no.such.host.invalid:1", "--insecure", store=store) as server:
        assert server.error().startswith("PortUnavailable: http: cannot listen on no.such.host")
        assert server.wait() == 3


def test_a_port_that_it_may_not_have(store: Path) -> None:
    command = stubborn(store, start="raise PermissionError(13, 'odd words')")
    with ServerProcess(command=command) as server:
        assert server.wait() == 1
        assert server.other[-1].endswith("cannot listen on 127.0.0.1:8410: Permission denied")


def test_a_thread_that_is_passed_over_asks_soon(store: Path) -> None:
    """What comes of it beside a flood ``make attack`` shows."""
    store.write_text("no folder")
    code = (
        "import sys; from dwell.server.serve import run, ServerSettings\n"
        f"try: run(ServerSettings(store={str(store)!r}))\n"
        "finally: print(sys.getswitchinterval() < 0.001)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def test_a_store_that_another_process_has(store: Path) -> None:
    with dwell.open(store), ServerProcess(store=store) as server:
        held = f"StoreLocked: {store}: held by process {os.getpid()}; only one can have it open"
        assert server.error().startswith(held)
        assert server.wait() == 3


def test_a_folder_that_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with ServerProcess(store=tmp_path) as server:
        assert server.error().startswith(f"NotAStore: {tmp_path}: holds files but no dwell.json")
        assert server.wait() == 3


def test_a_store_that_is_damaged(store: Path) -> None:
    with ServerProcess(store=store) as server:
        for body in ("first body", "second body", "third body"):
            server.put("t", body)
        server.signal(signal.SIGKILL)
        server.wait()
    (journal,) = store.glob("journal-*")
    with journal.open("r+b") as file:
        file.seek(journal.read_bytes().index(b"first body"))
        file.write(b"F")
    with ServerProcess(store=store) as server:
        error = server.error()
        assert error.startswith(f"StoreDamaged: {journal}: damaged from offset")
        assert error.endswith("dwell check --repair saves what can be saved")
        assert server.wait() == 3


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--http", "0.0.0.0:0"], "InvalidSettings: http: got 0.0.0.0:0, where other machines"),
        (["--http", "off"], "InvalidSettings: http, beanstalk: both are off"),
        (["--http", "here"], "InvalidSettings: http: got 'here', expected host:port"),
        (["--token-file", "none.toml"], "InvalidSettings: token_file none.toml: No such file"),
        (["--tls-cert", "none.pem"], "InvalidSettings: tls_cert: none.pem: No such file"),
        (["--config", "none.toml"], "InvalidSettings: config none.toml: No such file"),
        (["--sync", "now"], "InvalidSettings: sync: got 'now', expected always, never or"),
        (["--nope"], "UsageError: No such option: --nope"),
    ],
)
def test_bad_input_ends_with_two_and_one_line(tmp_path: Path, args: list[str], error: str) -> None:
    with ServerProcess(*args, store="new", cwd=tmp_path) as server:
        assert server.error().startswith(error)
        assert server.wait() == 2
    assert list(tmp_path.iterdir()) == []


def test_other_machines_are_let_in_with_a_warning(store: Path, tmp_path: Path) -> None:
    with ServerProcess("--http", "0.0.0.0:0", "--insecure", store=store) as server:
        assert server.ready()["http"].startswith("0.0.0.0:")
        assert server.said("may do everything")["level"] == "warning"
    path = tmp_path / "tokens.toml"
    path.touch(0o600)
    with ServerProcess("--http", "0.0.0.0:0", "--token-file", str(path), store=store) as server:
        assert server.said("pass 0.0.0.0:0 without TLS")["level"] == "warning"


def test_a_variable_that_looks_like_a_mistake_is_named(store: Path) -> None:
    with ServerProcess(store=store, env={"DWELL_LOG_LEVEL_": "debug"}) as server:
        server.ready()
        assert server.logs[0]["message"] == "DWELL_LOG_LEVEL_ is no setting; DWELL_LOG_LEVEL is one"


def test_settings_of_all_kinds_arrive(store: Path, tmp_path: Path) -> None:
    config = tmp_path / "dwell.toml"
    config.write_text(f'store = "{store}"\nsync = "never"\nmax_requests = 1\n')
    env = {"DWELL_LOG_LEVEL": "error", "DWELL_CONFIG": str(config)}
    command = [*COMMAND, "serve", "--beanstalk", "off", "--log-format", "json"]
    port = free_port()
    with ServerProcess(command=[*command, "--http", f"127.0.0.1:{port}"], env=env) as server:
        until(lambda: accepts(port))
        assert server.stop() == 0
        assert server.logs == []
    assert (store / "dwell.json").exists()


def test_the_manager_of_services_is_told(store: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(30)
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with ServerProcess(store=store, env=env) as server:
            assert channel.recv(100) == b"READY=1"
            assert server.ask("GET", "/healthz")[0] == 200
            assert server.stop() == 0
            assert channel.recv(100) == b"STOPPING=1"


def test_the_manager_of_services_may_have_a_name_of_its_own_kind(store: Path) -> None:
    name = f"dwell-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(f"\0{name}")
        channel.settimeout(30)
        with ServerProcess(store=store, env={"NOTIFY_SOCKET": f"@{name}"}) as server:
            assert channel.recv(100) == b"READY=1"
            assert server.stop() == 0


def test_a_manager_that_does_not_listen_is_no_reason_to_fail(store: Path) -> None:
    with ServerProcess(store=store, env={"NOTIFY_SOCKET": "/nowhere/notify"}) as server:
        server.ready()
        assert server.said("was not told READY=1")["level"] == "warning"
        assert server.stop() == 0


def test_it_may_open_as_many_files_as_it_needs(store: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    few = f"ulimit -Sn 256 && exec {sys.executable} -c 'from dwell.cli import main; main()'"
    args = f"serve {store} --http 127.0.0.1:0 --beanstalk off --log-format json"
    with ServerProcess(command=["bash", "-c", f"{few} {args}"]) as server:
        server.ready()
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        soft = next(line.split()[3] for line in limits.splitlines() if "open files" in line)
        assert soft == "unlimited" or int(soft) >= min(20_000, hard) > 256


@pytest.mark.parametrize("missing", ["uvloop", "httptools", "prometheus_client"])
def test_without_the_extra_it_says_what_to_install(missing: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {missing!r}: raise ModuleNotFoundError('no', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    done = subprocess.run(
        [*COMMAND, "serve", "store"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"InvalidInput: {missing} is missing, which the server needs: pip install 'dwell[server]'\n"
    )
    assert not (tmp_path / "store").exists()


# --- both ports ---------------------------------------------------------------------------------


def test_both_ports_serve_one_queue(store: Path) -> None:
    pytest.importorskip("dwell.server.beanstalk.port")
    with ServerProcess("--beanstalk", "127.0.0.1:0", store=store) as server:
        host, _, port = server.ready()["beanstalk"].rpartition(":")
        with socket.create_connection((host, int(port))) as client:
            client.settimeout(10)
            client.sendall(b"use t\r\nput 1 0 60 5\r\nhello\r\n")
            answer = b""
            while answer.count(b"\r\n") < 2:
                answer += client.recv(100)
            assert answer.startswith(b"USING t\r\nINSERTED ")
            assert server.take("t")[1]["messages"][0]["body"] == "hello"
            assert server.stop() == 0
            assert client.recv(100) == b""


def test_both_ports_speak_tls(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("dwell.server.beanstalk.port")
    cert, key = make_certificate(tmp_path)
    options = ("--tls-cert", str(cert), "--tls-key", str(key), "--beanstalk", "127.0.0.1:0")
    with ServerProcess(*options, store=store) as server:
        host, _, port = server.ready()["beanstalk"].rpartition(":")
        context = ssl.create_default_context(cafile=cert)
        plain = socket.create_connection((host, int(port)), timeout=10)
        with context.wrap_socket(plain, server_hostname=host) as client:
            client.sendall(b"list-tubes\r\n")
            assert client.recv(100).startswith(b"OK ")
        assert server.ask("GET", "/healthz", context=context)[0] == 200
        assert server.stop() == 0
