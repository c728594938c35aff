"""`kernelcast serve` where the environment asks for an engine that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("kernelcast")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_engine_that_is_none_ends_it_at_once(workers: str) -> None:
    env = os.environ | {"KERNELCAST_ENGINE": "abacus"}
    command = [str(PROGRAM), "serve", "--port", "0", "--workers", workers]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 2
    assert "KERNELCAST_ENGINE is 'abacus'; it can be auto, native, onnxruntime" in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
