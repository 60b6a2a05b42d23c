"""pystalk, a client in Python: a script that uses every command it has, and its pool.

Its package holds no suite of its own.
"""

import socket

import pytest
from pystalk import BeanstalkClient, BeanstalkConnectionError, BeanstalkError, ProductionPool

TUBE = "pystalk-tube"


class Noted:
    """A client that notes which of its methods were called."""

    def __init__(self, client: BeanstalkClient, called: set[str]) -> None:
        self.client = client
        self._called = called

    def __getattr__(self, name: str):
        self._called.add(name)
        return getattr(self.client, name)


@pytest.fixture
def called():
    return set()


@pytest.fixture
def client(number, called):
    made = BeanstalkClient.from_uri(f"beanstalkd://127.0.0.1:{number}", 20, auto_decode=True)
    yield Noted(made, called)
    made.close()


def refused(word: str):
    return pytest.raises(BeanstalkError, match=f"^{word}$")


def test_every_command_of_pystalk(client, called):
    tubes(client)
    life(client)
    several(client)
    buried(client)
    delayed(client)
    looks(client)
    paused(client)
    client.close()
    assert client.list_tubes()
    kind = BeanstalkClient
    names = {name for name in vars(kind) if not name.startswith("_")}
    assert called == {name for name in names if callable(getattr(kind, name))} - {"from_uri"}


def tubes(client):
    assert client.ping()
    client.use(TUBE)
    # The first tube that is watched takes the place of the one from the beginning.
    client.watch(TUBE)
    with refused("NOT_IGNORED"):
        client.ignore(TUBE)
    client.client.watchlist = {TUBE, "another"}
    assert client.client.watchlist == {TUBE, "another"}
    client.client.watchlist = {TUBE}
    assert TUBE in client.list_tubes()


def life(client):
    _, number = client.put_job("hellö", pri=10, ttr=30)
    job = client.reserve_job()
    assert (job.job_id, job.job_data) == (number, "hellö")
    assert client.release_job(job, pri=1) == b"RELEASED"
    assert client.stats_job(job)["releases"] == 1
    job = client.reserve_job(1)
    client.delete_job(job)
    with refused("NOT_FOUND"):
        client.delete_job(job)
    with refused("TIMED_OUT"):
        client.reserve_job(0)


def several(client):
    """It puts into tubes beside the one it uses, and goes over what is there."""
    with client.using("beside") as beside:
        beside.put_job("a")
    client.put_job_into("beside", "b", delay=100)
    client.put_job("c")
    assert client.stats_tube("beside")["current-jobs-ready"] == 1
    client.watch("beside")
    jobs = list(client.reserve_iter())
    assert sorted(job.job_data for job in jobs) == ["a", "c"]
    for job in jobs:
        client.delete_job(job)
    client.ignore("beside")
    client.use("beside")
    client.delete_job(next(client.peek_delayed_iter()))
    client.use(TUBE)


def buried(client):
    for body in "ab":
        client.put_job(body)
    first, second = client.reserve_iter()
    client.bury_job(first, pri=1)
    client.bury_job(second, pri=5)
    assert client.peek_buried() == next(client.peek_buried_iter()) == first
    assert client.kick_jobs(1) == (b"KICKED", 1)
    client.kick_job(second)
    with refused("NOT_FOUND"):
        client.peek_buried()
    assert client.peek_ready() == next(client.peek_ready_iter()) == first
    client.delete_job(first)
    client.delete_job(second)


def delayed(client):
    _, number = client.put_job("later", delay=100)
    assert client.peek_delayed().job_id == number
    assert client.stats_job(number)["delay"] == 100
    assert client.kick_jobs(10) == (b"KICKED", 1)
    client.delete_job(client.reserve_job())


def looks(client):
    _, number = client.put_job("x", pri=7, ttr=30)
    stats = client.stats_job(number)
    assert (stats["id"], stats["tube"], stats["state"]) == (number, TUBE, "ready")
    assert (stats["pri"], stats["ttr"], stats["time-left"]) == (7, 30, 0)
    assert client.stats_tube(TUBE)["current-jobs-urgent"] == 1
    assert client.stats()["current-jobs-ready"] == 1
    client.delete_job(number)
    with refused("JOB_TOO_BIG"):
        client.put_job("x" * (1 << 20) + "x")


def paused(client):
    client.pause_tube(TUBE, 100)
    client.put_job("x")
    with refused("TIMED_OUT"):
        client.reserve_job(0)
    client.unpause_tube(TUBE)
    client.delete_job(client.reserve_job(5))


def test_a_pool_goes_on_with_the_server_that_is_there(number, client):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        uris = [f"beanstalk://127.0.0.1:{at}" for at in (nobody.getsockname()[1], number)]
        with pytest.raises(BeanstalkConnectionError):
            BeanstalkClient.from_uri(uris[0]).ping()
        pool = ProductionPool.from_uris(uris, socket_timeout=20, initial_shuffle=False)
        pool.use(TUBE)
        pool.put_job("a")
        pool.put_job_into("beside", "b")
    client.client.watchlist = {TUBE, "beside"}
    assert sorted(job.job_data for job in client.reserve_iter()) == ["a", "b"]
    for record in pool._clients:
        record.client.close()
