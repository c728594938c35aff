"""The usage log of a real service of several workers, from the option of the command line to what a night reads."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from kernelcast.datasets.records.usage_log import read_usage_log
from kernelcast.features.kernel import KernelSpec

pytestmark = pytest.mark.slow

Serve = Callable[..., AbstractContextManager[int]]
GEMM = {"family": "gemm", "device": "h200-sxm", "dtype": "bf16", "sizes": {"m": 17, "n": 4096, "k": 4096}}
ASKED = 40


def ask(port: int) -> None:
    # Every request on a connection of its own: the workers take turns.
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/predict", json.dumps(GEMM).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert answer.status == 200


def test_what_all_workers_were_asked_is_there_when_they_ended(serving: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "usage"
    with serving(tmp_path, None, "--usage-log", str(folder), "--workers", "2") as port:
        for _ in range(ASKED):
            ask(port)
    result = read_usage_log(folder)
    spec = KernelSpec.of("gemm", "bf16", m=17, n=4096, k=4096)
    assert result.by_device == {"nvidia-h200-sxm-141gb": {spec: float(ASKED)}}
    assert (result.damaged, result.refused) == (0, [])
    assert 1 <= result.files <= 2
    # Each worker names its files by itself; none of them is half-written.
    assert len({path.name for path in folder.iterdir()}) == result.files


def test_a_folder_it_may_not_write_keeps_nobody_from_answering(serving: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "usage"
    if os.geteuid():
        folder.mkdir(mode=0o500)
    else:
        folder.write_text("in the way")
    with serving(tmp_path, {"KERNELCAST_USAGE_LOG": str(folder)}) as port:
        ask(port)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
            assert "kernelcast_usage_kernels_total 1.0" in answer.read().decode()


@pytest.mark.parametrize("given", ["0", "soon"])
def test_days_that_are_none_are_refused_at_the_start(given: str, tmp_path: Path) -> None:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-P", "-m", "kernelcast", "serve", "--port", "0"], capture_output=True, text=True, timeout=240,
        cwd=tmp_path, env=os.environ | {"KERNELCAST_USAGE_DAYS": given},
    )  # fmt: skip
    assert done.returncode == 2
    assert f"KERNELCAST_USAGE_DAYS is '{given}': it must be a whole number between 1 and 3650" in done.stderr
    assert "Traceback" not in done.stderr
