"""What a relay refuses at its start, before anything is opened."""

import pytest
from typer.testing import CliRunner

from dwell.cli.app import app
from dwell.errors import InvalidInput
from dwell.relay.kafka.address import Address

CASES = [
    ([], "--from, --to: got neither"),
    (["--to", "kafka://h:1/t"], "--topic: got none"),
    (["--from", "kafka://h:1/t", "--to", "kafka://h:1", "--topic", "x"], "--topic: got some"),
    (["--from", "kafka://h:1"], "--from: got no topic"),
    (["--from", "kafka://h:1/t", "--to", "kafka://h:1/a,b"], "--to: got 2 topics"),
    (["--from", "http://host:1", "--to", "kafka://h:1"], "--from: got 'http://host:1'"),
    (["--from", "kafka:///t"], "expected kafka://HOST:PORT"),
    (["--from", "kafka://u:secret@h/t"], "expected kafka://HOST:PORT"),
    (["--from", "kafka://h:1/t", "--batch", "0"], "--batch: got 0"),
    (["--from", "kafka://h:1/t", "--lease", "1s"], "--lease: got 1s"),
    (["--from", "kafka://h:1/t", "--remember", "x"], "--remember: got str 'x'"),
    (["--from", "kafka://h:1/t", "--remember", "1d"], "--remember: is for --to"),
    (["--from", "kafka://h:1/t", "--exactly-once"], "--exactly-once: needs Kafka"),
    (["--from", "kafka://h:1/t?no.such=1"], 'No such configuration property: "no.such"'),
    (["--from", "kafka://h:1/t", "--http", "8080"], "--http: got '8080'"),
    (["--from", "outbox+mysql://h/d"], "expected outbox+postgresql://"),
    (["--from", "outbox+sqlite:///"], "expected outbox+postgresql://"),
    (["--from", "outbox+sqlite:///x.db?mode=ro"], "expected outbox+postgresql://"),
    (["--from", "outbox+sqlite:///x.db?table=a-b"], "table: got 'a-b'"),
    (["--from", "outbox+postgresql://u:secret@h/d?no_such=1"], "--from: is no address"),
    (["--from", "outbox+sqlite:///x.db", "--default-delay", "1s"], "--default-delay: is for"),
    (["--from", "outbox+sqlite:///x.db", "--to", "kafka://h", "--exactly-once"], "--exactly-once:"),
    (["--to", "outbox+sqlite:///x.db", "--topic", "t"], "--to: got an outbox"),
    (["--from", "kafka://h:1/t", "--hold", "a b"], "topic: got str 'a b'"),
]


@pytest.mark.parametrize(("options", "told"), CASES)
def test_what_cannot_be_meant_is_refused(options, told, tmp_path):
    found = CliRunner().invoke(app, ["--store", str(tmp_path / "store"), "relay", *options])
    assert told in str(found.exception or "") + found.output
    assert "secret" not in found.output
    assert found.exit_code != 0


def test_options_and_secrets_come_from_the_address_and_a_file(tmp_path):
    (tmp_path / "kafka.properties").write_text("# ours\nsasl.password = a=b\n\nlinger.ms=7\n")
    config = tmp_path / "kafka.properties"
    url = f"kafka://a:1,b:2/x,y,x?group=g&linger.ms=9&config={config}"
    found = Address.of(url)
    assert found.topics == ("x", "y")
    assert found.group == "g"
    assert found.options == {
        "bootstrap.servers": "a:1,b:2",
        "sasl.password": "a=b",
        "linger.ms": "9",
    }


def test_a_line_of_the_file_is_not_shown(tmp_path):
    (tmp_path / "kafka.properties").write_text("a=b\nhunter2\n")
    with pytest.raises(InvalidInput, match="line 2: expected NAME=VALUE") as told:
        Address.of(f"kafka://a/x?config={tmp_path / 'kafka.properties'}")
    assert "hunter2" not in str(told.value)
    with pytest.raises(InvalidInput, match="cannot read"):
        Address.of(f"kafka://a/x?config={tmp_path / 'none'}")
