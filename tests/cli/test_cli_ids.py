import pytest

from dwell import State

DUE_MS = 4_000_000_000_000


@pytest.fixture
def messages(cli):
    """Topic t: a and b delayed, c leased, d dead."""
    with cli.queue() as queue:
        queue.put_many("t", ["x", "x"], ids=["c", "d"])
        queue.bury(queue.take("t", 2)[1:], "why")
        queue.put_many("t", ["x", "x"], ids=["a", "b"], due=DUE_MS)


@pytest.mark.usefixtures("messages")
class TestMessages:
    def test_get(self, cli):
        a, d = cli.json("get", "t", "a", "d")
        assert (a["id"], a["state"], a["due_ms"], a["receipt"]) == ("a", "delayed", DUE_MS, None)
        assert (d["state"], d["last_error"]) == ("dead", "why")

    def test_get_of_an_unknown_id_ends_with_one(self, cli):
        answers = cli.json("get", "t", "no", "a", code=1)
        assert answers[0] == {"topic": "t", "id": "no", "result": "unknown"}
        assert answers[1]["id"] == "a"
        lines = cli.out("get", "t", "no", "a", code=1)
        assert lines[:2] == ["unknown  no", "a  t  delayed"]

    def test_cancel(self, cli):
        assert cli.out("cancel", "t", "a", "d") == ["cancelled  a", "cancelled  d"]
        assert cli.get("t", "a") is None

    def test_cancel_tells_the_truth_for_each_id(self, cli):
        answers = cli.json("cancel", "t", "a", "c", "no", code=1)
        assert [one["result"] for one in answers] == ["cancelled", "leased", "unknown"]
        assert [one["id"] for one in answers] == ["a", "c", "no"]

    def test_reschedule(self, cli):
        assert cli.out("reschedule", "t", "a", "--due", "2096-10-02T07:06:41Z") == ["moved  a"]
        assert cli.get("t", "a").due_ms == DUE_MS + 1000
        cli.run("reschedule", "t", "a", "b", "--delay", "0")
        assert len(cli.json("take", "t", "--limit", "9")) == 2
        assert cli.out("reschedule", "t", "d", "--delay", "1", code=1) == ["unknown  d"]

    def test_kick_by_id(self, cli):
        assert cli.out("kick", "t", "d", "--delay", "1h") == ["kicked  d"]
        assert cli.get("t", "d").state is State.DELAYED
        assert cli.out("kick", "t", "a", code=1) == ["unknown  a"]

    def test_kick_by_number(self, cli):
        assert cli.json("kick", "t", "--limit", "9") == [{"topic": "t", "kicked": 1}]
        assert cli.out("kick", "t", "--limit", "9") == ["0 kicked"]

    def test_ids_from_standard_input(self, cli):
        answers = cli.json("cancel", "t", "-", stdin="a\r\n\nb\n")
        assert [one["id"] for one in answers] == ["a", "b"]

    @pytest.mark.parametrize(
        ("args", "error"),
        [
            (["get", "a b", "a"], "InvalidTopic: "),
            (["get", "t", ""], "InvalidId: ids[0]: got str ''"),
            (["get", "t"], "InvalidInput: get: got neither, expected ids or some of --where, "),
            (["cancel", "t", "x" * 300], "InvalidId: ids[0]:"),
            (["cancel", "t"], "InvalidInput: cancel: got neither, expected ids or some of"),
            (["reschedule", "t", "a"], "InvalidTime: due: got neither delay nor due"),
            (["reschedule", "t", "a", "--due", "soon"], "InvalidTime: due: got str 'soon'"),
            (["reschedule", "t", "a", "--delay", "1", "--due", "2"], "InvalidTime: delay: got del"),
            (["kick", "t"], "InvalidInput: kick: got neither, expected ids or some of"),
            (["kick", "t", "d", "--limit", "1"], "InvalidInput: kick: got --limit beside ids"),
            (["kick", "t", "d", "--pace", "1"], "InvalidInput: kick: got --pace beside ids"),
            (["kick", "t", "--limit", "9", "--pace", "0"], "InvalidLimit: pace: got int 0"),
            (["kick", "t", "--limit", "0"], "InvalidLimit: limit: got int 0"),
            (["kick", "t", "d", "--delay", "-1"], "InvalidTime: delay: got str '-1'"),
        ],
    )
    def test_bad_input(self, cli, args, error):
        assert cli.error(*args).startswith(error)
