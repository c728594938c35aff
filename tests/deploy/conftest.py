"""Real servers for the deployment's tests."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

Serve = Callable[..., contextlib.AbstractContextManager[int]]


@contextlib.contextmanager
def _serving(home: Path, env: Mapping[str, str] | None = None, *options: str) -> Iterator[int]:
    """The port of `kernelcast serve` with the shipped model, or the champion in `home`."""
    remaining = {name: value for name, value in os.environ.items() if not name.startswith("KERNELCAST_")}
    # What it logs goes into a file: nobody reads a pipe while it serves, and a full one would stop it.
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kernelcast", "serve", "--port", "0", "--json", *options],
            cwd=home, env=remaining | {"KERNELCAST_HOME": str(home)} | dict(env or {}),
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                log.seek(0)
                pytest.fail(f"the server did not start: {log.read()[-2000:]}")
            yield int(json.loads(line)["address"].rpartition(":")[2])
        finally:
            process.terminate()
            process.communicate(timeout=120)


@pytest.fixture(scope="session")
def serving() -> Serve:
    """Starts `kernelcast serve` as a process of its own: `with serving(home, env, *options) as port`."""
    return _serving
