"""What a URL of a store on Redis may say, and how the rest is refused."""

import pytest

import dwell
from dwell.store.redis.address import parsed
from dwell.store.redis.options import options_of

PASSWORD = "opensesame"
PLACE = f"ann:{PASSWORD}@localhost:6379"


def refusal(url: str, **keywords: object) -> str:
    """Return the message with which a URL is refused; it shows no password."""
    with pytest.raises(dwell.InvalidUrl) as caught:
        dwell.open(url, **keywords)
    assert PASSWORD not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"redis+ring://{PLACE}",
        f"rediss+://{PLACE}",
        f"redis5://{PLACE}",
        f"valkey+redis://{PLACE}",
        f"redis://{PLACE}/0#fragment",
        f"redis://{PLACE}/0/1",
        f"redis://{PLACE}/zero",
        f"redis://{PLACE}/-1",
        f"redis://ann:{PASSWORD}@localhost:port/0",
        f"redis://ann:{PASSWORD}@localhost:99999/0",
        f"redis://ann:{PASSWORD}@:6379/0",
        f"redis://ann:{PASSWORD}@[::1",
        f"redis://ann:{PASSWORD}/@localhost",
        f"redis://ann:{PASSWORD}@one:1,two:2/0",
        f"redis+sentinel://{PLACE}",
        f"redis+sentinel://{PLACE}/service/zero",
        f"redis+sentinel://{PLACE}/service/0/1",
        f"redis+cluster://{PLACE}/0",
        f"redis+cluster://{PLACE},/",
    ],
)
def test_what_is_no_address_is_refused(url):
    message = refusal(url)
    assert "redis://host:6379/0" in message


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("shards", "0"),
        ("shards", "257"),
        ("shards", "-1"),
        ("shards", "two"),
        ("shards", ""),
        ("shards", "1.5"),
        ("shards", "9" * 5000),
        ("home", "256"),
        ("min_replicas", "101"),
        ("min_replicas", "x"),
        ("max_events", "-1"),
        ("connections", "0"),
        ("connections", "10001"),
        ("timeout", "0"),
        ("timeout", "-3"),
        ("timeout", "nan"),
        ("timeout", "inf"),
        ("timeout", "soon"),
        ("timeout", ""),
        ("prefix", ""),
        ("prefix", "a{b"),
        ("prefix", "a}b"),
        ("packed", "0"),
        ("shard", "4"),
        ("Timeout", "4"),
        ("password", PASSWORD),
    ],
)
def test_a_wrong_option_is_refused_and_named(option, value):
    assert option in refusal(f"redis://{PLACE}/0?{option}={value}")
    assert option in refusal(f"redis://{PLACE}/0", **{option: value})


@pytest.mark.parametrize("value", [True, None, 1.5, [1], "1 "])
def test_a_wrong_keyword_is_refused_and_named(value):
    if value is None:
        options_of("redis://h", {"shards": value})
        return
    assert "shards" in refusal("redis://h", shards=value)


def test_replicas_of_a_cluster_are_the_clusters_own():
    message = refusal(f"redis+cluster://{PLACE}?min_replicas=1")
    assert "min_replicas" in message
    assert "min-replicas-to-write" in message


def test_what_is_left_out_is_as_usual():
    options = options_of("redis:///", {})
    assert options.address.hosts == (("localhost", 6379),)
    assert (options.prefix, options.timeout_s, options.shards) == ("dwell", 10.0, 0)
    assert (options.min_replicas, options.connections, options.ca) == (0, 64, None)
    assert parsed("redis+sentinel:///s")[0].hosts == (("localhost", 26379),)


def test_every_part_of_an_address_is_read():
    url = "valkeys+sentinel://ann:o%40pen%3A@[::1]:1,host,other:3/my%2Fservice/7?shards=4&prefix=p"
    options = options_of(url, {"home": 3, "timeout": 2})
    address = options.address
    assert address.hosts == (("::1", 1), ("host", 26379), ("other", 3))
    assert (address.kind, address.service, address.database) == ("sentinel", "my/service", 7)
    assert (address.username, address.password, address.is_secure) == ("ann", "o@pen:", True)
    assert (options.shards, options.home, options.prefix, options.timeout_s) == (4, 3, "p", 2.0)
    assert "o@pen" not in str(address)
    assert "ann" not in str(address)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "valkey", "valkeys"])
def test_a_secure_scheme_is_told_from_a_plain_one(scheme):
    for kind in ("", "+cluster"):
        address, _ = parsed(f"{scheme}{kind}://h:1")
        assert address.is_secure == (scheme in ("rediss", "valkeys"))
        assert address.kind == kind.removeprefix("+")
