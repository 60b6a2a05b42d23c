"""Some attacks of ``make attack``, in seconds: what each must not do, and what it may cost."""

import pytest

from tools.attack.__main__ import ATTACKS
from tools.attack.run import NOTHING, run

pytestmark = pytest.mark.campaign

#: How long honest calls take says nothing beside other tests; ``make attack`` looks at it.
MOST_MS = float("inf")

NAMES = [
    "pipeline, no token, answers not read",
    "connections with half a TLS handshake",
    "a web page's commands on the beanstalk port",
    "a request hidden behind Upgrade",
    "an Arrow compression bomb",
    "receipts that are foretold",
    "what is said of foreign topics",
    "waits whose rights were revoked",
    "changes by a token that only reads",
    "looks by a token for metrics",
    "messages beyond a quota",
    "streams beyond a quota",
    "waits that outlive their token",
    "waits of others by their names",
    "files of the store that others may read",
]


@pytest.mark.parametrize("name", NAMES)
def test_an_attack_does_not_get_through(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (attack,) = [attack for attack in ATTACKS if attack.name == name]
    outcome = run(attack, MOST_MS)
    assert not outcome.wrong, outcome
    assert outcome.seen.calls > 0


def test_what_gets_through_is_told(tmp_path, monkeypatch):
    async def fill(target):
        raise AssertionError("it did what it must not")

    monkeypatch.chdir(tmp_path)
    outcome = run(NOTHING._replace(run=fill), -1.0)
    assert outcome.wrong.startswith("it did what it must not; p99 ")
