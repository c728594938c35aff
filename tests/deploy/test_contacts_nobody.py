"""Predicting leaves nothing behind in the home, and no library under it reports to its makers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_PREDICT = """
import kernelcast
answer = kernelcast.predict("gemm", device="amd-epyc-9005-vm-2c", dtype="fp32", m=64, n=64, k=64, threads=1)
assert answer.latency_s.value > 0
import onnxruntime
"""


def test_a_prediction_writes_nothing(tmp_path: Path) -> None:
    # Nothing of CI's own, which such libraries take for a reason to be silent.
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-P", "-c", _PREDICT], cwd=tmp_path, env=env, capture_output=True, text=True,
                          check=False, timeout=240)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == []


def test_a_user_s_own_wish_to_report_is_not_ours(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ORT_DISABLE_TELEMETRY": "0"}
    show = "import kernelcast, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    done = subprocess.run([sys.executable, "-P", "-c", show], cwd=tmp_path, env=env, capture_output=True, text=True, check=True,
                          timeout=240)  # fmt: skip
    assert done.stdout == "1\n"
