import io
import json
import logging
import re
import warnings

import pytest

from dwell.server import logs

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    dwell\.test: (.*)\n")


@pytest.fixture
def written(monkeypatch):
    """Set up the logs as a server does, and bring back what was there."""
    root = logging.getLogger()
    before = (root.handlers[:], root.level)

    def setup(level="info", form="text"):
        stream = io.StringIO()
        logs.setup(level, form, stream)
        return stream

    yield setup
    root.handlers[:], root.level = before
    logging.captureWarnings(False)


def test_lines_for_people(written):
    stream = written()
    log = logging.getLogger("dwell.test")
    log.info("serving %s", "x", extra={"http": "127.0.0.1:1", "note": 'a "b"', "tls": True, "n": 5})
    found = LINE.fullmatch(stream.getvalue())
    assert found[1] == 'serving x http=127.0.0.1:1 note="a \\"b\\"" tls=true n=5'


def test_lines_for_programs(written):
    stream = written(form="json")
    log = logging.getLogger("dwell.test")
    log.warning("late by %d ms", 5, extra={"topic": "t", "n": 5, "level": "x"})
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert list(line) == ["time", "level", "logger", "message", "topic", "n", "level_"]
    assert line["message"] == "late by 5 ms"
    assert (line["level"], line["logger"], line["level_"]) == ("warning", "dwell.test", "x")


@pytest.mark.parametrize("form", logs.FORMATS)
def test_an_error_comes_with_its_trace(written, form):
    stream = written(form=form)
    try:
        raise ValueError("a\nb")
    except ValueError:
        logging.getLogger("dwell.test").exception("failed")
    text = stream.getvalue()
    if form == "json":
        (line,) = map(json.loads, text.splitlines())
        assert line["message"] == "failed"
        text = line["error"]
    assert "Traceback (most recent call last)" in text
    assert "ValueError: a\nb" in text


@pytest.mark.parametrize("form", logs.FORMATS)
def test_nobody_can_forge_a_line(written, form):
    stream = written(form=form)
    evil = "x\n2030-01-01T00:00:00.000Z ERROR root: forged\x1b[2J\u2028\ud800"
    logging.getLogger("dwell.test").info("got %s", evil, extra={"name_": evil})
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "\x1b" not in text
    assert "forged" in text


def test_values_that_json_cannot_say(written):
    stream = written(form="json")
    extra = {"what": object, "when": {1, 2}, "nan": float("nan")}
    logging.getLogger("dwell.test").info("x", extra=extra)
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert (line["what"], line["nan"]) == ("<class 'object'>", None)


@pytest.mark.parametrize("level", logs.LEVELS)
def test_levels(written, level):
    stream = written(level)
    log = logging.getLogger("dwell.test")
    for name in logs.LEVELS:
        getattr(log, name)("said %s", name)
    said = [line.rpartition(" ")[2] for line in stream.getvalue().splitlines()]
    assert said == list(logs.LEVELS[logs.LEVELS.index(level) :])


def test_warnings_are_logged(written):
    stream = written(form="json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert line["logger"] == "py.warnings"
    assert "DeprecationWarning: old" in line["message"]


def test_the_settings_offer_what_there_is():
    from dwell.server.settings import FIELDS

    assert FIELDS["log_level"].choices == logs.LEVELS
    assert FIELDS["log_format"].choices == logs.FORMATS
