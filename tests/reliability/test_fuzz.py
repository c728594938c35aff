"""Some hundred generated requests, valid and not, against a real server, and ordinary ones; `make fuzz` sends ten thousand."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import kernelcast
import pytest

pytestmark = pytest.mark.slow

BENCHMARKS = Path(kernelcast.__file__).parent / "benchmarks"
SCRIPT = BENCHMARKS / "fuzz_service.py"


@pytest.mark.skipif(
    find_spec("schemathesis") is None, reason="schemathesis is not installed: pip install 'kernelcast[fuzz]'"
)
def test_every_answer_is_one_the_document_describes(tmp_path):
    out = tmp_path / "report.json"
    command = [
        sys.executable,
        "-P",
        str(SCRIPT),
        "--requests",
        "300",
        "--seed",
        "7",
        "--phases",
        "fuzzing",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    report = json.loads(out.read_text())
    assert report["requests"] >= 300
    assert report["operations"] >= 12
    assert (report["failures"], report["errors"], report["tracebacks"]) == ([], [], 0)


def test_ordinary_large_kernels_and_programs_are_answered_on_every_route_and_device():
    # A round asks each kernel of every device of the catalogue: 8,000 requests are some forty rounds.
    command = [sys.executable, "-P", str(BENCHMARKS / "fuzz_ordinary.py"), "--requests", "8000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    answers = json.loads(done.stdout)["answers"]
    routes = ("compare", "predict", "predict/mlir", "predict/model", "rank", "roofline", "sweep")
    assert min(answers[f"/v1/{route} 200"] for route in routes) >= 20
