import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

import pytest

from dwell.cli.token import _appended
from dwell.cli.tokenfile import changed
from dwell.errors import DwellError
from dwell.server.tokens import Entry, Right, Tokens, hash_of


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


# --- a second secret ----------------------------------------------------------------------------

HEAD = "# Ours, and not to be lost.\n[anonymous]\nput = []   # nobody\n\n"


@pytest.mark.parametrize(
    "written",
    [
        'sha256 = "{0}"',
        "sha256 = '{0}'",
        'sha256="{0}" # of "June"',
        '  sha256 = [ "{0}" ]',
        'sha256 = [\n  "{0}", # "]" of June\n]  # end',
    ],
)
def test_a_token_gets_another_secret_and_loses_the_old_one(cli, tmp_path, written):
    path = tmp_path / "tokens.toml"
    entry = '[[token]]\nname = "{0}"\n{1}\ntake = ["t."]\n'
    hashes = {name: hash_of(name) for name in ("first", "a", "last")}
    parts = [entry.format(name, written.format(sha256)) for name, sha256 in hashes.items()]
    path.write_text(HEAD + "\n".join(parts))
    path.chmod(0o640)
    before = path.read_text()
    (text,) = cli.out("--quiet", "token", "a", "--add", "--file", str(path))
    for secret in ("a", text, "first", "last"):
        assert may(path, secret, Right.TAKE, "t.x")
    assert cli.out("--quiet", "token", "a", "--drop", "--file", str(path)) == []
    assert may(path, text, Right.TAKE, "t.x")
    assert not may(path, "a", Right.TAKE, "t.x")
    for secret in ("first", "last"):
        assert may(path, secret, Right.TAKE, "t.x")
    # All that others wrote is as it was, but for the one value.
    after = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    start = before.index(written.format(hash_of("a")))
    assert after.startswith(before[:start])
    end = before.index('take = ["t."]', start)
    assert after.endswith(before[end:])
    assert os.listdir(tmp_path) == ["tokens.toml"]


def test_what_cannot_be_changed_is_left_alone(cli, tmp_path):
    path = tmp_path / "tokens.toml"
    file = ("--file", str(path))
    assert "there is no file" in cli.error("token", "a", "--add", *file)
    assert not path.exists()
    path.write_text(f'token = [{{name = "a", sha256 = "{hash_of("a")}", take = [""]}}]\n')
    path.chmod(0o600)
    before = path.read_text()
    assert "has none named b" in cli.error("token", "b", "--add", *file)
    assert "only people can change" in cli.error("token", "a", "--add", *file)
    for more in (("--put", "x"), ("--drop",), ("--metrics",)):
        assert "expected --file alone" in cli.error("token", "a", "--add", *more, *file)
    assert "expected --file alone" in cli.error("token", "a", "--add")
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["tokens.toml"]


def test_a_token_has_ten_secrets_at_most(cli, tmp_path):
    path = tmp_path / "tokens.toml"
    file = ("--file", str(path))
    cli.out("token", "a", "--take", "", *file)
    for _ in range(9):
        cli.out("token", "a", "--add", *file)
    assert "got 11 values of sha256" in cli.error("token", "a", "--add", *file)
    assert len(Tokens.load(path).found.token[0].hashes) == 10


def test_a_token_that_ends(cli, tmp_path):
    path = tmp_path / "tokens.toml"
    cli.out("token", "a", "--take", "", "--expires", "2999-01-31", "--file", str(path))
    cli.out(
        "token", "b", "--take", "", "--expires", "2999-01-31T12:00:00+02:00", "--file", str(path)
    )
    first, second = (entry.expires for entry in Tokens.load(path).found.token)
    assert first == datetime(2999, 1, 31, tzinfo=UTC)
    assert second == datetime(2999, 1, 31, 10, tzinfo=UTC)
    for wrong in ("soon", "2999-01-31T12:00:00", "2999-13-01"):
        told = cli.error("token", "c", "--take", "", "--expires", wrong)
        assert told.startswith(f"InvalidInput: expires: got '{wrong}', expected a date")


def test_a_file_that_a_link_names_is_changed_where_it_is(cli, tmp_path):
    path, link = tmp_path / "real.toml", tmp_path / "link.toml"
    link.symlink_to(path)
    cli.out("token", "a", "--take", "", "--file", str(link))
    cli.out("token", "b", "--take", "", "--file", str(link))
    assert link.is_symlink()
    assert Tokens.load(path).names == ["a", "b"]


def test_tokens_that_are_added_at_once_are_all_there(tmp_path):
    path = tmp_path / "tokens.toml"

    def add(number):
        entry = Entry(name=f"n{number}", sha256=hash_of(str(number)), take=("",))
        changed(path, partial(_appended, path, entry))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(60)))
    assert sorted(Tokens.load(path).names) == sorted(f"n{number}" for number in range(60))
    assert os.listdir(tmp_path) == ["tokens.toml"]
