"""The servers that the tests of the Redis store stand on do what those tests take for granted."""

import time

import pytest
import redis
from redis.exceptions import ReadOnlyError

from tests.redis.servers import (
    SLOTS,
    redis_cluster,
    redis_sentinel,
    redis_server,
    until,
    valkey_binary,
)
from tests.server.certificates import make_certificate

pytestmark = pytest.mark.campaign

KINDS = [pytest.param("redis-server", id="redis"), pytest.param(valkey_binary(), id="valkey")]
each_kind = pytest.mark.parametrize("binary", KINDS)

ALWAYS = {"appendonly": "yes", "appendfsync": "always"}


# --- one server -----------------------------------------------------------------------------------


@each_kind
def test_a_server_starts_at_once_and_listens_to_this_machine_only(binary):
    start = time.monotonic()
    with redis_server(binary) as server, server.client(decode_responses=True) as client:
        assert time.monotonic() - start < 10
        assert client.set("a", 1)
        assert client.config_get("bind", "save", "appendonly") == {
            "bind": "127.0.0.1",
            "save": "",
            "appendonly": "no",
        }
        name = client.info("server")["process_id"]
        assert name == server.pid
    with pytest.raises(redis.ConnectionError):
        server.ask("PING")


def test_the_kinds_are_what_they_are_called():
    with redis_server() as server:
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        assert "valkey_version" not in server.ask("INFO", "server")
    with redis_server(valkey_binary()) as server:
        assert server.url == f"valkey://127.0.0.1:{server.port}/0"
        assert server.ask("INFO", "server")["valkey_version"].startswith("9.")


@each_kind
@pytest.mark.parametrize(("config", "kept"), [({}, None), (ALWAYS, "1")])
def test_what_is_there_after_a_kill_is_what_the_config_says(binary, config, kept):
    with redis_server(binary, **config) as server:
        port, pid = server.port, server.pid
        server.ask("SET", "a", 1)
        server.kill()
        assert not server.is_up
        with pytest.raises(redis.ConnectionError):
            server.ask("PING")
        server.start()
        assert (server.port, server.ask("GET", "a")) == (port, kept)
        assert server.pid != pid


def test_a_server_that_hangs_answers_late_and_not_never():
    with redis_server() as server, server.client(socket_timeout=0.1) as client:
        client.set("a", 1)
        server.stop()
        with pytest.raises(redis.TimeoutError):
            client.set("a", 2)
        server.cont()
        assert client.get("a") in (b"1", b"2")
        server.stop()
    assert not server.is_up


def test_a_server_with_a_password_takes_nobody_without_it():
    with redis_server(requirepass="opensesame") as server:
        assert server.url == f"redis://:opensesame@127.0.0.1:{server.port}/0"
        with server.client(password=None) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        assert server.ask("PING")


def test_a_server_with_tls_shows_its_certificate(tmp_path):
    with redis_server(tls=make_certificate(tmp_path)) as server:
        assert server.url == f"rediss://127.0.0.1:{server.port}/0"
        server.ask("SET", "a", 1)
        server.kill()
        server.start()
        with server.client(ssl=False) as plain, pytest.raises(redis.RedisError):
            plain.ping()


def test_a_server_that_is_full_says_so():
    with redis_server(maxmemory=1, maxmemory_policy="noeviction") as server:
        with pytest.raises(redis.OutOfMemoryError):
            server.ask("SET", "a", 1)
        assert server.ask("GET", "a") is None


def test_a_server_that_is_missing_is_a_failure():
    missing = pytest.raises(SystemExit, match="no-such-server is not installed; make setup")
    with missing, redis_server("no-such-server"):
        pass


def test_a_server_that_does_not_start_says_why():
    why = pytest.raises(SystemExit, match=r"(?s)ended at once.*Failed listening on port")
    # An address for examples in texts, which no machine has.
    with why, redis_server(bind="192.0.2.1"):
        pass


def test_ports_are_not_those_of_outgoing_connections():
    with redis_server() as server, server.client() as client:
        client.ping()
        own = client.connection_pool.get_connection()
        assert server.port < own._sock.getsockname()[1]
        client.connection_pool.release(own)


