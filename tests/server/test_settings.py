import os
import subprocess
import tomllib

import msgspec
import pytest

from dwell.errors import InvalidSettings
from dwell.server.settings import FIELDS, Address, ServerSettings
from dwell.server.sources import DEFAULT, load, show
from tools import server_docs

#: A value that is not the default, as a text and as it is read.
OTHERS = {
    "store": ("memory:", "memory:"),
    "http": ("[::1]:80", "[::1]:80"),
    "beanstalk": ("off", "off"),
    "socket_mode": ("0660", "0660"),
    "sync": ("100ms", "100ms"),
    "events_bytes": ("2GiB", 2 << 30),
    "memory_bytes": ("256MiB", 256 * 1024 * 1024),
    "token_file": ("tokens.toml", "tokens.toml"),
    "tls_cert": ("cert.pem", "cert.pem"),
    "tls_key": ("key.pem", "key.pem"),
    "tls_client_ca": ("ca.pem", "ca.pem"),
    "allowed_hosts": ("queue.example.org, q", "queue.example.org, q"),
    "insecure": ("true", True),
    "max_body_bytes": ("64 KiB", 65_536),
    "max_requests": ("1_000", 1_000),
    "max_requests_bytes": ("16777216", 1 << 24),
    "max_waiting": ("7", 7),
    "max_token_percent": ("30", 30),
    "max_connections": ("8", 8),
    "grace_ms": ("1m30s", 90_000),
    "log_level": ("debug", "debug"),
    "log_format": ("json", "json"),
    "access_log": ("access.log", "access.log"),
    "audit_log": ("-", "-"),
    "max_log_bytes": ("2MiB", 2 << 20),
}


#: What is refused without a certificate.
NOT_ALONE = ("tls_key", "tls_client_ca")
LOGIN = "ann:open/sesame"


def refused(flags=(), environ=()):
    with pytest.raises(InvalidSettings) as caught:
        load(dict(flags), dict(environ))
    return str(caught.value)


# --- where they come from -------------------------------------------------------------------------


def test_without_anything_all_are_the_defaults():
    loaded = load({}, {"PATH": "/bin"})
    assert loaded.settings == ServerSettings()
    assert loaded.sources == dict.fromkeys(FIELDS, DEFAULT)
    assert loaded.doubts == []
    assert list(FIELDS) == list(OTHERS)


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in NOT_ALONE])
def test_each_setting_from_each_source(tmp_path, name):
    text, value = OTHERS[name]
    config = tmp_path / "dwell.toml"
    config.write_text(f"{name} = {msgspec.json.encode(value).decode()}\n")
    field = FIELDS[name]
    for flags, environ, source in (
        ({name: text}, {}, field.flag),
        ({}, {field.env: text}, field.env),
        ({"config": str(config)}, {}, str(config)),
        ({}, {"DWELL_CONFIG": str(config)}, str(config)),
    ):
        loaded = load(flags, environ)
        assert getattr(loaded.settings, name) == value != field.default
        assert loaded.sources == {**dict.fromkeys(FIELDS, DEFAULT), name: source}


def test_flags_go_before_the_environment_and_that_before_the_file(tmp_path):
    config = tmp_path / "dwell.toml"
    config.write_text("max_requests = 1\nmax_waiting = 1\nmax_connections = 1\n")
    environ = {"DWELL_MAX_REQUESTS": "2", "DWELL_MAX_WAITING": "2", "DWELL_CONFIG": str(config)}
    settings = load({"max_requests": "3"}, environ).settings
    assert (settings.max_requests, settings.max_waiting, settings.max_connections) == (3, 2, 1)
    (tmp_path / "other.toml").write_text("max_connections = 9\n")
    loaded = load({"config": str(tmp_path / "other.toml")}, environ)
    assert loaded.settings.max_connections == 9


def test_an_empty_variable_is_none(tmp_path):
    assert load({}, {"DWELL_HTTP": "", "DWELL_CONFIG": ""}).sources["http"] == DEFAULT


