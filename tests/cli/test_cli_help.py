import runpy
import shlex
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import dwell.cli
from dwell.cli import pipeline
from dwell.cli.app import GROUPS, app
from dwell.cli.exits import MEANINGS, Code, code_of
from dwell.errors import AccessDenied, DwellError, InvalidInput, StoreError

ROOT = Path(__file__).parents[2]
COMMANDS = [command for group in GROUPS.values() for command in group]


def test_the_reference_is_up_to_date():
    docs = runpy.run_path(str(ROOT / "tools" / "cli_docs.py"))
    assert docs["PAGE"].read_text() == docs["render"](), "run python -m tools.cli_docs"


def test_the_help_shows_groups_commands_and_exit_codes(cli):
    out = cli.run("--help").stdout
    for title, commands in GROUPS.items():
        assert title in out
        assert all(f"│ {command.name} " in out for command in commands)
    assert all(f"{code.value}: {meaning[:20]}" in out for code, meaning in MEANINGS.items())
    assert set(MEANINGS) == set(Code)
    assert cli.run(code=2).stdout.strip() == out.strip()


def test_the_version(cli):
    assert cli.out("--version")[0].startswith("dwell 0.")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_each_command_has_a_help_and_an_example_that_can_be_read(cli, command):
    out = cli.run(command.name, "--help").stdout
    assert "Example: dwell" in out
    # A flag has no value, and so no word for one.
    assert "bool" not in out
    words = shlex.split(command.example)
    assert words[0] == "dwell"
    assert command.name in words[:4]
    parsed = get_command(app).commands[command.name]
    parsed.make_context("dwell", words[words.index(command.name) + 1 :])
    assert all(param.help for param in parsed.params)


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["lost"], "UsageError: No such command 'lost'. Did you mean 'list'? (see dwell --help)"),
        (["--nope"], "UsageError: No such option: --nope"),
        (["--store"], "UsageError: Option '--store' requires an argument. (see dwell --help)"),
        (["--store", "foo:bar", "stats"], "InvalidUrl: url: got 'foo:bar'"),
        (["--store", "", "stats"], "InvalidUrl: url: got ''"),
        (["--store", "redis://:p@[::1", "stats"], "InvalidUrl: url: got 'redis://***@[::1', "),
    ],
)
def test_bad_command_lines(cli, args, error):
    assert cli.error(*args).startswith(error)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "command", [["backup", "copy"], ["check"], ["serve", "memory:"], ["reshard", "2"], ["stats"]]
)
@pytest.mark.parametrize("scheme", ["redis", "redis+ring", "ftp", "http"])
def test_an_error_shows_no_password(cli, scheme, command):
    code = 3 if scheme == "redis" and command[0] in ("backup", "reshard", "stats") else 2
    store = f"{scheme}://a:hunter2@[::1]:1"
    assert "hunter2" not in cli.error("--store", store, *command, code=code)


def test_every_error_has_a_code():
    def family(error):
        return [error, *(child for one in error.__subclasses__() for child in family(one))]

    for error in family(DwellError):
        want = Code.INPUT if issubclass(error, InvalidInput) else Code.OTHER
        want = Code.STORE if issubclass(error, StoreError | AccessDenied) else want
        assert code_of(error("x")) is want


def test_an_error_is_one_line_without_control_characters(cli):
    assert cli.error("get", "t\n\x1b", "a", code=3)
    cli.run("put", "t", "x")
    assert "\\x1b" in cli.error("get", "t\n\x1b", "a")


def test_a_system_that_fails_ends_with_three(cli, monkeypatch):
    def fail(self):
        raise PermissionError(13, "Permission denied", "/x")

    monkeypatch.setattr(dwell.SyncQueue, "open", fail)
    error = cli.error("put", "t", "x", code=3)
    assert error == "PermissionError: [Errno 13] Permission denied: '/x'"


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(missing, monkeypatch, capsys):
    for name in list(sys.modules):
        if name == missing or name.startswith(("dwell.cli.", f"{missing}.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as ended:
        dwell.cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"dwell: {missing} is missing, which the command line needs: pip install 'dwell[cli]'\n"
    )


def test_an_error_in_a_command_is_not_told_as_no_command(monkeypatch):
    def broken(name):
        raise KeyError(name)

    cli_app = sys.modules["dwell.cli.app"]
    monkeypatch.setattr(cli_app, "import_module", broken)
    cli_app._made.cache_clear()
    done = CliRunner().invoke(app, ["put", "t", "x"])
    assert isinstance(done.exception, KeyError)


@pytest.mark.parametrize("args", [[], ["--store", "./other"]])
def test_a_pipeline_takes_the_store_of_the_environment(cli, monkeypatch, args):
    given = []
    monkeypatch.setattr(pipeline, "_run", lambda name, options: given.append(options) or 0)
    cli.run(*args, "pipeline", "audit", "--out", "x")
    assert list(given[0]) == ["--url", args[1] if args else cli.folder, "--out", "x"]
