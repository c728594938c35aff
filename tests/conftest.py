"""A real server process with the shipped model, one for all tests that ask it over the network."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where it listens, such as http://127.0.0.1:41234."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("KERNELCAST_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "kernelcast", "serve", "--port", "0", "--json"], text=True, cwd="/",
        stdout=subprocess.PIPE, env=env | {"KERNELCAST_HOME": str(tmp_path_factory.mktemp("home"))},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
