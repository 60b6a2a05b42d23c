"""The scripts of examples/spark and the page of the campaign print what they say."""

import ast
import runpy
from pathlib import Path

import pytest

from bench.servers import free_port
from tests.pages import blocks_of, run_page

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "spark"
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


def test_the_page_of_the_campaign_is_true(spark, tmp_path, monkeypatch):
    """Its Python runs here, in a session that is there already, and against its own server."""
    port = str(free_port())
    text = (ROOT / "docs" / "howto" / "spark.md").read_text().replace("<!-- skip -->\n", "")
    text = text.replace("serve ./queue", f"serve ./queue --http 127.0.0.1:{port}")
    page = tmp_path / "page.md"
    page.write_text(text.replace("8410", port))
    assert [block.language for block in blocks_of(page.read_text())].count("python") == 8
    monkeypatch.chdir(tmp_path)
    assert run_page(page) == []
