"""A night on a fleet, from its measurer down to blocks; the fleet itself, with Ray, is tested in tests/collectors/fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from kernelcast.collectors.fleet.cluster import FleetError, Instance
from kernelcast.collectors.fleet.driver import FleetSummary
from kernelcast.datasets.rows.schema import Measurement, Provenance, software_of
from kernelcast.datasets.store.store import Store
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.nightly.checks.device_drift import DeviceNight, read_readings, write_readings
from kernelcast.nightly.measuring import fleet
from kernelcast.nightly.open_night import NightSetup, open_night
from kernelcast.nightly.record.plan_file import plan_of
from kernelcast.nightly.run_night import run_night

CPU, T4 = "amd-epyc-9005-vm-2c", "nvidia-t4"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A cluster of two devices that gives every case a second; what it was asked is kept."""
    query: list[dict[str, Any]] = []

    def run(cases: Mapping[str, Sequence[KernelSpec]], *, store: Store, **given: Any) -> FleetSummary:
        query.append({"cases": cases, **given})
        for device, specs in cases.items():
            rows = [Measurement(spec, device, "ok", f"b-{device}", 1.0) for spec in specs]
            read = {
                "sentinel_before_s": {"gemm": 0.003, "copy": None},
                "sentinel_after_s": {"gemm": 0.005, "copy": 0.02},
            }
            store.append(rows, Provenance(f"b-{device}", {"kernel": "6.1", **read, **given["note"]}))
        stored = {device: {"ok": len(specs)} for device, specs in cases.items()}
        none = dict.fromkeys(cases, 0)
        return FleetSummary(stored, none, none | {T4: 2}, {T4: "no device of this name is left"}, (), False, 1.0)

    monkeypatch.setattr(fleet, "connect", lambda address: address)
    monkeypatch.setattr(fleet, "instances", lambda ray: [Instance(CPU, "n1", "one"), Instance(T4, "n2", "two")])
    monkeypatch.setattr(fleet, "run_fleet", run)
    return query


def setup(**changes: Any) -> NightSetup:
    plan = plan_of({
        "name": "many", "minutes": 0.5, "collector": "fleet", "families": ["softmax"], "train": {"challengers": []},
        "fleet": {"address": "127.0.0.1:6379"}, **changes,
    })  # fmt: skip
    return NightSetup(plan, fleet.FleetMeasurer(plan, catalogue()), catalogue())


def test_every_device_gets_cases_and_all_rows_are_stored_here(home, cluster: list[dict[str, Any]]) -> None:
    record = run_night(open_night(setup(), lambda *_: None))
    assert record.device == f"{CPU}, {T4}"
    assert [stage.summary for stage in record.stages if stage.status == "failed"] == []
    assert record.stage("sentinels").status == "skipped"
    assert set(cluster[0]["cases"]) == {CPU, T4}
    assert cluster[0]["note"]["night"] == record.id
    collected = record.stage("collect").facts
    assert (
        collected["rows"]["ok"] == record.stage("choose").facts["cases"] == sum(map(len, cluster[0]["cases"].values()))
    )
    assert {table["device"][0].as_py() for table in Store().read_all([T4]).values()} == {T4}
    assert any("no device of this name is left" in item.message for item in record.findings)
    assert record.stage("check").facts["software"] == dict.fromkeys((CPU, T4), software_of({"kernel": "6.1"}))


def test_sentinels_between_blocks_are_what_the_devices_of_a_fleet_are_judged_by(
    home, cluster: list[dict[str, Any]]
) -> None:
    software = software_of({"kernel": "6.1"})
    for day in range(1, 15):
        slow = 0.0048 if day > 11 else 0.004 + 1e-6 * day
        readings = {"gemm": slow, "copy": 0.02}
        write_readings(CPU, DeviceNight(f"202601{day:02}T000000Z-many", software, readings))
    record = run_night(open_night(setup(), lambda *_: None))
    drift = record.stage("check").facts["device_drift"]
    assert drift[CPU]["readings"] == {"gemm": 0.004, "copy": 0.02}
    assert (drift[CPU]["nights"], drift[T4]["nights"]) == (15, 1)
    assert read_readings(T4)[0][0].readings == {"gemm": 0.004, "copy": 0.02}
    assert {item.subject for item in record.findings if item.kind == "device-drift"} == {T4}


def test_what_a_cluster_lacks_is_said(cluster: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="the cluster has no nvidia-p4; it has amd"):
        setup(fleet={"address": "x:1", "devices": ["nvidia-p4"]})

    def down(address: str) -> None:
        raise FleetError(f"no cluster answers at {address}")

    monkeypatch.setattr(fleet, "connect", down)
    with pytest.raises(SpecError, match="no cluster answers at 127"):
        setup()
