"""What `make dist` builds can be installed where nothing else is, and does what the README says."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.pages import blocks_of

ROOT = Path(__file__).parents[1]

#: Packages come from elsewhere, on a machine that does other things as well.
PATIENCE_S = 600
pytestmark = [pytest.mark.campaign, pytest.mark.timeout(2 * PATIENCE_S)]

#: What the suites run with, and those that say most of whether Dwell works at all.
TOOLS = ("pytest-asyncio>=1.4,<2", "pytest-timeout>=2.4,<3")
SUITES = ("store/test_memory.py", "store/test_folder.py", "http/test_http_client.py")
SUITES += ("schedules/test_schedules.py", "test_queue.py", "test_timer.py")


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Wheel and sdist, built without the network from what is installed here."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(build, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    return folder


def test_the_sdist_holds_what_is_needed(dist):
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as found:
        names = {name.partition("/")[2] for name in found.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/dwell/__init__.py"} <= names
    assert not [name for name in names if name.startswith((".venv", "tmp"))]


def test_the_wheel_has_the_console(dist):
    """Files that no module imports are carried as well."""
    (wheel,) = dist.glob("*.whl")
    folder = ROOT / "src" / "dwell" / "server" / "console"
    own = {f"dwell/server/console/{path.name}" for path in folder.iterdir() if path.is_file()}
    assert own <= set(zipfile.ZipFile(wheel).namelist())
    assert len(own) > 10


def test_the_wheel_runs_the_hello_world_of_the_readme(dist, tmp_path):
    """In an environment of its own, from a folder that knows nothing of the checkout."""
    (wheel,) = dist.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python]
    install = [*pip, "install", "--quiet", "--no-compile", f"{wheel}[cli]"]
    subprocess.run(install, check=True, capture_output=True, timeout=PATIENCE_S)
    hello = next(b for b in blocks_of((ROOT / "README.md").read_text()) if b.language == "python")
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command):
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=own,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    assert run(python, "-c", hello.text) == hello.expected
    dwell = python.with_name("dwell")
    assert run(dwell, "put", "letters", "hello", "--id", "one") == "created  one\n"
    assert "one" in run(dwell, "list", "letters")
    assert "dwell/__init__.py" in run(python, "-c", "import dwell; print(dwell.__file__)")


def python_of(version: str) -> str:
    """Return the path of another Python, where there is one."""
    versions = Path.home() / ".pyenv" / "versions"
    found = sorted(versions.glob(f"{version}.*/bin/python{version}"))
    if found:
        return str(found[-1])
    return shutil.which(f"python{version}") or pytest.skip(f"no Python {version} is here")


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_the_wheel_passes_the_suites_on_later_pythons(version, dist, tmp_path):
    """They get other releases of packages, which may have dropped older ones."""
    (wheel,) = dist.glob("*.whl")
    subprocess.run(
        [python_of(version), "-m", "venv", tmp_path / "env"], check=True, timeout=PATIENCE_S
    )
    python = tmp_path / "env" / "bin" / "python"
    wanted = f"{wheel}[cli,server,client,schedules,worker,redis,arrow,testing]"
    install = [python, "-m", "pip", "install", "--quiet", "--no-compile", wanted]
    subprocess.run([*install, *TOOLS], check=True, capture_output=True, timeout=PATIENCE_S)
    suites = [f"tests/{name}" for name in SUITES]
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not campaign", *suites],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3_000:]
