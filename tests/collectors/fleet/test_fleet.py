"""A fleet on a real Ray cluster of this machine: two nodes, different devices, and everything that breaks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fleet_cases import PATIENCE, case, cases, device_file, drive, slow_cases
from kernelcast.collectors.fleet.labels import instances
from kernelcast.collectors.fleet.ray_library import FleetError, connect
from kernelcast.datasets.files import provenance_of
from kernelcast.datasets.store import FINAL_STATUSES, Store
from kernelcast.features.kernel import KernelSpec
from local_cluster import LocalCluster, wait_for

HANG, KILLS, KILLS_ONCE = 1001, 1002, 1008
WORKER_HANGS, WORKER_CRASHES = case(1001, threads=2), case(1002, threads=2)


def statuses(root: Path, device: str) -> dict[str, list[str]]:
    """Case to the statuses of its rows."""
    table, found = Store(root).read("copy", [device], ["case_id", "status"]), {}
    for row in table.to_pylist():
        found.setdefault(row["case_id"], []).append(row["status"])
    return found


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
    assert [one.ended for one in done.instances] == [None, None]
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


def test_two_devices_of_one_name_share_the_work(cluster: LocalCluster, tmp_path: Path) -> None:
    wanted = slow_cases(100, 160)
    done = drive(cluster.address, tmp_path, {"twin": wanted})
    assert_once(tmp_path, "twin", wanted)
    assert [one.rows > 15 for one in done.instances] == [True, True]
    assert sum(one.rows for one in done.instances) == 60


def test_what_hangs_or_kills_the_actor_is_a_row_and_the_rest_is_measured(cluster: LocalCluster, tmp_path: Path) -> None:
    hang, kills, once = case(HANG), case(KILLS), case(KILLS_ONCE)
    wanted = [*cases(200, 205), hang, *cases(210, 218), kills, *cases(220, 226), once, *cases(230, 235)]
    done = drive(cluster.address, tmp_path, {"left": wanted})
    assert_once(tmp_path, "left", wanted, **{hang.case_id: "timeout", kills.case_id: "crashed"})
    assert done.stored["left"] == {"ok": len(wanted) - 2, "timeout": 1, "crashed": 1}
    assert (done.instances[0].ended, done.instances[0].losses) == (None, 5)


def test_a_worker_process_that_hangs_or_crashes_is_replaced_in_its_actor(cluster: LocalCluster, tmp_path: Path) -> None:
    # Its workers are real processes, whose start counts into the deadline.
    wanted = [WORKER_HANGS, WORKER_CRASHES, case(240, threads=2)]
    done = drive(cluster.address, tmp_path, {"right": wanted}, patience=replace(PATIENCE, chunk_s=30.0))
    assert_once(tmp_path, "right", wanted, **{WORKER_HANGS.case_id: "timeout", WORKER_CRASHES.case_id: "crashed"})
    assert (done.instances[0].ended, done.instances[0].losses) == (None, 3)


def test_a_device_lost_too_often_is_quarantined_and_its_cases_are_left(cluster: LocalCluster, tmp_path: Path) -> None:
    quick = replace(PATIENCE, chunk_s=0.3, case_s=0.05, losses=2)
    done = drive(cluster.address, tmp_path, {"always-hangs": cases(1, 9), "right": cases(1, 9)}, patience=quick)
    assert done.left == {"always-hangs": 8, "right": 0}
    assert "quarantined after 2 losses in a row" in str(done)
    assert "no device of this name is left" in done.why_left["always-hangs"]
    assert statuses(tmp_path, "always-hangs") == {}
    assert_once(tmp_path, "right", cases(1, 9))


def test_a_killed_worker_process_is_replaced(cluster: LocalCluster, tmp_path: Path) -> None:
    wanted, began = slow_cases(200, 230), len(cluster.measured())

    def kill_soon() -> None:
        wait_for(lambda: len(cluster.measured()) > began + 10, 30)
        os.kill(int(cluster.measured()[-1][0]), signal.SIGKILL)

    killer = threading.Thread(target=kill_soon)
    killer.start()
    done = drive(cluster.address, tmp_path, {"spare": wanted})
    killer.join()
    assert_once(tmp_path, "spare", wanted)
    assert done.instances[0].losses == 1
    assert len({line[0] for line in cluster.measured()[began:]}) == 2


@contextlib.contextmanager
def driver(cluster: LocalCluster, root: Path, device: str, first: int, last: int) -> Iterator[subprocess.Popen[str]]:
    script = Path(__file__).with_name("drive.py")
    process = subprocess.Popen(
        [sys.executable, "-P", str(script), cluster.address, str(root), device, str(first), str(last)],
        stdout=subprocess.PIPE, text=True, cwd="/",
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_killed_driver_leaves_nobody_measuring_and_the_next_one_goes_on(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    wanted = slow_cases(300, 350)
    with driver(cluster, tmp_path, "left", 300, 350) as process:
        wait_for(lambda: len(statuses(tmp_path, "left")) >= 16, 40)
        # Ray's resource stands between two drivers of one cluster, the lock on the node between any two campaigns.
        with pytest.raises(FleetError, match="another campaign on this cluster holds it; wait for it or stop it"):
            drive(cluster.address, tmp_path, {"left": wanted}, patience=replace(PATIENCE, busy_s=1.0))
        process.kill()
        process.wait()
    actor = int(cluster.measured()[-1][0])
    wait_for(lambda: not Path(f"/proc/{actor}").exists(), 20)
    count = len(cluster.measured())
    time.sleep(0.5)
    assert len(cluster.measured()) == count
    before = len(statuses(tmp_path, "left"))
    done = drive(cluster.address, tmp_path, {"left": wanted})
    assert_once(tmp_path, "left", wanted)
    assert (done.skipped["left"], done.stored["left"]["ok"]) == (before, 50 - before)


def test_ctrl_c_stores_what_is_in_hand(cluster: LocalCluster, tmp_path: Path) -> None:
    with driver(cluster, tmp_path, "right", 400, 500) as process:
        wait_for(lambda: len(statuses(tmp_path, "right")) >= 8, 40)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=20)
    rows = statuses(tmp_path, "right")
    assert 8 <= len(rows) < 100
    assert f"right: {len(rows)} ok; 0 were there already; {100 - len(rows)} cases left (it was interrupted)" in said
    assert all(found == ["ok"] for found in rows.values())


def test_a_device_held_on_its_node_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    with Store(cluster.nodes[0].home / "measurements").lock("left"), pytest.raises(
        FleetError, match=rf"left is being measured by process {os.getpid()} on .*; wait for it or stop it"
    ):  # fmt: skip
        drive(cluster.address, tmp_path, {"left": cases(1, 3)})


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
    assert "nobody-has: no rows; 0 were there already; 3 cases left (no node of the cluster has this device)" in str(
        done
    )


def test_the_real_check_refuses_a_node_that_is_not_its_label(cluster: LocalCluster, tmp_path: Path) -> None:
    real = "kernelcast.collectors.fleet.local:open_local"
    with pytest.raises(FleetError, match=r"the node is labelled left, but its processor .* start it with the line"):
        drive(cluster.address, tmp_path, {"left": cases(1, 3)}, maker=real, device_files=[device_file("left")])


def test_a_dead_nodes_cases_go_to_another_device_of_the_name_or_are_left(cluster: LocalCluster, tmp_path: Path) -> None:
    third = cluster.add("third", {"doomed": 1, "spare": 1})
    ray, wanted = connect(cluster.address), {"spare": slow_cases(460, 600), "doomed": slow_cases(600, 640)}
    wait_for(lambda: len([one for one in instances(ray) if one.device == "doomed"]) == 1, 40)

    def kill_soon() -> None:
        wait_for(lambda: len(statuses(tmp_path, "doomed")) >= 8 and len(statuses(tmp_path, "spare")) >= 16, 40)
        cluster.kill(third)

    killer = threading.Thread(target=kill_soon)
    killer.start()
    done = drive(cluster.address, tmp_path, wanted)
    killer.join()
    assert_once(tmp_path, "spare", wanted["spare"])
    measured = statuses(tmp_path, "doomed")
    assert Counter(map(len, measured.values())) == {1: len(measured)}
    assert done.left == {"spare": 0, "doomed": 40 - len(measured)}
    assert done.left["doomed"] > 0
    assert [one.ended is None for one in done.instances if one.device == "spare"].count(False) == 1
    assert "died" in str(done) or "is dead" in str(done)
    table = Store(tmp_path).read("copy")
    assert set(table["status"].to_pylist()) <= set(FINAL_STATUSES)
