import os
import stat

import pytest

from dwell.errors import DwellError
from dwell.server.tokens import Right, Tokens, hash_of


def may(path, token, right, topic):
    try:
        Tokens.load(path).check(token, (right,), None if topic is None else [topic])
    except DwellError:
        return False
    return True


def test_a_token_and_its_entry_are_printed(cli, tmp_path):
    token, empty, *entry = cli.out("token", "orders", "--put", "orders.", "--take", "")
    assert (token[:6], len(token), empty) == ("dwell_", 49, "")
    path = tmp_path / "tokens.toml"
    path.write_text("\n".join(entry))
    assert Tokens.load(path).names == ["orders"]
    assert may(path, token, Right.PUT, "orders.new")
    assert not may(path, token, Right.PUT, "other")
    assert may(path, token, Right.TAKE, None)
    assert not may(path, token, Right.ADMIN, "orders.new")
    assert "admin" not in "\n".join(entry)
    assert not os.path.exists(cli.folder)


def test_tokens_are_added_to_a_file(cli, tmp_path):
    path = tmp_path / "tokens.toml"
    done = cli.run("token", "a", "--admin", "", "--file", str(path))
    (first,) = done.stdout.splitlines()
    assert done.stderr == f"its hash is in {path}; a server that runs reads it on SIGHUP\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # An editor that leaves no end of line does no harm, and the owner's mode is kept.
    path.write_text(path.read_text().rstrip("\n"))
    path.chmod(0o640)
    (second,) = cli.out("--quiet", "token", "b", "--put", "x.", "--put", "y.", "--file", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert Tokens.load(path).names == ["a", "b"]
    assert may(path, first, Right.ADMIN, None)
    assert may(path, second, Right.PUT, "y.z")
    assert first not in path.read_text()


def test_all_that_an_entry_may_say(cli, tmp_path):
    path = tmp_path / "tokens.toml"
    quota = ("--quota", "pending=10", "--quota", "requests_per_s=5")
    cli.out("token", "a", "--read", "x.", "--metrics", *quota, "--file", str(path))
    (entry,) = Tokens.load(path).found.token
    assert (entry.read, entry.metrics, entry.put) == (("x.",), True, ())
    assert (entry.quota.pending, entry.quota.requests_per_s, entry.quota.topics) == (10, 5, None)


def test_for_programs(cli):
    (found,) = cli.json("token", "a", "--take", "t")
    assert found["sha256"] == hash_of(found["token"])
    assert (found["name"], found["put"], found["take"], found["admin"]) == ("a", [], ["t"], [])


def test_no_two_tokens_are_the_same(cli):
    assert len({cli.out("token", "a", "--take", "")[0] for _ in range(20)}) == 20


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["a"], "InvalidInput: token: got no right, expected one of --put, --take, --read,"),
        (["a b", "--put", ""], "InvalidSettings: token: got name 'a b', expected 1-100 characters"),
        (["a", "--put", "", "--quota", "pending"], "InvalidInput: quota: "),
        (
            ["a", "--put", "", "--quota", "size=1"],
            "InvalidInput: quota: Object contains unknown field `size`",
        ),
        (["a", "--put", "x y"], "InvalidSettings: token: token a: got put 'x y', expected the"),
        (["a", "--take", "*"], "InvalidSettings: token: token a: got take '*'"),
        ([], "UsageError: Missing argument 'NAME'"),
    ],
)
def test_bad_input(cli, tmp_path, args, error):
    path = tmp_path / "tokens.toml"
    assert cli.error("token", *args, "--file", str(path)).startswith(error)
    assert not path.exists()


def test_files_that_cannot_be_added_to(cli, tmp_path):
    path = tmp_path / "tokens.toml"
    cli.run("token", "a", "--put", "", "--file", str(path))
    before = path.read_text()
    again = cli.error("token", "a", "--put", "", "--file", str(path))
    assert again == f"InvalidInput: token: {path} has one named a already"
    assert path.read_text() == before
    path.chmod(0o666)
    assert "others may write it" in cli.error("token", "b", "--put", "", "--file", str(path))
    error = cli.error("token", "b", "--put", "", "--file", str(tmp_path / "no" / "file"), code=3)
    assert error.startswith("FileNotFoundError: ")
