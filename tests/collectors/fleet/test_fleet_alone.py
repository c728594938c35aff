"""What needs no cluster: the pool of cases, the line that starts a node, and what the commands refuse."""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import pytest
from fleet_cases import cases, device_file
from kernelcast.cli import main
from kernelcast.collectors.fleet.actor import DeviceActor, Request
from kernelcast.collectors.fleet.case_pool import Pool, gathered
from kernelcast.collectors.fleet.cluster import FleetError, Watch, connect, start_line
from kernelcast.collectors.meters.nvml import NvmlMissingError
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.spec_io.rows import spec_row
from local_cluster import wait_for


def never() -> bool:
    return False


def test_one_device_takes_all_and_several_take_shares_that_shrink_to_a_block() -> None:
    assert len(Pool(cases(1, 101), 8, 1).take(never)) == 100
    pool, sizes = Pool(cases(1, 101), 8, 2), []
    while portion := pool.take(never):
        sizes.append(len(portion))
        pool.give_back([], device_lost=False)
    assert sizes == [25, 19, 14, 11, 8, 8, 8, 7]


def test_cases_of_a_lost_device_go_on_and_one_in_hand_twice_is_given_up() -> None:
    pool = Pool(cases(1, 5), 8, 1)
    portion = pool.take(never)
    pool.give_back(portion[1:], device_lost=True, in_hand=portion[1:3])
    again = pool.take(never)
    assert again == portion[1:]
    pool.give_back(again, device_lost=True, in_hand=again[:1])
    assert pool.take(never) == again[1:]
    assert pool.given_up == again[:1]
    pool.give_back([], device_lost=False)
    assert (pool.take(never), pool.left()) == ([], again[:1])


def test_a_driver_gathers_families_within_stretches_of_an_eighth_of_the_plan() -> None:
    mixed = [spec for rows in range(1, 201) for spec in (
        KernelSpec.of("copy", "fp32", impl="torch", threads=1, rows=rows, cols=8),
        KernelSpec.of("softmax", "fp32", impl="torch", threads=1, rows=rows, cols=8),
    )]  # fmt: skip
    result = gathered(mixed, 8)
    assert sorted(map(str, result)) == sorted(map(str, mixed))
    for first in range(0, 400, 50):
        assert {spec.family for spec in result[first : first + 50]} == {"copy", "softmax"}
        assert set(result[first : first + 50]) == set(mixed[first : first + 50])
    blocks = [{spec.family for spec in result[first : first + 8]} for first in range(0, 400, 8)]
    assert sum(map(len, blocks)) < 60
    assert gathered(mixed[:3], 8) == mixed[:3]
    assert gathered([], 8) == []


