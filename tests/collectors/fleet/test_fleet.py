"""A fleet on a real Ray cluster of this machine: two nodes, different devices, and everything that breaks."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fleet_cases import KNOWN, METHODS, PATIENCE, case, cases, device_file, drive, slow_cases
from kernelcast.collectors.campaign import CampaignError
from kernelcast.collectors.fleet.cluster import FleetError, connect, instances
from kernelcast.collectors.fleet.driver import FleetSummary, InstanceSummary, run_fleet
from kernelcast.datasets.store.parquet_files import provenance_of
from kernelcast.datasets.store.store import FINAL_STATUSES, Store, StoreError
from kernelcast.features.kernel import KernelSpec
from kernelcast.nightly.measuring.fleet import FleetMeasurer
from kernelcast.nightly.open_night import NightSetup, open_night
from kernelcast.nightly.record.plan_file import plan_of
from kernelcast.nightly.run_night import run_night
from local_cluster import LocalCluster, wait_for

pytestmark = pytest.mark.slow

HANG, KILLS, KILLS_ONCE, SLOW = 1001, 1002, 1008, 2000
WORKER_HANGS, WORKER_CRASHES = case(1001, threads=2), case(1002, threads=2)


def statuses(root: Path, device: str) -> dict[str, list[str]]:
    """Case to the statuses of its rows."""
    table, result = Store(root).read("copy", [device], ["case_id", "status"]), {}
    for row in table.to_pylist():
        result.setdefault(row["case_id"], []).append(row["status"])
    return result


def assert_once(root: Path, device: str, wanted: list[KernelSpec], **others: str) -> None:
    """Every case has exactly one row, ok but for those named by their case's id."""
    assert statuses(root, device) == {spec.case_id: [others.get(spec.case_id, "ok")] for spec in wanted}


