"""The unit and the Dockerfile, as far as they can be tried without what runs them."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from dwell.server.settings import FIELDS
from dwell.server.sources import CONFIG_ENV, load

ROOT = Path(__file__).parents[1]
UNIT = ROOT / "deploy" / "dwell.service"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    pairs = [line.partition(" ") for line in lines if line.strip()]
    return [(name, " ".join(rest.split())) for name, _, rest in pairs]


def all_of(name: str) -> list[str]:
    return [rest for found, rest in instructions() if found == name]


def variables() -> dict[str, str]:
    return dict(pair.split("=", 1) for rest in all_of("ENV") for pair in rest.split())


# --- the container ----------------------------------------------------------------------------


def test_the_instructions_are_known_and_in_order():
    names = [name for name, _ in instructions()]
    assert names[0] == "FROM"
    assert names.count("ENTRYPOINT") == names.count("CMD") == names.count("USER") == 1
    assert names.index("VOLUME") > names.index("USER") > names.index("RUN")
    known = "FROM COPY RUN USER WORKDIR VOLUME ENV EXPOSE STOPSIGNAL ENTRYPOINT CMD"
    assert set(names) <= set(known.split())


def test_the_python_is_one_that_the_package_allows():
    (image,) = all_of("FROM")
    # Whole, so that the image that is made tomorrow has what was tried today.
    version = re.fullmatch(r"python:3\.(\d+)\.\d+-slim-[a-z]+", image)
    assert version
    assert int(version[1]) >= int(PROJECT["requires-python"].rpartition(".")[2])


def test_what_is_copied_exists_and_reaches_the_builder():
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    for rest in all_of("COPY"):
        *sources, target = rest.split()
        assert target.startswith("/src/")
        for source in sources:
            assert (ROOT / source).exists()
            assert f"!{source}" in ignore


def test_the_package_can_be_built_from_what_is_copied():
    copied = {source for rest in all_of("COPY") for source in rest.split()[:-1]}
    assert {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml", "src"} <= copied


def test_the_extras_and_the_command_exist():
    install = next(rest for rest in all_of("RUN") if "pip install" in rest)
    extras = re.search(r"/src\[([a-z,]+)\]", install)
    assert extras
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
    assert all_of("ENTRYPOINT") == ['["dwell"]']
    assert "dwell" in PROJECT["scripts"]
    assert all_of("CMD") == ['["serve"]']


def test_the_container_does_not_run_as_root():
    (user,) = all_of("USER")
    assert any(re.search(rf"useradd .* {user}\b", rest) for rest in all_of("RUN"))


def test_the_settings_of_the_container_are_good_once_tokens_are_given():
    environ = variables()
    assert set(environ) <= {field.env for field in FIELDS.values()}
    settings = load({}, {**environ, "DWELL_TOKEN_FILE": "tokens.toml"}).settings
    (volume,) = all_of("VOLUME")
    assert Path(settings.store).parent == Path(volume)
    ports = {str(address.port) for address in settings.addresses.values()}
    assert set(all_of("EXPOSE")[0].split()) == ports


# --- the unit -----------------------------------------------------------------------------------


def test_the_unit_serves_with_settings_that_exist():
    text = UNIT.read_text()
    environ = dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.MULTILINE))
    assert set(environ) <= {CONFIG_ENV, *(field.env for field in FIELDS.values())}
    state = re.search(r"^StateDirectory=(\w+)$", text, re.MULTILINE)
    assert state
    assert environ["DWELL_STORE"].startswith(f"/var/lib/{state[1]}/")
    assert "\nType=notify\n" in text
    assert re.search(r"^ExecStart=\S+/dwell serve$", text, re.MULTILINE)


def test_the_unit_keeps_to_itself():
    lines = UNIT.read_text().splitlines()
    for line in ("SystemCallFilter=@system-service", "UMask=0077", "NoNewPrivileges=yes"):
        assert line in lines
    assert any(line.startswith("MemoryMax=") for line in lines)
    # It raises its own limit of open files, which this group is for.
    assert not any("~" in line and "@resources" in line for line in lines)


def test_the_unit_waits_longer_than_the_grace():
    found = re.search(r"^TimeoutStopSec=(\d+)min$", UNIT.read_text(), re.MULTILINE)
    assert found
    assert int(found[1]) * 60_000 > FIELDS["grace_ms"].default


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_understands_the_unit(tmp_path):
    # The command has to exist for this, wherever it is.
    command = tmp_path / "dwell"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    unit = tmp_path / "dwell.service"
    unit.write_text(UNIT.read_text().replace("/opt/dwell/bin/dwell serve", f"{command} serve"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
