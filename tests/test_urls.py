"""What messages and logs show of an address."""

import pytest

from dwell.errors import InvalidUrl
from dwell.urls import host_and_port, scheme_of, shown

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "url",
    [
        f"kafka://h:9092/t?group=g&sasl.password={SECRET}",
        f"kafka://h:9092/t?sasl.password={SECRET}@x&group=g",
        f"outbox+postgresql://h/db?user=a&password={SECRET}",
        f"outbox+postgresql://h/db?table=t&sslpassword={SECRET}%40",
        f"amqps://u:{SECRET}@h/v?queue=q&cadata={SECRET}",
        f"amqp://u:{SECRET}?{SECRET}@h/v?queue=q",
        f"redis://:{SECRET}@h/0?prefix=p",
        f"amqp::u:{SECRET}@h/v?queue=q",
        f"redis:u:{SECRET}@h",
        f"KAFKA://h/t?ssl.key.password={SECRET};x={SECRET}",
    ],
)
def test_no_secret_is_shown(url):
    assert SECRET not in shown(url)


@pytest.mark.parametrize(
    "url",
    [
        "amqp://h/v?queue=q&prefetch=7&id=message_id",
        "kafka://h:1,h:2/a,b?group=g&config=/etc/k.properties",
        "outbox+sqlite:///shop.db?table=t",
        "redis://h/0?prefix=p&shards=4",
        "./folder?password=x",
        "file:///folder?password=x",
        "file:///folder@home",
        "memory:",
    ],
)
def test_what_is_no_secret_stays(url):
    assert shown(url) == url


@pytest.mark.parametrize("port", ["", "x", "-1", "65536", "\u0668\u0660", "\u00b2", "9" * 5_000])
def test_a_port_is_a_number_in_ascii(port):
    with pytest.raises(InvalidUrl, match="--http: got 'h:"):
        host_and_port(f"h:{port}", "--http")
    assert host_and_port("h:80", "--http") == ("h", 80)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:x/0",
        "rq+redis://h:99999/0",
        "beanstalk://h:-1",
        "beanstalk://[::1",
        f"redis://:{SECRET}/x@h/0",
        "redis+cluster://h:1,h:x",
    ],
)
def test_a_host_or_port_that_is_none_is_told(url):
    with pytest.raises(InvalidUrl, match=r"url: got .*, expected HOST:PORT") as told:
        scheme_of(url)
    assert SECRET not in str(told.value)


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("amqp://u:p@h:1/v?queue=a", "amqp"),
        ("procrastinate+postgresql://u:p,x@h:1,i:2/d", "procrastinate+postgresql"),
        ("beat+sqlite:////var/x.db", "beat+sqlite"),
        ("redis://[::1]:7/0", "redis"),
        ("crontab:-", "crontab"),
        ("http+unix:///run/x:y", "http+unix"),
        ("./a:b/[c", ""),
        ("/var/x@h:y", ""),
    ],
)
def test_every_other_address_has_a_scheme(url, scheme):
    assert scheme_of(url) == scheme
