"""``dwell serve`` up to where it serves: tests/server has the rest."""

import tomllib

import pytest

from dwell.server import logs, serve
from dwell.server.settings import FIELDS, ServerSettings


@pytest.fixture
def served(monkeypatch):
    """What would be served, and how it would be logged."""
    found = []
    monkeypatch.setattr(serve, "run", found.append)
    monkeypatch.setattr(logs, "setup", lambda *how: found.append(how))
    return found


def test_the_settings_of_all_sources_are_served(cli, served, tmp_path):
    config = tmp_path / "dwell.toml"
    config.write_text('log_format = "json"\n')
    env = {"DWELL_GRACE_MS": "3s", "DWELL_CONFIG": str(config)}
    assert cli.run("serve", "memory:", "--max-waiting", "5", "--insecure", env=env).output == ""
    how, settings = served
    assert how == ("info", "json")
    assert settings == ServerSettings(
        store="memory:", log_format="json", grace_ms=3000, max_waiting=5, insecure=True
    )


@pytest.mark.parametrize(
    ("args", "env", "store"),
    [
        (["serve"], {"DWELL_STORE": ""}, "./dwell-data"),
        (["serve"], {}, None),
        (["serve", "a"], {}, "a"),
        (["--store", "a", "serve"], {}, "a"),
        (["--store", "a", "serve", "a"], {}, "a"),
    ],
)
def test_which_store_is_served(cli, served, args, env, store):
    cli.run(*args, env=env)
    assert served[1].store == (cli.folder if store is None else store)


def test_two_stores_are_one_too_many(cli, served):
    assert cli.error("--store", "a", "serve", "b") == (
        "InvalidInput: store: got 'b' and --store 'a', expected one"
    )
    assert cli.error("serve", env={"DWELL_STORE": "http://localhost:8410"}).startswith(
        "InvalidSettings: store: got 'http://localhost:8410', expected a folder, memory:, or"
    )
    assert served == []


def test_every_setting_has_an_option(cli, served):
    out = cli.run("serve", "--help", env={"COLUMNS": "200"}).stdout
    for field in FIELDS.values():
        if field.name != "store":
            assert f"│ {field.flag} " in out
        assert field.about[:40] in out
    others = [field for field in FIELDS.values() if field.kind is not bool and field.shown]
    for field in others:
        option = [] if field.name == "store" else [field.flag]
        cli.run("serve", *option, field.shown)
    assert {settings for how, settings in zip(served[::2], served[1::2], strict=True) if how} == {
        ServerSettings(store=cli.folder),
        ServerSettings(),
    }


def test_the_settings_are_shown(cli, served):
    text = cli.run("serve", "--show-config", "--http", "127.0.0.1:1").stdout
    assert tomllib.loads(text)["http"] == "127.0.0.1:1"
    assert "  # --http\n" in text
    assert "  # DWELL_STORE\n" in text
    assert served == []
    assert cli.error("serve", "--show-config", "--http", "x").startswith("InvalidSettings: http: ")