def test_the_line_that_starts_a_node() -> None:
    words = shlex.split(start_line({"nvidia-h200-sxm-141gb": 8}, "10.0.0.1:6379"))
    assert "RAY_USAGE_STATS_ENABLED=0" in words
    assert {"ray", "start", "--address=10.0.0.1:6379", "--disable-usage-stats"} <= set(words)
    resources = next(word for word in words if word.startswith("--resources="))
    assert json.loads(resources.removeprefix("--resources=")) == {"device:nvidia-h200-sxm-141gb": 8}
    assert {"--head", "--port=7000", "--include-dashboard=false"} <= set(shlex.split(start_line({"a": 1}, port=7000)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--store", "nope://x", "--address", "127.0.0.1:1"], "nope"),
        (["run"], "name the cluster with --address HOST:PORT"),
        (["devices"], "name the cluster with --address HOST:PORT"),
        (
            ["devices", "--address", "127.0.0.1:1"],
            "no Ray cluster to be used at 127.0.0.1:1 ([Errno 111] Connection refused)",
        ),
        (["devices", "--address", "somewhere"], "the address of a cluster is HOST:PORT"),
        (["devices", "--address", "http://10.0.0.1:1"], "the address of a cluster is HOST:PORT"),
        (["run", "--address", "127.0.0.1:x", "--device", "nvidia-l4"], "the address of a cluster is HOST:PORT"),
        (["run", "--address", "127.0.0.1:1", "--device", "no-such"], "no-such"),
        (["run", "--address", "127.0.0.1:1", "--device", "nvidia-l4", "--rows", "0"], "--rows"),
        (["run", "--address", "127.0.0.1:1", "--device", "amd-epyc-9005-vm-2c", "--families", "nope"], "nope"),
        (["start", "--device", "no-such"], "no-such"),
        (["start", "--port", "1"], "--port"),
        (["start", "--device-file", "/no/such.yaml"], "/no/such.yaml"),
    ],
)
def test_what_the_commands_refuse(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    assert main(["fleet", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", ["devices", "run"])
def test_without_ray_one_sentence_says_what_to_install(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["fleet", command, "--address", "127.0.0.1:1"]) == 2
    assert "`kernelcast measure fleet` needs ray; run: pip install 'kernelcast[fleet]'" in capsys.readouterr().err


@contextlib.contextmanager
def server(answer: bytes) -> Iterator[str]:
    """Something that is no Ray: it accepts, sends `answer` if there is one, and keeps silent."""
    with socket.create_server(("127.0.0.1", 0)) as listening, contextlib.ExitStack() as remaining:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    remaining.enter_context(listening.accept()[0]).sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("answer", "words"),
    [(b"", "(timed out)"), (b"HTTP/1.1 400 Bad Request\r\n", "(what answers there is no Ray)")],
)
def test_what_is_no_ray_is_told_in_bounded_time(answer: bytes, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelcast.collectors.fleet.cluster._ANSWER_S", 60.0 if answer else 0.2)
    monkeypatch.setitem(sys.modules, "ray", Mock(**{"is_initialized.return_value": False}))
    with server(answer) as address, pytest.raises(FleetError, match="no Ray cluster to be used at") as caught:
        connect(address)
    assert words in str(caught.value)
    sys.modules["ray"].init.assert_not_called()


def test_other_versions_on_the_cluster_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    message = (
        "Version mismatch: The cluster was started with:\n    Ray: 2.59.1\n    Python: 3.12.3\n"
        "This process on 10.0.0.2 was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n"
    )
    fake = Mock(**{"is_initialized.return_value": False, "init.side_effect": RuntimeError(message)})
    monkeypatch.setitem(sys.modules, "ray", fake)
    settings = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
    with server(settings) as address, pytest.raises(FleetError) as caught:
        connect(address)
    assert str(caught.value) == (
        f"the cluster at {address} runs Ray 2.59.1 on Python 3.12.3, this machine Ray 2.60.0 on Python 3.11.7; install the "
        "same versions on all machines"
    )


def test_a_cluster_that_falls_silent_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelcast.collectors.fleet.cluster._EVERY_S", 0.01)
    with server(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))) as address, Watch(address, 60.0) as watch:
        assert watch.answers()
        assert not watch.lost
    # One that nobody listens at any more.
    with Watch(address, 0.05) as watch:
        wait_for(lambda: watch.lost)
        assert not watch.answers()


def test_the_command_line_starts_without_ray() -> None:
    code = "import sys; import kernelcast.cli, kernelcast.collectors.fleet.driver; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], cwd="/", timeout=240).returncode == 0


def test_an_actor_holds_its_devices_lock_and_answers_plain_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    monkeypatch.setenv("FLEET_TEST_DIR", str(tmp_path))
    request = asdict(Request("left", lock_s=0.0, maker="fake_device:open_fake"))
    actor, second = DeviceActor(request), DeviceActor(request)
    messages = actor.open()
    assert messages["facts"]["device"] == "left"
    assert "left is being measured by process" in second.open()["refused"]
    messages = actor.measure(("torch", 1), [spec_row(spec) for spec in cases(1, 4)])
    assert [row["status"] for row in messages["rows"]] == ["ok"] * 3
    assert {"lost", "not_started"}.isdisjoint(json.loads(json.dumps(messages)))
    actor.close()
    assert "refused" not in second.open()
    second.close()


def test_an_actor_refuses_what_its_machine_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    texts = (device_file("left"),)
    assert (
        "is labelled left, but its processor"
        in DeviceActor(asdict(Request("left", device_files=texts))).open()["refused"]
    )
    assert "left" in DeviceActor(asdict(Request("left"))).open()["refused"]
    monkeypatch.setattr("kernelcast.collectors.fleet.actor.gpu_reader", Mock(side_effect=NvmlMissingError("no driver")))
    assert DeviceActor(asdict(Request("nvidia-l4"))).open() == {
        "refused": "the node is labelled nvidia-l4, but no driver"
    }
    board = Mock(**{"name.return_value": "NVIDIA A40"})
    monkeypatch.setattr("kernelcast.collectors.fleet.actor.gpu_reader", Mock(return_value=board))
    assert (
        "GPU 0 calls itself 'NVIDIA A40', which is nvidia-a40"
        in DeviceActor(asdict(Request("nvidia-l4"))).open()["refused"]
    )