def test_a_flag_can_take_back_what_the_environment_allows():
    assert not load({"insecure": False}, {"DWELL_INSECURE": "1"}).settings.insecure


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("http", "8410", "host:port, such as 127.0.0.1:8410"),
        ("http", "127.0.0.1:65536", "host:port"),
        ("http", ":8410", "host:port"),
        ("beanstalk", "::1:11300", "host:port"),
        ("sync", "0ms", 'always, never or a time like "100ms"'),
        ("sync", "60001ms", "at most a minute"),
        ("store", "http://localhost:8410", "a folder, memory:, or the address of a Redis"),
        ("store", "", "a folder, memory:, or the address of a Redis"),
        ("store", "memory:x", "a folder, memory:, or the address of a Redis"),
        ("max_body_bytes", "2MiB", "from 1 to 1MiB"),
        ("max_requests", "0", "a whole number from 1 to 1000000"),
        ("max_requests", "10KiB", "a whole number from"),
        ("max_requests", "-1", "a whole number from"),
        ("max_requests", "many", "a whole number from"),
        ("events_bytes", "1GB", "a number of bytes, or one with KiB, MiB or GiB, from"),
        ("grace_ms", "soon", "a number of milliseconds, or a span such as 10s, from 0 to 1h"),
        ("grace_ms", "2h", "from 0 to 1h"),
        ("insecure", "maybe", "true or false"),
        ("log_level", "loud", "debug, info, warning or error"),
        ("log_format", "xml", "text or json"),
    ],
)
def test_values_that_are_not_allowed(name, text, allowed):
    field = FIELDS[name]
    for flags, environ, source in (
        ({name: text}, {}, field.flag),
        ({}, {field.env: text}, field.env),
    ):
        if not text and environ:
            continue
        error = refused(flags, environ)
        assert error.startswith(f"{name}: got {text!r}, expected ")
        assert allowed in error
        assert error.endswith(f"(from {source})")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (f"max_requests = {'9' * 5000}", "config"),
        ("max_requests = true", "max_requests: got True, expected a whole number"),
        ("max_requests = 1.5", "max_requests: got 1.5, expected a whole number"),
        ("insecure = 1", "insecure: got 1, expected true or false"),
        ("http = 8410", "http: got 8410, expected a text"),
        ("log_level = 1", "log_level: got 1, expected debug,"),
        ("max_request = 1", "max_request is no setting; did you mean max_requests?"),
        ("zzz = 1", "zzz is no setting"),
        ("[http]\nport = 1", "http: got {'port': 1}, expected a text"),
        ("http 8410", "Expected '=' after a key"),
        ('http = "\\', "dwell.toml"),
    ],
)
def test_files_that_are_refused(tmp_path, line, error):
    config = tmp_path / "dwell.toml"
    config.write_text(line)
    found = refused({"config": str(config)})
    assert error in found
    assert str(config) in found


def test_two_logs_are_two_files():
    error = refused({"access_log": "log", "audit_log": "log"}, {})
    assert error.startswith("audit_log: got 'log', expected another file than that of access_log")
    load({"access_log": "-", "audit_log": "-"}, {})


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 5000 + "KiB"])
@pytest.mark.parametrize("name", ["max_requests", "max_requests_bytes", "grace_ms"])
def test_numbers_that_are_too_long_to_be_read(name, text):
    error = refused({name: text})
    assert error.startswith(f"{name}: got ")
    assert FIELDS[name].allowed in error


def test_a_file_that_cannot_be_read(tmp_path):
    path = tmp_path / "none.toml"
    assert refused({"config": str(path)}) == f"config {path}: No such file or directory"
    path.write_bytes(b"\xff")
    assert refused({"config": str(path)}).startswith(f"config {path}: 'utf-8' codec")


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.7", "queue.example.org"])
def test_other_machines_are_let_in_only_on_purpose(host):
    error = refused({"http": f"{host}:8410"})
    assert error.startswith(f"http: got {host}:8410, where other machines can reach it")
    assert refused({}, {"DWELL_BEANSTALK": f"{host}:1"}).startswith("beanstalk: got ")
    load({"http": f"{host}:8410", "insecure": True}, {})
    load({"http": f"{host}:8410", "token_file": "tokens.toml"}, {})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost"])
