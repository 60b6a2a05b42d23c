"""The command line of a pipeline: made from its settings, with errors of one line."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from dwell.cli.pipeline import NAMES
from dwell.errors import InvalidSettings, ServerUnreachable, StoreError
from dwell.spark.pipelines import command, redrive
from dwell.spark.pipelines.options import parse
from tests.spark import PATIENCE_S

pytestmark = pytest.mark.campaign


class ToolSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: Annotated[str, Meta(description="Where it is, 100% sure.")]
    max_rows: Annotated[int, Meta(ge=1, description="How many.")] = 5
    share: float = 0.5
    mode: Annotated[Literal["keep", "drop"], Meta(description="What happens.")] = "keep"
    dry_run: Annotated[bool, Meta(description="Change nothing.")] = False
    loud: bool = True
    topics: Annotated[list[str], Meta(description="A topic.")] = []
    levels: Annotated[tuple[int, ...], Meta(description="A level.")] = ()
    option: dict[str, str] = {}
    note: Annotated[str | None, Meta(description="A note.")] = None


def parsed(*argv):
    return parse("tool", "Does things.\n\nSlowly.", ToolSettings, argv)


def test_every_kind_of_option():
    words = (
        "--url u --max-rows 7 --share 0.25 --mode drop --dry-run --no-loud --topics a --topics b"
    )
    words += " --levels 1 --levels 2 --option k=v=w --note n --option x=y --master local[1]"
    wanted = parsed(*words.split(), "--conf", "spark.x=1", "--log-level", "info")
    assert wanted.settings == ToolSettings(
        url="u", max_rows=7, share=0.25, mode="drop", dry_run=True, loud=False, topics=["a", "b"],
        levels=(1, 2), option={"k": "v=w", "x": "y"}, note="n",
    )  # fmt: skip
    assert wanted[1:] == ("local[1]", {"spark.x": "1"}, "INFO")


def test_what_is_not_given_is_the_default():
    wanted = parsed("--url", "u")
    assert wanted.settings == ToolSettings(url="u")
    assert wanted[1:] == (None, {}, "ERROR")


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        ("", r"--url: is required \(see dwell pipeline tool --help\)"),
        ("--url u --max-rows many", r"--max-rows: got str 'many', expected int"),
        ("--url u --max-rows 0", r"--max-rows: got str '0', expected int >= 1"),
        ("--url u --mode lose", r"--mode: got str 'lose', expected one of keep, drop"),
        ("--url u --levels x", r"--levels: got list \['x'\], expected int"),
        ("--url u --option k", r"--option: got str 'k', expected KEY=VALUE"),
        ("--url u --conf =v", r"--conf: got str '=v', expected KEY=VALUE"),
        ("--url u --max 5", r"unrecognized arguments: --max 5 \(see dwell"),
        ("--url", r"argument --url: expected one argument"),
        ("--url u --log-level shout", r"argument --log-level: invalid choice: 'SHOUT'"),
    ],
)
def test_what_is_refused_names_the_option(argv, error):
    with pytest.raises(InvalidSettings, match=error):
        parsed(*argv.split())


def test_the_help_comes_from_the_settings(capsys):
    with pytest.raises(SystemExit) as ended:
        parsed("--help")
    assert ended.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    for text in (
        "usage: dwell pipeline tool", "Does things.", "--url URL Where it is, 100% sure.",
        "--max-rows N How many. Default: 5.", "--mode keep|drop What happens. Default: keep.",
        "--dry-run, --no-dry-run Change nothing.", "--topics TOPICS A topic. May be repeated.",
        "--option KEY=VALUE", "--note NOTE A note.", "--master URL", "--conf KEY=VALUE",
    ):  # fmt: skip
        assert text in out, (text, out)


@pytest.mark.parametrize("name", NAMES)
def test_the_settings_of_each_pipeline_can_be_said_on_a_command_line(name, capsys):
    module = importlib.import_module(f"dwell.spark.pipelines.{name}")
    settings = getattr(module, f"{name.capitalize()}Settings")
    # Types that do not go together are found only when a value is converted.
    msgspec.json.Decoder(settings)
    for field in msgspec.structs.fields(settings):
        msgspec.json.Decoder(field.type)
    with pytest.raises(SystemExit):
        parse(name, module.__doc__, settings, ["--help"])
    assert "--url" in capsys.readouterr().out


def test_a_limit_of_redrive_is_a_number():
    words = ["--url", "u", "--limit", "10", "--skip"]
    assert parse("redrive", "", redrive.RedriveSettings, words).settings.limit == 10


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (command.PipelineFailed("audit: 3 lost"), 1, "audit: 3 lost"),
        (InvalidSettings("--due: no"), 2, "InvalidSettings: --due: no"),
        (ServerUnreachable("gone"), 3, "ServerUnreachable: gone"),
    ],
)
def test_an_error_is_one_line_and_a_code(capsys, monkeypatch, error, code, line):
    def fail(name, argv):
        raise error

    monkeypatch.setattr(command, "_run", fail)
    assert command.main("schedule", []) == code
    assert capsys.readouterr() == ("", f"{line}\n")


def test_an_error_of_a_worker_is_told_as_the_error_that_it_was():
    text = "org.apache.spark...\n  File x\ndwell.errors.StoreFailed: disk is gone\n\tat org.x\n"
    found = command._own_error(text)
    assert isinstance(found, StoreError)
    assert str(found) == "disk is gone"
    assert command._own_error("ValueError: x") is None


def test_a_bad_row_is_the_last_line():
    text = (
        "Traceback...\ndwell.spark.badrows.BadRow: row {'id': 'b'}: due: got null\n SQLSTATE: 38000"
    )
    found = command._own_error(text)
    assert type(found).__name__ == "BadRow"
    assert str(found) == "row {'id': 'b'}: due: got null"


def test_bad_input_ends_with_2_and_nothing_is_started(capsys):
    assert command.main("schedule", ["--url", "u"]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err == (
        "InvalidSettings: --source, --id: are required (see dwell pipeline schedule --help)\n"
    )


def rows(tmp_path):
    (tmp_path / "a.csv").write_text("id,at\n1,2030-01-01 09:00:00\n")
    return ["--source", str(tmp_path / "a.csv"), "--id", "id", "--topic", "cli"]


def test_a_pipeline_in_this_process(spark, shared, tmp_path, capsys):
    words = ["--url", shared.url, *rows(tmp_path), "--log-level", "OFF"]
    assert command.main("schedule", [*words, "--due", "at"]) == 0
    assert capsys.readouterr().out == "schedule: 1 rows; 1 created, 0 kept, 0 bad\n"
    assert command.main("schedule", [*words, "--due", "noon"]) == 2
    assert capsys.readouterr().err.startswith("InvalidSettings: --due: got 'noon': ")
    # The session was there before, and stays.
    assert spark.range(3).count() == 3


def test_what_a_pipeline_meets_is_one_line(spark, shared, tmp_path, capsys):
    words = [*rows(tmp_path), "--log-level", "OFF", "--due", "at"]
    assert command.main("schedule", ["--url", str(tmp_path), *words]) == 2
    assert "InvalidUrl: url: got" in capsys.readouterr().err
    gone = [*words, "--source", str(tmp_path / "gone.csv")]
    assert command.main("schedule", ["--url", shared.url, *gone]) == 2
    found = capsys.readouterr().err
    assert "gone.csv" in found
    assert "Traceback" not in found


def test_a_process_of_its_own_shows_progress_and_the_line(shared, tmp_path):
    words = [*rows(tmp_path), "--url", shared.url, "--due", "at", "--master", "local[1]"]
    program = [sys.executable, "-m", "dwell.spark.pipelines.schedule"]
    done = subprocess.run([*program, *words], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stderr
    assert done.stdout.startswith("schedule: 1 rows; ")
    assert "schedule: stage " in done.stderr


def test_a_row_that_ends_the_run_is_told_without_stacks(shared, tmp_path):
    words = [*rows(tmp_path), "--url", shared.url, "--due", "timestamp(raise_error(at))"]
    program = [sys.executable, "-m", "dwell.spark.pipelines.schedule", "--master", "local[1]"]
    done = subprocess.run([*program, *words], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert "2030-01-01 09:00:00" in done.stderr.splitlines()[-1]
    assert "\tat org.apache" not in done.stderr
    assert " ERROR " not in done.stderr


def test_spark_submit_runs_the_file_of_a_pipeline(shared, tmp_path):
    submit = Path(sys.executable).with_name("spark-submit")
    file = Path(command.__file__).with_name("schedule.py")
    words = [*rows(tmp_path), "--url", shared.url, "--due", "at"]
    done = subprocess.run(
        [submit, "--master", "local[1]", "--conf", "spark.ui.enabled=false", file, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # spark-submit puts both outputs of the driver into one.
    assert done.stdout.splitlines()[-1].startswith("schedule: 1 rows; ")