# --- a cluster ------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("masters", [1, 2, 3])
def test_a_cluster_answers_on_all_slots(binary, masters):
    with redis_cluster(masters, binary=binary) as cluster:
        assert len({cluster.owner(f"key-{n}").port for n in range(100)}) == masters
        with cluster.client() as client, client.pipeline() as pipeline:
            for key in some_key_of_each_slot(cluster):
                pipeline.set(key, 1)
            assert all(pipeline.execute())
        counts = [node.ask("DBSIZE") for node in cluster.nodes]
        assert sum(counts) == SLOTS
        assert max(counts) - min(counts) <= 1


def some_key_of_each_slot(cluster):
    """Return a key for each slot."""
    found: dict[int, str] = {}
    number = 0
    keyslot = redis.cluster.key_slot
    while len(found) < SLOTS:
        key = f"key-{number}"
        found.setdefault(keyslot(key.encode()), key)
        number += 1
    assert cluster.masters[0].ask("CLUSTER", "KEYSLOT", found[77]) == 77
    return found.values()


def test_a_node_that_comes_back_has_its_slots_and_its_data():
    with redis_cluster(2, **ALWAYS) as cluster, cluster.client() as client:
        client.set("a", 1)
        owner = cluster.owner("a")
        owner.kill()
        other = next(node for node in cluster.nodes if node.is_up)
        until(lambda: "cluster_state:fail" in other.ask("CLUSTER", "INFO"), "it was not missed")
        owner.start()
        cluster.wait_ok()
        assert cluster.owner("a") is owner
        assert owner.ask("GET", "a") == "1"


def test_a_replica_takes_the_place_of_a_master_that_is_killed():
    with redis_cluster(3, replicas=1) as cluster, cluster.client() as client:
        client.set("a", 1)
        old = cluster.owner("a")
        assert old.ask("WAIT", 1, 5_000) == 1 or old.ask("ROLE")[2]
        old.kill()
        until(lambda: cluster.owner("a") is not old, "no replica took over")
        cluster.wait_ok()
        assert cluster.owner("a") in cluster.replicas
        assert cluster.owner("a").ask("GET", "a") == "1"


@each_kind
def test_a_slot_can_be_moved(binary):
    with redis_cluster(2, binary=binary) as cluster, cluster.client() as client:
        client.mset_nonatomic({f"{{a}}{number}": number for number in range(1000)})
        old = cluster.owner("{a}0")
        new = next(node for node in cluster.nodes if node is not old)
        cluster.move("{a}0", new)
        assert (old.ask("DBSIZE"), new.ask("DBSIZE")) == (0, 1000)
        with pytest.raises(redis.exceptions.MovedError):
            old.ask("GET", "{a}0")
        assert client.get("{a}7") == b"7"
        assert cluster.owner("{a}0") is new


# --- sentinels ------------------------------------------------------------------------------------


@each_kind
def test_the_sentinels_move_the_master_when_it_is_killed(binary):
    with redis_sentinel(binary=binary) as watched, watched.client() as client:
        client.set("a", 1)
        until(lambda: watched.servers[1].ask("GET", "a") == "1", "it did not reach the replica")
        old = watched.kill_master()
        assert old is watched.servers[0]
        watched.wait_moved(old)
        assert watched.master() is watched.servers[1]
        until(lambda: client.get("a") == b"1", "the client did not find the new master")
        assert client.set("a", 2)


def test_the_old_master_comes_back_as_a_replica():
    with redis_sentinel() as watched:
        with pytest.raises(ReadOnlyError):
            watched.servers[1].ask("SET", "a", 1)
        old = watched.kill_master()
        watched.wait_moved(old)
        watched.master().ask("SET", "a", 2)
        old.start()
        until(lambda: old.ask("GET", "a") == "2", "the old master did not become a replica")


def test_a_master_that_hangs_is_replaced_too():
    with redis_sentinel() as watched:
        old = watched.master()
        old.stop()
        watched.wait_moved(old)
        old.cont()
        until(lambda: old.ask("ROLE")[0] == "slave", "the old master did not become a replica")