def test_this_machine_is_always_let_in(host):
    settings = load({"http": f"{host}:0"}, {}).settings
    assert str(settings.addresses["http"]) == f"{host}:0"


def test_settings_that_do_not_go_together():
    assert refused({"http": "off", "beanstalk": "off"}).startswith("http, beanstalk: both are off")
    assert refused({"tls_client_ca": "c"}).startswith("tls_client_ca: got it without tls_cert")
    assert refused({"tls_key": "k"}).startswith("tls_key: got a key without tls_cert")


# --- what is doubtful -------------------------------------------------------------------------


def test_variables_that_look_like_mistakes_are_named():
    environ = {"DWELL_HTPP": "x", "DWELL_MAX_REQUEST": "1", "DWELL_HTTP": "127.0.0.1:1"}
    assert load({}, environ).doubts == [
        "DWELL_HTPP is no setting; DWELL_HTTP is one",
        "DWELL_MAX_REQUEST is no setting; DWELL_MAX_REQUESTS is one",
    ]


def test_variables_of_others_are_left_alone():
    environ = {
        "DWELL_PORT": "tcp://10.0.0.1:8410",
        "DWELL_SERVICE_HOST": "10.0.0.1",
        "DWELL_TOKEN": "x",
        "DWELL_SEED": "1",
        "DWELL_CONFIG": "",
    }
    assert load({}, environ).doubts == []


# --- showing ------------------------------------------------------------------------------------


def test_what_is_shown_means_the_same(tmp_path):
    flags = {name: text for name, (text, _) in OTHERS.items()}
    flags["store"] = 'a "folder"\\with\x7f ümläut\U0001f600'
    loaded = load(flags, {"DWELL_HTPP": "x"})
    text = show(loaded)
    assert text.startswith("# DWELL_HTPP is no setting")
    assert "  # --max-requests\n" in text
    (tmp_path / "shown.toml").write_text(text)
    assert load({"config": str(tmp_path / "shown.toml")}, {}).settings == loaded.settings
    assert tomllib.loads(text) == msgspec.to_builtins(loaded.settings)


@pytest.mark.parametrize(
    "store", [f"redis://{LOGIN}@localhost:6379/0", f"http://{LOGIN}@localhost"]
)
def test_a_password_is_not_shown(store):
    try:
        said = show(load({"store": store}, {}))
    except InvalidSettings as error:
        said = str(error)
    assert "://***@localhost" in said
    assert LOGIN not in said


def test_every_setting_says_what_it_is():
    for field in FIELDS.values():
        assert field.about.endswith(".")
        assert field.allowed
        assert field.form or field.kind is bool
        if field.shown:
            assert load({field.name: field.shown}, {}).settings == ServerSettings()


def test_the_command_shows_them_and_ends(tmp_path):
    done = subprocess.run(
        ["dwell", "--store", "here", "serve", "--show-config", "--no-insecure"],
        env={
            "PATH": f"{os.path.dirname(os.sys.executable)}:{os.environ['PATH']}",
            "DWELL_GRACE_MS": "5s",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = tomllib.loads(done.stdout)
    assert (found["store"], found["grace_ms"], found["insecure"]) == ("here", 5000, False)
    assert "# DWELL_GRACE_MS\n" in done.stdout
    assert "# --no-insecure" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_addresses():
    assert str(Address("::1", 1)) == "[::1]:1"
    assert not Address("0.0.0.0", 1).is_loopback
    assert ServerSettings(http="off").addresses == {"beanstalk": Address("127.0.0.1", 11300)}


def test_the_reference_is_up_to_date():
    assert server_docs.PAGE.read_text() == server_docs.render(), "run python -m tools.server_docs"
