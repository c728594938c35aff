"""Metrics of several workers: summed over all of them, never going back, and kept when a worker dies."""

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
from kernelcast.api.telemetry.metrics import FOLDER_VARIABLE, shared_metrics
from kernelcast.features.errors import SpecError

HEALTH = 'kernelcast_http_requests_total{method="GET",route="/healthz",status="200"}'

# One worker: counts what it is told to, line by line, and prints its view of all metrics after each line.
WORKER = """
import json, sys
from kernelcast.api.telemetry.metrics import Metrics
metrics = Metrics(lambda: ("m", "1"))
for line in sys.stdin:
    for _ in range(int(line)):
        metrics.count_request("/healthz", "GET", 200, 0.001, None, 10)
    metrics.in_flight.inc()
    print(json.dumps(metrics.text().decode()), flush=True)
"""


def values(text: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


class Worker:
    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=os.environ | {FOLDER_VARIABLE: str(folder)})  # fmt: skip

    def count(self, requests: int) -> dict[str, float]:
        """Count that many requests; all metrics as this worker reports them then."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{requests}\n")
        self.process.stdin.flush()
        return values(json.loads(self.process.stdout.readline()))

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Worker]]:
    workers = [Worker(tmp_path), Worker(tmp_path)]
    yield workers
    for worker in workers:
        worker.end()


def test_counts_add_up_whichever_worker_is_asked(two):
    two[0].count(3)
    result = two[1].count(4)
    assert result[HEALTH] == 7
    assert result['kernelcast_http_request_seconds_count{route="/healthz"}'] == 7
    assert result['kernelcast_http_request_seconds_bucket{le="0.001",route="/healthz"}'] == 7
    assert result["kernelcast_http_requests_in_flight"] == 2
    assert result["kernelcast_model_loaded"] == 1
    assert result['kernelcast_model_info{name="m",version="1"}'] == 1
    again = two[0].count(0)
    assert again[HEALTH] == 7
    assert again["process_resident_memory_bytes"] > 20 << 20
    assert again["process_max_fds"] <= 2**20


def test_counts_never_go_back(two):
    last = 0.0
    for number in range(1, 21):
        now = two[number % 2].count(number)[HEALTH]
        assert now == last + number
        last = now


def test_a_dead_worker_leaves_its_counts_and_not_its_gauges(two):
    two[0].count(5)
    assert two[1].count(2)["kernelcast_http_requests_in_flight"] == 2
    two[0].end()
    result = two[1].count(0)
    assert result[HEALTH] == 7
    assert result["kernelcast_http_requests_in_flight"] == 2  # two of the living one
    assert result["process_start_time_seconds"] > 0


def test_a_shared_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    with pytest.raises(SpecError, match="KERNELCAST_METRICS_DIR"), shared_metrics(tmp_path / "none"):
        pass


def test_the_shared_folder_goes_with_the_server(tmp_path):
    with shared_metrics(tmp_path):
        folder = Path(os.environ[FOLDER_VARIABLE])
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o077 == 0
    assert not folder.exists()
    assert FOLDER_VARIABLE not in os.environ


def shipped() -> Path:
    return Path(kernelcast.__file__).parent / "models" / "pretrained" / "kernels"


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """(process number, port) of a server with two workers."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("KERNELCAST_")}
    command = [sys.executable, "-P", "-m", "kernelcast", "serve", "--port", "0", "--json", "--workers", "2"]
    process = subprocess.Popen(command, cwd=tmp_path, env=env | {"KERNELCAST_HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    try:
        assert process.stdout is not None
        yield process.pid, int(json.loads(process.stdout.readline())["address"].rpartition(":")[2])
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert not list(tmp_path.glob("kernelcast-metrics-*"))


def worker_pids(folder: Path) -> list[int]:
    return sorted(int(path.stem.rpartition("_")[2]) for path in folder.glob("kernelcast-metrics-*/counter_*.db"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.skipif(not (shipped() / "manifest.json").exists(), reason="models/pretrained/kernels is not there yet")
def test_two_real_workers_count_as_one_and_a_killed_one_is_remembered(service, tmp_path):
    _, port = service
    deadline = time.monotonic() + 60
    while len(worker_pids(tmp_path)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for _ in range(40):
        assert get(port, "/healthz")[0] == 200
    text = get(port, "/metrics")[1]
    assert values(text)[HEALTH] == 40
    assert re.search(r'kernelcast_model_info\{name="pretrained",version="[0-9a-f]{12}"\} 1', text)
    os.kill(worker_pids(tmp_path)[0], signal.SIGKILL)
    while len(worker_pids(tmp_path)) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert values(get(port, "/metrics")[1])[HEALTH] == 40
