"""`kernelcast measure nightly` and `measure nights` as a user types them; nights themselves are tested in tests/nightly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kernelcast.collectors import host
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.shipped import SHIPPED_DIR
from kernelcast.datasets.store.store import Store
from kernelcast.features.kernel import KernelSpec
from kernelcast.nightly.record.folders import nights_dir
from kernelcast.nightly.record.record import NightRecord, StageRecord

DEVICE = "amd-epyc-9005-vm-2c"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "tonight.yaml"
    path.write_text(
        f"minutes: 1\ncollector: replay\ndevice: {DEVICE}\nreplay: {{rows: {SHIPPED_DIR / 'softmax.parquet'}}}\n"
    )
    return path


def test_a_dry_run_writes_nothing(run, plan: Path, tmp_path: Path) -> None:
    done = run("nightly", plan, "--dry-run")
    assert done.code == 0, done.err
    assert DEVICE in done.out
    assert "reserved for training" in done.out
    assert "softmax" in done.out
    assert not (tmp_path / "home").exists()


def test_a_dry_run_as_json(run, plan: Path) -> None:
    result = json.loads(run("nightly", plan, "--dry-run", "--json").out)
    assert result["devices"] == [DEVICE]
    assert 0 < result["cases"] <= result["candidates"]
    assert result["measuring_s"] + result["kept_back_s"] == pytest.approx(60)
    assert list(result["stages"])[-1] == "report"
    assert result["serves"] == "shipped"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--resume", "last"), "plan tonight has no night yet"),
        (("--resume", "20260101T000000Z-x"), "there is no night '20260101T000000Z-x'"),
        (("--resume", "../../etc"), "there is no night"),
        (("--from", "lunch"), "there is no stage 'lunch'; stages: characterise, sentinels"),
        (("--from", "train"), "plan tonight has no night yet"),
        (("--new", "--resume", "last"), "--new begins a new night"),
        (("--what",), "--what"),
    ],
)
def test_options_that_are_refused(run, plan: Path, options: tuple[str, ...], words: str) -> None:
    assert words in run("nightly", plan, *options).error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("minuts: 3", "did you mean minutes?"),
        ("device: nvidia-h100-sxm-80gb", "is a gpu"),
        ("device: my-toaster", "my-toaster"),
        ("{collector: replay, replay: {rows: nowhere.parquet}}", "nowhere.parquet"),
        ("{collector: replay, device: nvidia-t4, replay: {rows: SHIPPED/softmax.parquet}}", "no rows of nvidia-t4"),
        ("{collector: replay, replay: {rows: SHIPPED/softmax.parquet}}", "name one as device"),
        ("{collector: fleet}", "fleet.address"),
    ],
)
def test_plans_that_are_refused(run, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text.replace("SHIPPED", str(SHIPPED_DIR)))
    assert words in run("nightly", path).error


def test_the_list_of_nights(run) -> None:
    assert "no nights" in run("nights").err
    for day, outcome in (("20261121", "kept"), ("20261122", "promoted")):
        record = NightRecord(
            f"{day}T220000Z-n", "n", DEVICE, outcome, "2026-11-22T22:00:00+00:00", None, 60.0, "a", "b"
        )  # type: ignore[arg-type]
        record.with_stage(StageRecord("collect", "done", None, 60.0, "", {"rows": {"ok": 7}})).write(
            nights_dir() / record.id / "state.json"
        )
    (nights_dir() / "20261120T220000Z-n").mkdir()
    shown = run("nights").out
    assert shown.index("20261122") < shown.index("20261121")
    listed = json.loads(run("nights", "--json", "--most", 1).out)
    assert [(item["outcome"], item["rows"], item["minutes"]) for item in listed] == [("promoted", 7, 1.0)]
    assert json.loads(run("nights", "--json", "--plan", "other").out) == []


def test_a_night_on_another_machine_than_the_rows_of_its_device_is_refused(run, tmp_path: Path) -> None:
    store = Store(tmp_path / "rows")
    spec = KernelSpec.of("softmax", "fp32", impl="torch", threads=1, rows=64, cols=64)
    facts = host.machine_facts(DEVICE) | {"cpu_model": "Another CPU"}
    store.append([Measurement(spec, DEVICE, "unsupported", "b0")], Provenance("b0", facts))
    path = tmp_path / "p.yaml"
    path.write_text(f"minutes: 1\ndevice: {DEVICE}\nfamilies: [softmax]\nthreads: [1]\nstore: {tmp_path / 'rows'}\n")
    message = run("nightly", path).error
    assert f"{DEVICE} is not the machine that was measured under this name (cpu_model Another CPU before" in message
    assert len(store.files()) == 1
