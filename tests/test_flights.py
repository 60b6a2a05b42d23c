"""The flights job on the first days of the year, killed on the way; its page in a real browser."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")
_QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Run the job; return what it printed, and its page."""
    out = tmp_path_factory.mktemp("report")
    # Some four days, in four seconds.
    options = ["--flights", "4000", "--speed", "100000", "--out", str(out)]
    command = [sys.executable, "-m", "examples.flights", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, out / "flights.html"


def test_the_books_balance(report: tuple[str, Path]) -> None:
    printed, _ = report
    assert "killed the process (SIGKILL)" in printed
    assert "The books balance." in printed
    assert "NO" not in printed


def test_nothing_is_left_but_the_page(report: tuple[str, Path]) -> None:
    assert [path.name for path in report[1].parent.iterdir()] == ["flights.html"]


def test_the_page_in_a_browser(report: tuple[str, Path], tmp_path: Path) -> None:
    assert CHROMIUM is not None, "chromium is not installed; make setup installs it"
    command = [CHROMIUM, *_QUIET, f"--user-data-dir={tmp_path}", "--dump-dom", report[1].as_uri()]
    page = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "nothing lost" in " ".join(page.split())
    assert page.count("data:image/png;base64,") == 3
    assert page.count("<td>ok</td>") == 6
