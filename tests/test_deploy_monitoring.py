"""Alert rules, dashboard and manifest: they name only what servers and workers say."""

import json
import re
import shutil
import subprocess
from itertools import combinations

import httpx2 as httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dwell.worker.numbers import Numbers
from dwell.worker.outcome import Done
from dwell.worker.tally import Tally
from tests.spark.conftest import ServerProcess
from tools.rooms import ROOT

_DEPLOY = ROOT / "deploy"
_RULES = _DEPLOY / "prometheus" / "dwell.rules.yml"
_BOARD = json.loads((_DEPLOY / "grafana" / "dwell.json").read_text())
_KEDA = yaml.safe_load((_DEPLOY / "keda" / "scaledobject.yaml").read_text())
#: What Prometheus says of itself about each target.
_PROMETHEUS = {"up"}
_NAME = re.compile(r"\b(?:dwell|process)_\w+|\bup\b")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"")


def rules():
    groups = yaml.safe_load(_RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions():
    """Return all expressions of PromQL, each with the place where it stands."""
    yield from ((rule["alert"], rule["expr"]) for rule in rules())
    for panel in _BOARD["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
    for trigger in _KEDA["spec"]["triggers"]:
        yield "keda", trigger["metadata"]["query"]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Return the names of all samples that a server and a worker give, with their labels."""
    folder = tmp_path_factory.mktemp("served")
    server = ServerProcess(folder, "--access-log", str(folder / "access.log"))
    try:
        httpx.post(f"{server.url}/v1/topics/orders/messages", json={"body": "x"})
        texts = [httpx.get(f"{server.url}/metrics").text]
    finally:
        server.stop()
    tally = Tally()
    tally.add("orders", Done(), 0.1)
    tally.timeouts["orders"] += 1
    registry = CollectorRegistry()
    registry.register(Numbers(tally))
    texts.append(generate_latest(registry).decode())
    found: dict[str, set[str]] = {name: {"job", "instance"} for name in _PROMETHEUS}
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = found.setdefault(sample.name, {"job", "instance"})
                labels.update(sample.labels)
    return found


@pytest.mark.parametrize(("place", "text"), list(expressions()))
def test_every_metric_and_label_exists(said, place, text):
    names = set(_NAME.findall(text))
    assert names
    assert names <= set(said), f"{place}: {names - set(said)} is not there"
    labels = set(_LABEL.findall(text))
    known = set().union(*(said[name] for name in names))
    assert labels <= known, f"{place}: {labels - known}"


def test_every_alert_says_what_to_do():
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "action"}


def test_panels_stand_side_by_side():
    places = [panel["gridPos"] for panel in _BOARD["panels"]]
    assert len({panel["id"] for panel in _BOARD["panels"]}) == len(places)
    for one, other in combinations(places, 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        apart_y = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart_x or apart_y
    assert all(place["x"] + place["w"] <= 24 for place in places)
    variables = {variable["name"] for variable in _BOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(_BOARD["panels"])))
    assert used == variables


def test_the_manifest_scales_by_what_is_due():
    (trigger,) = _KEDA["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    assert "delayed" not in trigger["metadata"]["query"]
    assert float(trigger["metadata"]["threshold"]) > 0


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_the_rules_and_they_fire():
    for command in (["check", "rules", _RULES.name], ["test", "rules", "dwell.test.yml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=_RULES.parent, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
