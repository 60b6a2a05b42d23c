"""The links of a process to several stores, of which one does not answer."""

import socket
import sys
import threading

import pytest

from dwell.celery import link
from dwell.errors import StoreError
from tests.waiting import until

_OPTIONS = {"retries": 0, "timeout": 300}


@pytest.fixture
def silent():
    """Yield a server that accepts connections and says nothing, and its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server, f"http://127.0.0.1:{server.getsockname()[1]}"


class User(threading.Thread):
    """A thread that connects to a store, and keeps what came of it."""

    def __init__(self, url, options):
        super().__init__(daemon=True)
        self.url, self.options, self.found = url, options, None
        self.start()

    def run(self):
        try:
            self.found = link.acquire(self.url, self.options)
        except StoreError as error:
            self.found = error

    @property
    def waits(self):
        """Whether it waits for others, and opens nothing itself."""
        return sys._current_frames()[self.ident].f_code.co_name == "opened"


def test_a_store_that_does_not_answer_holds_up_no_other(silent):
    server, url = silent
    dead = User(url, _OPTIONS)
    connection, _ = server.accept()
    healthy = User("memory://", {})
    healthy.join(60)
    is_held_up = healthy.is_alive()
    connection.close()
    server.close()
    dead.join()
    healthy.join()
    link.release(healthy.found)
    assert not is_held_up
    assert isinstance(dead.found, StoreError)


def test_all_that_wait_for_a_store_hear_at_once_that_it_is_away(silent):
    server, url = silent
    users = [User(url, _OPTIONS)]
    connection, _ = server.accept()
    users += [User(url, _OPTIONS) for _ in range(3)]
    until(lambda: all(user.waits for user in users[1:]))
    connection.close()
    server.close()
    for user in users:
        user.join()
    assert isinstance(users[0].found, StoreError)
    assert {id(user.found) for user in users} == {id(users[0].found)}
    with pytest.raises(StoreError) as later:
        link.acquire(url, _OPTIONS)
    assert later.value is not users[0].found


def test_the_last_who_gives_a_link_back_closes_it(server_url):
    first, second = link.acquire(server_url, {}), link.acquire(server_url, {})
    assert first is second
    link.release(first)
    assert first.run(first.queue.stats) is not None
    link.release(second)
    third = link.acquire(server_url, {})
    assert third is not first
    link.release(third)
