"""One cluster of two nodes for all tests here: starting it takes ten seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

# The nodes' workers import the same modules by the same names.
sys.path.insert(0, str(Path(__file__).parent))

from local_cluster import LocalCluster, wait_for


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    if find_spec("ray") is None:
        pytest.skip("needs the extra fleet")
    from kernelcast.collectors.fleet.cluster import connect, instances

    made = LocalCluster()
    env = pytest.MonkeyPatch()
    env.setenv("RAY_AUTH_MODE", "disabled")
    try:
        made.add("first", {"left": 1, "twin": 1, "spare": 1, "mislabelled": 1})
        made.add("second", {"right": 1, "twin": 1, "always-hangs": 1})
        ray = connect(made.address)
        wait_for(lambda: len(instances(ray)) == 7)
        yield made
        ray.shutdown()
    finally:
        made.close()
        env.undo()
