"""The peer ``bullmq``: the job queue on Redis that most people of Node use, driven by Node."""

import shutil
import subprocess
from pathlib import Path

import redis

HERE = Path(__file__).parent
#: Its packages come over the network, the first time.
_INSTALL_S = 300
_RUN_S = 600


def bullmq_lifecycle(port: int, messages: int, batch: int) -> float:
    """Empty a Redis, let jobs of 200 bytes go all the way; return how many did so a second."""
    install()
    with redis.Redis(port=port) as client:
        client.flushall()
    command = ["node", "lifecycle.mjs", str(port), str(messages), str(batch)]
    return float(_output(command, _RUN_S))


def install() -> None:
    """Fetch the packages of ``package-lock.json``, unless they are there."""
    wanted = (HERE / "package-lock.json").read_text()
    installed = HERE / "node_modules" / ".wanted"
    if not installed.exists() or installed.read_text() != wanted:
        _output(["npm", "ci", "--no-audit", "--no-fund"], _INSTALL_S)
        installed.write_text(wanted)


def _output(command: list[str], seconds: float) -> str:
    """Return what a program printed."""
    if shutil.which(command[0]) is None:
        raise SystemExit(f"{command[0]} is not installed; make setup installs it")
    done = subprocess.run(
        command, cwd=HERE, capture_output=True, text=True, timeout=seconds, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} did not work:\n{done.stdout}{done.stderr}")
    return done.stdout
