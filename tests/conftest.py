"""A real server process with the shipped model, one for all tests that ask it over the network."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

# Ctrl-C is tested by sending it; a parent that ignores it (a job in the background) hands that on to every child.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection() -> None:
    """Collecting makes millions of objects that all stay: looking for garbage among them is a fifth of the time it takes."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was collected stays to the end; later looks for garbage leave it out."""
    gc.freeze()
    gc.enable()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes may hold the second of the call (gzip's header); no test is named by them, so that all workers agree."""
    return argname if isinstance(val, bytes) else None


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
        process.communicate(timeout=120)
