"""Clients that are generated from the OpenAPI document compile, and do what they should."""

import json
import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest

from dwell.message import Kind, Result, State
from dwell.server.http.openapi import document
from dwell.store.embedded import EmbeddedStore
from tests.http.served import served_aside

#: What a user of the generated package writes; it says what came of it.
PROGRAM = """
import sys
from made import Client
from made.api.by_id import get_one
from made.api.by_receipt import ack
from made.api.looking import list_messages
from made.api.put import put
from made.api.take import take
from made.models import AckRequest, ListMessagesState, NewMessage, PutOnConflict, TakeRequest

client = Client(sys.argv[1], raise_on_unexpected_status=True)
later = NewMessage(id="later", body={"to": "ann"}, delay="1h", priority=4_000_000_000)
later_ms = 4_000_000_000_000
body = [NewMessage(id="now", body="hello"), later, NewMessage(id="far", body="x", due_ms=later_ms)]
said = put.sync("orders", client=client, body=body, on_conflict=PutOnConflict.KEEP)
assert type(said).__name__ == "PutResults", said
print([result.result.value for result in said.results], all(r.number > 0 for r in said.results))
(message,) = take.sync(client=client, body=TakeRequest(topics="orders", limit=10)).messages
print(message.id, message.body, message.state.value, message.attempt)
print(get_one.sync("orders", "later", client=client).priority)
page = list_messages.sync("orders", client=client, state=ListMessagesState.DELAYED)
print([one.id for one in page.messages], page.messages[1].due_ms == later_ms, page.cursor)
receipts = AckRequest(receipts=[message.receipt])
for _ in range(2):
    print([word.value for word in ack.sync(client=client, body=receipts).results])
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    with served_aside(lambda: EmbeddedStore(folder / "store")) as url:
        yield url


#: The Python in which the generator is installed.
PYTHON = Path(__file__).parents[2] / ".brokers" / "openapi" / "bin" / "python"


def run(*command: object) -> str:
    """Run a program of the generator's Python, and return what it said."""
    done = subprocess.run([PYTHON, *map(str, command)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_client_in_python(url, tmp_path):
    """openapi-python-client makes a package of what a served store says of itself."""
    with urlopen(f"{url}/openapi.json", timeout=10) as answer:
        (tmp_path / "openapi.json").write_bytes(answer.read())
    (tmp_path / "config.json").write_text(json.dumps({"post_hooks": []}))
    made = tmp_path / "made"
    given = ("--path", tmp_path / "openapi.json", "--config", tmp_path / "config.json")
    how = ("--meta", "none", "--output-path", made)
    said = run("-m", "openapi_python_client", "generate", *given, *how)
    # It has no words for MessagePack and archives, and leaves those out; every verb is there.
    assert "was not generated" not in said
    operations = [one for path in document()["paths"].values() for one in path.values()]
    for one in operations:
        group = one["tags"][0].replace(" ", "_")
        assert (made / "api" / group / f"{one['operationId']}.py").exists()
    run("-m", "compileall", "-q", made)
    (tmp_path / "program.py").write_text(PROGRAM)
    assert run(tmp_path / "program.py", url).splitlines() == [
        "['created', 'created', 'created'] True",
        "now hello leased 1",
        "4000000000",
        "['later', 'far'] True None",
        "['acked']",
        "['stale']",
    ]


def parts(schema):
    """Yield a schema and all that stand in it."""
    if isinstance(schema, dict):
        yield schema
        for part in schema.values():
            yield from parts(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from parts(part)


def test_every_integer_says_how_many_bits_hold_it():
    for one in parts(document()):
        if one.get("type") == "integer":
            fits = one.get("maximum", 2**63) < 2**31 and one.get("minimum", -(2**63)) >= -(2**31)
            assert one["format"] == ("int32" if fits else "int64"), one
    fields = document()["components"]["schemas"]["MessageRow"]["properties"]
    assert {fields[name]["format"] for name in ("due_ms", "number", "priority")} == {"int64"}


def test_words_that_are_enums_say_so():
    schemas = document()["components"]["schemas"]

    def words(kind: str, field: str) -> list[str]:
        schema = schemas[kind]["properties"][field]
        return schema.get("items", schema)["enum"]

    assert words("MessageRow", "state") == [str(state) for state in State if state]
    assert words("Results", "results") == [str(result) for result in Result]
    assert words("EventRow", "kind") == [str(kind) for kind in Kind]
    assert words("PutQuery", "on_conflict") == ["keep", "replace", "error"]
    assert set(words("TopicSettings", "on_full")) == set(words("SettingsChange", "on_full"))
    assert set(words("PutResult", "result")) < set(words("Results", "results"))


def test_message_pack_has_the_schema_of_json_and_streams_say_what_they_are():
    for path in document()["paths"].values():
        for one in path.values():
            for content in (one.get("requestBody", {}), one["responses"]["200"]):
                forms = content.get("content", {})
                if "application/msgpack" in forms:
                    assert forms["application/msgpack"] == forms["application/json"] != {}
    push = document()["paths"]["/v1/push"]["post"]["responses"]["200"]["content"]
    events = push["text/event-stream"]["schema"]["contentSchema"]["items"]["oneOf"]
    schemas = document()["components"]["schemas"]
    names = [event["$ref"].rpartition("/")[2] for event in events]
    assert [schemas[n]["properties"]["event"]["enum"] for n in names] == [["stream"], ["messages"]]
