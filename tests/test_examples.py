"""The examples print what they say, and the code in the docs runs: no page can lie."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import at_free_ports, blocks_of

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("*.py") if not path.name.startswith("_")
)
#: Pages whose commands need a server and Spark; tests/spark runs what they tell of.
_WITH_SPARK = {"audit", "forecast", "redrive", "relay", "schedule", "spark"}
#: Pages whose commands need a broker; tests/relay runs them.
_WITH_BROKER = {"kafka", "rabbitmq"}
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "quickstart.md",
    *sorted(
        path
        for path in (ROOT / "docs" / "howto").glob("*.md")
        if path.stem not in _WITH_SPARK | _WITH_BROKER
    ),
]

_PRINTS = re.compile(r"Prints::\n\n(.*)", re.DOTALL)


#: A reader sees no warning, and has no plugin of pytest.
_ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "PYTHONWARNINGS": "error",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in an empty folder, where a store may be made."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **_ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def said(path: Path) -> str:
    """Return what an example says that it prints."""
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring is not None
    found = _PRINTS.search(docstring)
    assert found, f"{path}: says nothing of what it prints"
    return "".join(f"{line.removeprefix('    ')}\n" for line in found[1].splitlines())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_says(path, tmp_path):
    done = run(str(path), folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == said(path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_small(path):
    code = path.read_text().split('"""', 2)[2].strip()
    assert len(code.splitlines()) <= 40


@pytest.mark.campaign
@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_code_of_a_page_runs(path, tmp_path):
    assert list(blocks_of(path.read_text())), f"{path}: has no code"
    page = tmp_path / path.name
    page.write_text(at_free_ports(path.read_text()))
    done = run("-m", "tests.pages", str(page), folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_page_that_lies_is_caught(tmp_path):
    page = tmp_path / "page.md"
    fence = "```"
    page.write_text(f"{fence}python\nprint(1)\n{fence}\n\n{fence}text\n2\n{fence}\n")
    assert run("-m", "tests.pages", str(page), folder=tmp_path).returncode == 1
    page.write_text(f"{fence}console\n$ echo 1\n2\n{fence}\n")
    assert run("-m", "tests.pages", str(page), folder=tmp_path).returncode == 1
    page.write_text(
        f"{fence}console\n$ echo 1\n1\n{fence}\n<!-- skip -->\n{fence}python\n1/0\n{fence}\n"
    )
    assert run("-m", "tests.pages", str(page), folder=tmp_path).returncode == 0


def test_a_server_of_a_page_gets_a_port_of_its_own():
    page = "$ dwell serve ./queue --beanstalk off >log\n$ curl localhost:8410 127.0.0.1:8410\n"
    served, called = at_free_ports(page).splitlines()
    port = re.search(r" --http 127\.0\.0\.1:(\d+) >log$", served)
    assert port
    assert called == f"$ curl localhost:{port[1]} 127.0.0.1:{port[1]}"
    assert at_free_ports(called) == called


def test_the_hello_world_fits_on_the_first_screen():
    code = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) <= 15
