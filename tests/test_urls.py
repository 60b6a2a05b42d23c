"""What messages and logs show of an address."""

import pytest

from dwell.errors import InvalidUrl
from dwell.urls import host_and_port, shown

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
        "memory:",
    ],
)
def test_what_is_no_secret_stays(url):
    assert shown(url) == url


@pytest.mark.parametrize("port", ["", "x", "-1", "65536", "\u0668\u0660", "\u00b2"])
def test_a_port_is_a_number_in_ascii(port):
    with pytest.raises(InvalidUrl, match="--http: got 'h:"):
        host_and_port(f"h:{port}", "--http")
    assert host_and_port("h:80", "--http") == ("h", 80)
