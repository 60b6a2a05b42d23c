"""Real processes that fire, killed and begun anew: each moment is one message."""

import pytest

from bench import schedules

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize("store", ["redis", "embedded"])
def test_each_moment_is_one_message_while_who_fires_is_killed(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = schedules.run(
        store=store, schedules=300, rate=60, processes=3, seconds=9, kill_s=1.5
    ).more
    assert found["kills"] >= 4
    assert (found["lost"], found["doubled"], found["early"]) == (0, 0, 0)
