"""Hosts: by which names a server may be called, so that no page can pretend to be it."""

import pytest

from dwell.errors import InvalidSettings
from dwell.server.hosts import Hosts
from dwell.server.settings import ServerSettings

HERE = ["localhost", "LOCALHOST:8410", "a.localhost", "127.0.0.1", "127.0.0.1:80", "[::1]:8410"]
ADDRESSES = ["192.0.2.7:8410", "10.0.0.1", "[2001:db8::1]"]
STRANGE = [
    "",
    "evil.example",
    "evil.example:8410",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "localhost:8410:1",
    "localhost/",
    "user@localhost",
    "localhost localhost",
    "[::1",
    "1.2.3",
    "0x7f000001",
    "\xff",
]


@pytest.mark.parametrize("name", [*HERE, *ADDRESSES])
def test_addresses_and_this_machine_are_let_in(name):
    assert Hosts().refusal(name.encode("latin-1")) is None


@pytest.mark.parametrize("name", STRANGE)
def test_other_names_are_refused(name):
    hosts = Hosts(["queue.example.org"])
    for _ in range(2):
        refusal = hosts.refusal(name.encode("latin-1"))
        assert refusal == (
            f"host: got {name!r}, expected localhost, an address, or one of allowed_hosts"
        )


def test_names_that_are_allowed():
    hosts = Hosts(["Queue.example.org"])
    assert hosts.refusal(b"queue.EXAMPLE.org:8410") is None
    assert hosts.refusal(b"queue.example.org.") is None
    assert hosts.refusal(b"other.example.org")
    assert Hosts(["*"]).refusal(b"other.example.org") is None
    assert Hosts(["*"]).refusal(b"not a name")


def test_a_request_without_one():
    assert Hosts(["*"]).refusal(None) == "host: got no header, expected one"


def test_settings_name_them():
    settings = ServerSettings(
        http="Queue.internal:8410", allowed_hosts=" a.example.org ,, b", insecure=True
    )
    assert settings.host_names == ["Queue.internal", "a.example.org", "b"]
    with pytest.raises(InvalidSettings, match="allowed_hosts: got 'a b', expected names such as"):
        ServerSettings(allowed_hosts="c, a b")