def test_each_device_measures_its_own_cases_and_every_block_names_its_machine(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    left, right, seen = cases(1, 31), cases(20, 41), []
    done = drive(cluster.address, tmp_path, {"left": left, "right": right},
                 progress=lambda device, done, total: seen.append((device, done, total)), note={"plan_seed": 5})  # fmt: skip
    assert done.stored == {"left": {"ok": 30}, "right": {"ok": 21}}
    assert (done.left, done.interrupted) == ({"left": 0, "right": 0}, False)
    assert [item.ended for item in done.instances] == [None, None]
    assert_once(tmp_path, "left", left)
    assert_once(tmp_path, "right", right)
    assert ("left", 30, 30) in seen
    assert ("right", 21, 21) in seen
    for device, node in (("left", "first"), ("right", "second")):
        table = Store(tmp_path).read("copy", [device])
        facts = provenance_of(table)
        assert set(table["block"].to_pylist()) == set(facts)
        for block in facts.values():
            assert block["home"].endswith(f"home-{node}")
            assert block["before"]["home"] == block["after"]["home"] == block["home"]
            assert block["fleet"]["node_id"]
            assert (block["device"], block["plan_seed"]) == (device, 5)
            assert {"cpu_model", "versions", "source_hash", "workers", "sentinel_before_s", "sentinel_after_s"} <= set(
                block
            )
    again = drive(cluster.address, tmp_path, {"left": left})
    assert (again.stored, again.skipped) == ({"left": {}}, {"left": 30})


HUNG, KILLING, KILLING_ONCE = case(HANG), case(KILLS), case(KILLS_ONCE)
LEFT = [*cases(200, 205), HUNG, *cases(210, 218), KILLING, *cases(220, 226), KILLING_ONCE, *cases(230, 235)]
TWIN, SPARE, WORKED = slow_cases(1000, 1160), slow_cases(200, 230), [WORKER_HANGS, WORKER_CRASHES, case(240, threads=2)]


@dataclass(frozen=True)
class Rough:
    """What became of a campaign in which much breaks, and of a second driver's beside it."""

    root: Path
    done: FleetSummary
    beside: FleetSummary
    measured: list[list[str]]

    def on(self, device: str) -> list[InstanceSummary]:
        return [item for item in self.done.instances if item.device == device]


@pytest.fixture(scope="module")
def rough(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Rough:
    """All of it at once: most of the time everyone waits for deadlines and for processes to start."""
    root, began = tmp_path_factory.mktemp("rough"), len(cluster.measured())
    names = {spec.case_id for spec in SPARE}

    def on_spare() -> list[list[str]]:
        return [line for line in cluster.measured()[began:] if line[2] in names]

    def kill_soon() -> None:
        wait_for(lambda: len(on_spare()) > 10)
        os.kill(int(on_spare()[-1][0]), signal.SIGKILL)

    with ThreadPoolExecutor(2) as threads:
        killer = threads.submit(kill_soon)
        # Its workers are real processes, whose start counts into the deadline.
        patient = replace(PATIENCE, chunk_s=60.0, losses=5)
        beside = threads.submit(drive, cluster.address, root, {"right": WORKED}, patience=patient)
        many = {"left": LEFT, "twin": TWIN, "spare": SPARE, "always-hangs": cases(1, 9)}
        done = drive(cluster.address, root, many)
        killer.result()
        return Rough(root, done, beside.result(), on_spare())


def test_what_hangs_or_kills_the_actor_is_a_row_and_the_rest_is_measured(rough: Rough) -> None:
    assert_once(rough.root, "left", LEFT, **{HUNG.case_id: "timeout", KILLING.case_id: "crashed"})
    assert rough.done.stored["left"] == {"ok": len(LEFT) - 2, "timeout": 1, "crashed": 1}
    assert [(item.ended, item.losses) for item in rough.on("left")] == [(None, 5)]


def test_two_devices_of_one_name_share_the_work(rough: Rough) -> None:
    assert_once(rough.root, "twin", TWIN)
    assert [item.rows >= 8 for item in rough.on("twin")] == [True, True]
    assert sum(item.rows for item in rough.on("twin")) == 160


def test_a_killed_actor_is_replaced(rough: Rough) -> None:
    assert_once(rough.root, "spare", SPARE)
    assert rough.on("spare")[0].losses == 1
    assert len({line[0] for line in rough.measured}) == 2


def test_a_worker_process_that_hangs_or_crashes_is_replaced_in_its_actor(rough: Rough) -> None:
    broken = {WORKER_HANGS.case_id: "timeout", WORKER_CRASHES.case_id: "crashed"}
    assert_once(rough.root, "right", WORKED, **broken)
    assert [(item.ended, item.losses) for item in rough.beside.instances] == [(None, 3)]


def test_a_device_lost_too_often_is_quarantined_and_its_cases_are_left(rough: Rough) -> None:
    assert rough.done.left == {"left": 0, "twin": 0, "spare": 0, "always-hangs": 8}
    assert "quarantined after 3 losses in a row" in str(rough.done)
    assert "no device of this name is left" in rough.done.why_left["always-hangs"]
    assert statuses(rough.root, "always-hangs") == {}


class FullAfter(Store):
    """A store whose disk is full once some blocks are stored."""

    def __init__(self, root: Path, blocks: int) -> None:
        super().__init__(root)
        self.blocks = blocks

    def append(self, *given: Any, **more: Any) -> list[Any]:
        if self.blocks <= 0:
            raise StoreError("cannot write") from OSError(errno.ENOSPC, "No space left on device")
        self.blocks -= 1
        return super().append(*given, **more)


def test_a_full_disk_ends_it_with_one_message_and_it_can_go_on(cluster: LocalCluster, tmp_path: Path) -> None:
    wanted = {"left": slow_cases(700, 724), "right": slow_cases(700, 724)}
    with pytest.raises(CampaignError) as caught:
        drive(cluster.address, tmp_path, wanted, store=FullAfter(tmp_path, 2))
    remaining = {device: len(statuses(tmp_path, device)) for device in wanted}
    message = str(caught.value)
    assert (
        f"the disk is full, free some space; {sum(remaining.values())} rows are stored and stay, the last " in message
    )
    assert 1 <= int(re.findall(r"the last (\d+) that were measured are not", message)[0]) <= 16
    assert "Mend that and run the same command again" in message
    done = drive(cluster.address, tmp_path, wanted)
    assert done.skipped == remaining
    for device, specs in wanted.items():
        assert_once(tmp_path, device, specs)


def test_when_the_time_is_over_the_rest_is_left(cluster: LocalCluster, tmp_path: Path) -> None:
    done = drive(cluster.address, tmp_path, {"left": slow_cases(0, 600)}, until=time.monotonic() + 5.0)
    rows = statuses(tmp_path, "left")
    assert done.left == {"left": 600 - len(rows)}
    assert done.left["left"] > 0
    assert "cases left (the time is over)" in str(done)
    assert [item.ended for item in done.instances] == [None]


@contextlib.contextmanager
def driver(cluster: LocalCluster, root: Path, device: str, first: int, last: int) -> Iterator[subprocess.Popen[str]]:
    script = Path(__file__).with_name("drive.py")
    process = subprocess.Popen(
        [sys.executable, "-P", str(script), cluster.address, str(root), device, str(first), str(last)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/",
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_killed_driver_leaves_nobody_measuring_and_the_next_one_goes_on(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    wanted = slow_cases(300, 450)
    with driver(cluster, tmp_path, "left", 300, 450) as process:
        wait_for(lambda: len(statuses(tmp_path, "left")) >= 16)
        # Ray's resource stands between two drivers of one cluster, the lock on the node between any two campaigns.
        with pytest.raises(FleetError, match="another campaign on this cluster holds it; wait for it or stop it"):
            drive(cluster.address, tmp_path, {"left": wanted}, patience=replace(PATIENCE, busy_s=1.0))
        process.kill()
        process.wait()
    actor = int(cluster.measured()[-1][0])
    wait_for(lambda: not Path(f"/proc/{actor}").exists())
    count = len(cluster.measured())
    time.sleep(0.5)
    assert len(cluster.measured()) == count
    before = len(statuses(tmp_path, "left"))
    done = drive(cluster.address, tmp_path, {"left": wanted})
    assert_once(tmp_path, "left", wanted)
    assert (done.skipped["left"], done.stored["left"]["ok"]) == (before, 150 - before)


def test_ctrl_c_stores_what_is_in_hand(cluster: LocalCluster, tmp_path: Path) -> None:
    with driver(cluster, tmp_path, "right", 400, 800) as process:
        wait_for(lambda: len(statuses(tmp_path, "right")) >= 8)
        process.send_signal(signal.SIGINT)
        message, _ = process.communicate(timeout=240)
    rows = statuses(tmp_path, "right")
    assert 8 <= len(rows) < 400
    assert (
        f"right: {len(rows)} ok; 0 skipped as already stored; {400 - len(rows)} cases left (it was interrupted)"
        in message
    )
    assert all(result == ["ok"] for result in rows.values())


def test_ray_is_quiet_when_an_actor_is_killed(cluster: LocalCluster, tmp_path: Path) -> None:
    # Cases of 1002 (which kills), 1003, ... rows.
    with driver(cluster, tmp_path, "right", KILLS - SLOW, KILLS - SLOW + 5) as process:
        message, _ = process.communicate(timeout=240)
    assert message.splitlines()[:-1] == ["right: 1 crashed, 4 ok; 0 skipped as already stored"]
    assert re.fullmatch(r"\d+ s on 1 devices", message.splitlines()[-1])


def test_a_device_held_on_its_node_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    with Store(cluster.nodes[0].home / "measurements").lock("left"), pytest.raises(
        FleetError, match=rf"left is being measured by process {os.getpid()} on .*; wait for it or stop it"
    ):  # fmt: skip
        drive(cluster.address, tmp_path, {"left": cases(1, 3)}, patience=replace(PATIENCE, lock_s=0.0))


@pytest.mark.parametrize(
    ("device", "words"),
    [
        (
            "nobody-has",
            "the cluster has no nobody-has; devices of its nodes: always-hangs, left, mislabelled, right",
        ),
        ("mislabelled", "the node is labelled mislabelled, but its processor is another one"),
    ],
)
def test_a_device_that_is_not_there_is_named(cluster: LocalCluster, tmp_path: Path, device: str, words: str) -> None:
    with pytest.raises(FleetError, match=words):
        drive(cluster.address, tmp_path, {device: cases(1, 3)})


def test_a_device_nobody_has_leaves_its_cases_and_the_others_are_measured(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    done = drive(cluster.address, tmp_path, {"nobody-has": cases(1, 4), "left": cases(1, 4)})
    assert done.left == {"nobody-has": 3, "left": 0}
    assert (
        "nobody-has: no rows; 0 skipped as already stored; 3 cases left (no node of the cluster has this device)"
        in str(done)
    )


def test_the_real_check_refuses_a_node_that_is_not_its_label(cluster: LocalCluster, tmp_path: Path) -> None:
    real = "kernelcast.collectors.fleet.actor:open_local"
    with pytest.raises(FleetError, match=r"the node is labelled left, but its processor .* start it with the line"):
        drive(cluster.address, tmp_path, {"left": cases(1, 3)}, maker=real, device_files=[device_file("left")])


def test_a_dead_nodes_cases_go_to_another_device_of_the_name_or_are_left(cluster: LocalCluster, tmp_path: Path) -> None:
    third = cluster.add("third", {"doomed": 1, "spare": 1})
    ray, wanted = connect(cluster.address), {"spare": slow_cases(300, 600), "doomed": slow_cases(600, 800)}
    wait_for(lambda: len([item for item in instances(ray) if item.device == "doomed"]) == 1)

    def kill_soon() -> None:
        wait_for(lambda: len(statuses(tmp_path, "doomed")) >= 8 and len(statuses(tmp_path, "spare")) >= 16)
        cluster.kill(third)

    killer = threading.Thread(target=kill_soon)
    killer.start()
    done = drive(cluster.address, tmp_path, wanted)
    killer.join()
    assert_once(tmp_path, "spare", wanted["spare"])
    measured = statuses(tmp_path, "doomed")
    assert Counter(map(len, measured.values())) == {1: len(measured)}
    assert done.left == {"spare": 0, "doomed": 200 - len(measured)}
    assert done.left["doomed"] > 0
    assert [item.ended is None for item in done.instances if item.device == "spare"].count(False) == 1
    assert "died" in str(done) or "is dead" in str(done)
    table = Store(tmp_path).read("copy")
    assert set(table["status"].to_pylist()) <= set(FINAL_STATUSES)


def test_a_night_measures_on_the_cluster(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    real = partial(run_fleet, maker="fake_device:open_fake", methods=METHODS, patience=PATIENCE)
    monkeypatch.setattr("kernelcast.nightly.measuring.fleet.run_fleet", real)
    # It ends with its cases and not with its minutes, however slow the machine is.
    monkeypatch.setattr("kernelcast.nightly.stages.choose._MOST", 60)
    plan = plan_of({
        "name": "real", "minutes": 20, "collector": "fleet", "families": ["softmax"], "threads": [1],
        "train": {"challengers": []}, "fleet": {"address": cluster.address, "devices": ["left", "right"]},
    })  # fmt: skip
    record = run_night(open_night(NightSetup(plan, FleetMeasurer(plan, KNOWN), KNOWN), lambda *_: None))
    assert [stage.summary for stage in record.stages if stage.status == "failed"] == []
    rows = {device: Store().read("softmax", [device]) for device in ("left", "right")}
    assert {device: set(table["status"].to_pylist()) for device, table in rows.items()} == {
        "left": {"ok"},
        "right": {"ok"},
    }
    assert sum(map(len, rows.values())) == record.stage("collect").facts["rows"]["ok"] > 0
    for device, node in (("left", "first"), ("right", "second")):
        facts = provenance_of(rows[device])
        assert {block["night"] for block in facts.values()} == {record.id}
        assert {Path(block["home"]).name for block in facts.values()} == {f"home-{node}"}


def test_when_the_first_node_dies_the_driver_stores_what_it_has_and_says_so(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The last one: there is no cluster after it."""
    with driver(cluster, tmp_path, "right", 800, 1400) as process:
        wait_for(lambda: len(statuses(tmp_path, "right")) >= 8)
        cluster.kill(cluster.nodes[0])
        message, _ = process.communicate(timeout=240)
    rows = statuses(tmp_path, "right")
    assert f"refused: the cluster at {cluster.address} does not answer any more; {len(rows)} rows are stored" in message
    assert all(result == ["ok"] for result in rows.values())
