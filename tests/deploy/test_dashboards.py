"""The dashboard and the alerts ask for metrics that a service with traffic really has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kernelcast
import pytest
import yaml

ROOT = Path(kernelcast.__file__).parent
DASHBOARD = ROOT / "deploy" / "grafana" / "kernelcast.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"

METRIC = re.compile(r"\b(?:kernelcast|process)_[a-z_]+")
CHOSEN = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
GROUPED = re.compile(r"\bby \(([^)]*)\)")
BY_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus itself puts to what it scrapes."""

# An application in a process of its own, so that nothing else has counted; prints its metrics after some traffic.
_TRAFFIC = """
import importlib.util, json, sys
from pathlib import Path
from kernelcast.api.app import create_app
from kernelcast.api.settings import Settings
from kernelcast.api.model_source import FixedSource
from kernelcast.features.device import catalogue
from kernelcast.workloads.mlir.predictor import load_module_predictor
from kernelcast.nightly.record.record import NightRecord, StageRecord
spec = importlib.util.spec_from_file_location("fakes", sys.argv[1])
fakes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fakes)
fake = fakes.FakePredictor()
text = '''func.func @f(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.add %a, %b : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}'''
source = FixedSource(fake, catalogue(), programs=load_module_predictor(fake))
nights = Path(sys.argv[2])
checked = StageRecord("check", "done", facts={"model_drift": {"all": {"n": 9, "mean_ape_pct": 5.0}}})
began, ended = "2026-11-22T22:00:00+00:00", "2026-11-22T23:00:00+00:00"
night = NightRecord("20261122T220000Z-rack", "rack", "h200", "kept", began, ended, 1.0, "v1", "v1").with_stage(checked)
night.write(nights / night.id / "report.json")
with fakes.serving(create_app(source, Settings(nights=nights))) as client:
    gemm = {"family": "gemm", "device": "h100-sxm", "dtype": "bf16", "sizes": {"m": 64, "n": 64, "k": 64}}
    assert client.post(gemm).status_code == 200
    assert client.post({}).status_code == 422
    body = {"text": text, "devices": ["amd-epyc-9005-vm-2c"]}
    answer = client.request("POST", "/v1/predict/mlir", json=body)
    assert answer.status_code == 200, answer.text
    print(client.get("/metrics").text)
"""


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Metrics of a service with traffic, by name, with the labels of their samples."""
    nights = str(tmp_path_factory.mktemp("nights"))
    command = [sys.executable, "-c", _TRAFFIC, str(ROOT / "tests" / "api" / "conftest.py"), nights]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    result: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition("{")
            labels = re.findall(r'(\w+)="', rest.rpartition("}")[0])
            result.setdefault(name.split(" ")[0], set()).update(labels)
    return result


def panels() -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in result if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


QUERIES = [
    *((panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]),
    *((rule["alert"], rule["expr"]) for rule in rules()),
]


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_what_is_asked_for_is_there(scraped, title, query):
    names = set(METRIC.findall(query))
    assert names or query.startswith("up{"), title
    labels = set(CHOSEN.findall(query)) | {
        label.strip() for group in GROUPED.findall(query) for label in group.split(",")
    }
    for name in names:
        assert name in scraped, f"{title}: {name} is not in /metrics; there are {sorted(scraped)}"
    known = set().union(*(scraped[name] for name in names)) if names else set()
    assert labels <= known | BY_PROMETHEUS, f"{title}: {query}"
    assert query.count("(") == query.count(")")
    assert query.count("{") == query.count("}")


def test_every_metric_of_ours_is_on_the_dashboard(scraped):
    shown = set(METRIC.findall(" ".join(query for _, query in QUERIES)))
    bases = {
        re.sub(r"_(bucket|sum|count|total|created)$", "", name) for name in scraped if name.startswith("kernelcast_")
    }
    assert bases <= {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in shown}


def test_the_dashboard_can_be_imported():
    document = json.loads(DASHBOARD.read_text())
    assert document["uid"] == "kernelcast"
    assert {item["name"] for item in document["templating"]["list"]} == {"datasource", "job", "instance"}
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
    cells: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        place = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not mine & cells, panel["title"]
        assert max(x for x, _ in mine) < 24
        cells |= mine
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all("$job" in target["expr"] and "$instance" in target["expr"] for target in panel["targets"])


def test_every_alert_says_what_to_do():
    for rule in rules():
        assert re.fullmatch(r"Kernelcast[A-Za-z]+", rule["alert"])
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["annotations"]["description"].endswith(".")
