"""Several workers' counts as one: nothing is lost, told twice or goes back, whichever worker is asked."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import kernelcast
import pytest
from kernelcast.api.metrics import Metrics
from kernelcast.api.metrics_files import common_folder
from kernelcast.api.settings import Settings
from kernelcast.features.errors import SpecError

NO_PROCESS = 2**22 + 1
"""Above the largest process number Linux gives."""


def told(text: bytes | str) -> dict[str, float]:
    lines = (text if isinstance(text, str) else text.decode()).splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if not name.startswith("#")
    }


HEALTH = 'kernelcast_http_requests_total{method="GET",route="/healthz",status="200"}'


def ask(metrics: Metrics, times: int) -> None:
    for _ in range(times):
        metrics.request("/healthz", "GET", 200, 0.001, None, 10)


def die(folder: Path, number: int = 0) -> None:
    """Make the files of workers that live in this process, or one of them, those of a process that is gone."""
    for path in sorted(folder.glob(f"worker-{os.getpid()}-*.json"))[number:]:
        path.rename(folder / path.name.replace(str(os.getpid()), str(NO_PROCESS)))


def test_counts_add_up_and_states_do_as_they_should(tmp_path):
    one = Metrics(tmp_path, lambda: ("m", "1"))
    two = Metrics(tmp_path, lambda: None)
    ask(one, 3)
    ask(two, 4)
    one.in_flight, two.in_flight = 2, 5
    one.predictions([("gemm", "h100", True)] * 6)
    assert two.shared is not None
    two.shared.write()
    found = told(one.text())
    assert found[HEALTH] == 7
    assert found['kernelcast_http_request_seconds_count{route="/healthz"}'] == 7
    assert found['kernelcast_http_request_seconds_bucket{le="0.001",route="/healthz"}'] == 7
    assert found["kernelcast_http_requests_in_flight"] == 7
    assert found['kernelcast_predictions_total{device="h100",family="gemm",in_domain="true"}'] == 6
    assert found["kernelcast_model_loaded"] == 0
    assert found['kernelcast_model_info{name="m",version="1"}'] == 1
    other = told(two.text())
    assert {name: other[name] for name in found if not name.startswith("process_")} == {
        name: value for name, value in found.items() if not name.startswith("process_")
    }


def test_what_was_told_never_goes_back_though_another_is_asked(tmp_path):
    one, two = Metrics(tmp_path), Metrics(tmp_path)
    last = 0.0
    for number in range(1, 21):
        ask(one, number)
        ask(two, 3)
        now = told((one, two)[number % 2].text())[HEALTH]
        assert now >= last
        last = now
    one.text()
    assert told(two.text())[HEALTH] == sum(range(21)) + 60


def test_the_dead_leave_their_counts_and_not_their_states(tmp_path):
    dead, alive = Metrics(tmp_path), Metrics(tmp_path)
    ask(dead, 5)
    dead.in_flight = 9
    assert dead.shared is not None
    dead.shared.write()
    die(tmp_path)
    ask(alive, 2)
    for _ in range(3):
        found = told(alive.text())
        assert found[HEALTH] == 7
        assert found["kernelcast_http_requests_in_flight"] == 0
    assert len(list(tmp_path.glob("worker-*"))) == 1
    again = Metrics(tmp_path)
    assert told(again.text())[HEALTH] == 7


def test_a_clearing_up_that_was_cut_short_counts_nothing_twice(tmp_path):
    dead, alive = Metrics(tmp_path), Metrics(tmp_path)
    ask(dead, 5)
    assert dead.shared is not None
    dead.shared.write()
    die(tmp_path)
    (lying,) = tmp_path.glob(f"worker-{NO_PROCESS}-*")
    content = lying.read_bytes()
    assert told(alive.text())[HEALTH] == 5
    lying.write_bytes(content)
    assert told(alive.text())[HEALTH] == 5
    assert not lying.exists()


def test_a_folder_that_is_gone_leaves_this_worker_s_own(tmp_path, caplog):
    metrics = Metrics(tmp_path / "never made")
    ask(metrics, 2)
    assert told(metrics.text())[HEALTH] == 2
    assert "cannot be written" in caplog.text


def test_a_common_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    with (
        pytest.raises(SpecError, match="KERNELCAST_METRICS_DIR"),
        common_folder(Settings(metrics_dir=tmp_path / "none")),
    ):
        pass


def test_the_common_folder_goes_with_the_server():
    with common_folder(Settings()) as settings:
        assert settings.metrics_dir is not None
        assert settings.metrics_dir.is_dir()
        assert settings.metrics_dir.stat().st_mode & 0o077 == 0
    assert not settings.metrics_dir.exists()


def shipped() -> Path:
    return Path(kernelcast.__file__).parent / "models" / "pretrained"


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def two_workers(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """(process number, port) of a server with two workers that both answer."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("KERNELCAST_")}
    command = [sys.executable, "-P", "-m", "kernelcast", "serve", "--port", "0", "--json", "--workers", "2"]
    process = subprocess.Popen(command, cwd=tmp_path, env=env | {"KERNELCAST_HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.pid, int(json.loads(process.stdout.readline())["address"].rpartition(":")[2])
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert not list(tmp_path.glob("kernelcast-metrics-*"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(not (shipped() / "manifest.json").exists(), reason="models/pretrained is not there yet")
def test_two_real_workers_count_as_one_and_a_killed_one_is_remembered(two_workers, tmp_path):
    pid, port = two_workers
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("kernelcast-metrics-*/worker-*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    for _ in range(40):
        assert get(port, "/healthz")[0] == 200
    # Each worker that is asked writes what it has counted; the other's last requests follow within seconds.
    while told(get(port, "/metrics")[1]).get(HEALTH) != 40:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    text = get(port, "/metrics")[1]
    assert re.search(r'kernelcast_model_info\{name="pretrained",version="[0-9a-f]{12}"\} 1', text)
    os.kill(children(pid)[0], signal.SIGKILL)
    while len(children(pid)) == 2 and told(get(port, "/metrics")[1])[HEALTH] == 40 and time.monotonic() < deadline:
        if list(tmp_path.glob("kernelcast-metrics-*/ended.json")):
            break
        time.sleep(0.1)
    assert told(get(port, "/metrics")[1])[HEALTH] == 40
    assert list(tmp_path.glob("kernelcast-metrics-*/ended.json"))
