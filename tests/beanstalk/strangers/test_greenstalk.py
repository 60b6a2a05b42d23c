"""greenstalk, a client in Python: a script that uses every command it has."""

import contextlib

import greenstalk
import pytest

TUBE = "green-tube"


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


class Noted:
    """A client that notes which of its methods were called."""

    def __init__(self, number: int, called: set[str], **options) -> None:
        self._client = greenstalk.Client(("127.0.0.1", number), **options)
        self._called = called

    def __getattr__(self, name: str):
        self._called.add(name)
        return getattr(self._client, name)


@pytest.fixture
def called():
    return set()


@pytest.fixture
def client(number, called):
    client = Noted(number, called, use=TUBE, watch=TUBE)
    yield client
    client.close()


@pytest.fixture
def other(number, called):
    client = Noted(number, called, use=TUBE, watch=TUBE)
    yield client
    client.close()


def test_every_command_of_greenstalk(client, other, called):
    tubes(client)
    life(client)
    buried(client)
    delayed(client)
    looks(client)
    held(client, other)
    paused(client)
    client.close()
    other.close()
    assert called == public(greenstalk.Client)


def tubes(client):
    assert client.using() == TUBE
    assert client.watching() == [TUBE]
    assert client.watch("another") == 2
    assert client.ignore("another") == 1
    with pytest.raises(greenstalk.NotIgnoredError):
        client.ignore(TUBE)
    client.use("another")
    assert set(client.tubes()) >= {TUBE, "another", "default"}
    client.use(TUBE)
    with pytest.raises(greenstalk.BadFormatError):
        client.use("x" * 201)


def life(client):
    number = client.put("hellö", priority=10, ttr=30)
    job = client.reserve()
    assert (job.id, job.body) == (number, "hellö")
    client.touch(job)
    client.release(job, priority=1)
    job = client.reserve(timeout=1)
    client.delete(job)
    with pytest.raises(greenstalk.NotFoundError):
        client.delete(job)
    with pytest.raises(greenstalk.TimedOutError):
        client.reserve(timeout=0)


def buried(client):
    for body in "ab":
        client.put(body)
    first, second = client.reserve(), client.reserve()
    client.bury(first)
    client.bury(second, priority=5)
    assert client.peek_buried().id == first.id
    assert client.kick(1) == 1
    client.kick_job(second)
    with pytest.raises(greenstalk.NotFoundError):
        client.peek_buried()
    assert client.reserve().id == second.id
    client.delete(second)
    client.delete(first)


def delayed(client):
    number = client.put("later", delay=100)
    assert client.peek_delayed().id == number
    with pytest.raises(greenstalk.NotFoundError):
        client.peek_ready()
    job = client.reserve_job(number)
    client.release(job, delay=100)
    assert client.kick(10) == 1
    assert client.peek_ready().body == "later"
    client.delete(number)


def looks(client):
    number = client.put("x", priority=7, ttr=30)
    assert client.peek(number).body == "x"
    stats = client.stats_job(number)
    assert (stats["id"], stats["tube"], stats["state"]) == (number, TUBE, "ready")
    assert (stats["pri"], stats["ttr"], stats["reserves"]) == (7, 30, 0)
    stats = client.stats_tube(TUBE)
    assert (stats["name"], stats["current-jobs-ready"]) == (TUBE, 1)
    assert client.stats()["current-jobs-ready"] == 1
    client.delete(number)
    with pytest.raises(greenstalk.NotFoundError):
        client.stats_job(number)
    with pytest.raises(greenstalk.JobTooBigError):
        client.put("x" * (1 << 20) + "x")


def held(client, other):
    client.put("x", ttr=1)
    job = client.reserve()
    for attempt in (other.touch, other.delete, other.release, other.bury):
        with pytest.raises(greenstalk.NotFoundError):
            attempt(job)
    with pytest.raises(greenstalk.DeadlineSoonError):
        client.reserve()
    assert taken_over(client, other).id == job.id
    with pytest.raises(greenstalk.NotFoundError):
        client.delete(job)
    other.delete(job)


def taken_over(holder, client):
    """Reserve a job whose TTR ends while another client holds it.

    Now and then beanstalkd notices the end only when the holder asks for something.
    """
    for _ in range(5):
        with contextlib.suppress(greenstalk.TimedOutError):
            return client.reserve(timeout=1)
        holder.using()
    raise AssertionError("the job did not come back")


def paused(client):
    client.pause_tube(TUBE, 1)
    number = client.put("x")
    with pytest.raises(greenstalk.TimedOutError):
        client.reserve(timeout=0)
    job = client.reserve(timeout=5)
    assert job.id == number
    client.delete(job)
