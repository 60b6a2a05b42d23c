"""The commands ``find``, ``clear`` and ``stale``, and options that go with them."""

import pytest

import dwell


@pytest.fixture
def orders(cli):
    """Topic t: orders 0 to 4 by due, 3 is delayed; topic u: one that is no JSON."""
    with cli.queue() as queue:
        for n in range(5):
            due = 4_000_000_000_000 if n == 3 else n
            queue.put("t", {"n": n, "of": "ann" if n % 2 else "bob"}, id=f"{n}", due=due)
        queue.put("u", b"{")


def ids(objects):
    return [one["id"] for one in objects]


@pytest.mark.usefixtures("orders")
class TestQueries:
    def test_find(self, cli):
        assert ids(cli.json("find", "t", "of == 'bob'")) == ["0", "2", "4"]
        assert ids(cli.json("find", "t", "of == 'bob'", "--limit", "2")) == ["0", "2"]
        assert ids(cli.json("find", "t", "of", "--state", "delayed")) == ["3"]
        assert cli.json("find", "t", "lost") == cli.json("find", "u", "@") == []
        head, row = cli.out("find", "t", "n == `1`")
        assert head.split() == ["state", "id", "due", "attempt", "body"]
        assert row.split()[:2] == ["ready", "1"]

    def test_take_where(self, cli):
        taken = cli.json("take", "t", "--where", "of == 'bob'", "--limit", "2", "--lease", "5m")
        assert ids(taken) == ["0", "2"]
        assert all(one["receipt"] for one in taken)
        done = cli.run("take", "t", "--where", "lost", code=1)
        assert done.stderr == "nothing that matches is due in t\n"

    def test_clear_asks_first(self, cli):
        question = "Cancel every message of t that nobody has taken? [y/N]:"
        done = cli.run("clear", "t", stdin="n\n", code=1)
        assert done.stderr.rstrip() == question
        assert len(cli.json("list", "t")) == 5
        cli.run("clear", "t", stdin="", code=2)
        done = cli.run("clear", "t", stdin="y\n")
        assert done.stdout.endswith("5 cancelled\n")
        assert done.stderr.rstrip() == question
        assert cli.json("list", "t") == []

    def test_clear_without_being_asked(self, cli):
        cli.run("take", "t", "--lease", "1h")
        assert cli.json("clear", "t", "--yes") == [{"topic": "t", "cancelled": 4}]
        assert cli.out("clear", "none", "--yes") == ["0 cancelled"]
        assert cli.out("--quiet", "clear", "u", "--yes") == []
        assert [one["state"] for one in cli.json("list", "t")] == ["leased"]

    def test_a_topic_is_deleted(self, cli):
        cli.out("settings", "t", "lease_ms=5s")
        assert cli.out("clear", "t", "--delete", "--yes") == ["5 cancelled"]
        assert [one["topic"] for one in cli.json("topics")] == ["u"]
        assert cli.json("settings", "t")[0]["lease_ms"] == 60_000

    def test_sizes_of_shards(self, cli):
        (sizes,) = cli.json("stats", "--shards", "t")
        assert sizes == {
            "topic": "t",
            "shards": [{"delayed": 1, "ready": 4, "leased": 0, "dead": 0}],
        }
        head, row = cli.out("stats", "--shards", "t")
        assert head.split() == ["shard", "delayed", "ready", "leased", "dead"]
        assert row.split() == ["0", "1", "4", "0", "0"]

    def test_a_store_whose_parts_agree(self, cli):
        assert cli.json("stale") == []
        done = cli.run("stale", "--repair")
        assert (done.stdout, done.stderr) == ("", "ok: all parts agree\n")
        assert cli.run("--quiet", "stale").stderr == ""

    @pytest.mark.parametrize(
        ("args", "error"),
        [
            (["find", "t"], "InvalidInput: find: expected an EXPRESSION or some of --where, "),
            (["find", "a b", "@"], "InvalidTopic: "),
            (["find", "t", "a["], "InvalidQuery: where: got str 'a['"),
            (["find", "t", "@", "--state", "gone"], "InvalidInput: state: got str 'gone'"),
            (["find", "t", "@", "--limit", "10001"], "InvalidLimit: limit: got int 10001"),
            (["take", "t", "u", "--where", "@"], "InvalidInput: take: expected one topic"),
            (["take", "t", "--where", "@", "--wait", "1s"], "InvalidInput: take: expected one"),
            (["take", "t", "--where", "nope(@)"], "InvalidQuery: where: got str 'nope(@)'"),
            (["clear"], "UsageError: Missing argument 'TOPIC'"),
            (["clear", "a b", "--yes"], "InvalidTopic: "),
            (["stats", "--shards", "a b"], "InvalidTopic: "),
            (["stale", "--limit", "0"], "InvalidLimit: limit: got int 0"),
        ],
    )
    def test_bad_queries(self, cli, args, error):
        assert cli.error(*args).startswith(error)


def test_a_damaged_body_is_shown_and_repaired(tmp_path):
    from tests.cli.conftest import Cli

    cli = Cli(tmp_path / "store")
    with cli.queue() as queue:
        made = queue.put("t", b"a body that will be damaged").id
        queue.put("t", b"another", id="other")
    (path,) = (tmp_path / "store").glob("journal-*.dwl")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"will be damaged", b"has been damage"))
    (row,) = cli.json("stale", code=1)
    assert row == {
        "topic": "t",
        "id": made,
        "number": row["number"],
        "problem": "no body",
        "repaired": False,
    }
    head, shown = cli.out("stale", code=1)
    assert head.split() == ["problem", "topic", "id", "number"]
    assert shown.split() == ["no", "body", "t", made, str(row["number"])]
    (head, shown) = cli.out("stale", "--repair")
    assert shown.split()[-1] == "repaired"
    assert cli.json("stale") == []
    with cli.queue() as queue:
        assert queue.stats().topics["t"] == dwell.TopicStats(ready=1)
