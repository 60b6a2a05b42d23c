"""The scripts of examples/spark print what they say, against a real server."""

import ast
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "spark"
SCRIPTS = sorted(FOLDER.glob("*.py"))


def said(path):
    """Return what a script says that it prints; an empty line in it is <BLANKLINE>."""
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    _, _, printed = docstring.partition("rints::\n\n")
    lines = [line.removeprefix("    ") for line in printed.splitlines()]
    return ["" if line == "<BLANKLINE>" else line for line in lines]


def test_there_is_one_for_each_view_and_one_for_writing():
    assert [path.stem for path in SCRIPTS] == ["due", "events", "messages", "write"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_prints_what_it_says(path, spark, shared, monkeypatch, capsys):
    # The script's own session is the one of these tests, which is there already.
    monkeypatch.setenv("DWELL_STORE", shared.url)
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    assert [line.rstrip() for line in printed if line] == [line for line in said(path) if line]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_made_of_cells(path):
    assert path.read_text().count("\n# %% ") >= 3
