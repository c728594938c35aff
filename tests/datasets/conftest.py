from __future__ import annotations

import logging
import os
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.store.location import LocalLocation
from kernelcast.datasets.store.store import Store
from kernelcast.features.kernel import KernelSpec

Make = Callable[..., Measurement]


def make_measurement(m: int = 64, **changes: Any) -> Measurement:
    """A plausible row: a small fp32 gemm on a device the catalogue does not know, 1 ms."""
    spec = changes.pop("spec", None) or KernelSpec.of("gemm", changes.pop("dtype", "fp32"), m=m, n=64, k=64)
    given: dict[str, Any] = {"device": "my-machine", "status": "ok", "block": "b1", "latency_s": 1e-3}
    return Measurement(spec=spec, **given | changes)


@pytest.fixture
def make() -> Make:
    return make_measurement


@pytest.fixture
def provenance() -> Provenance:
    return Provenance("b1", {"host": "test", "driver": "1.0"})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "measurements", lower_bounds=lambda specs, devices: np.full(len(specs), np.nan))


class KilledError(BaseException):
    """The process is gone: nothing after it happens, no clean-up either."""


class DyingLocation:
    """A location whose process is killed when it is about to change the store for the `steps + 1`-th time."""

    killed = KilledError

    def __init__(self, root: Any, steps: int) -> None:
        self._root, self.steps = root, steps

    def __getattr__(self, name: str) -> Any:
        result = getattr(self._root, name)
        if name not in ("write", "move"):
            return result

        def step(*given: Any) -> Any:
            if self.steps <= 0:
                raise KilledError
            self.steps -= 1
            return result(*given)

        if name == "write" and not isinstance(self._root, LocalLocation):
            # An object store writes one file after the other.
            return lambda files: [step([item]) for item in files]
        return step


@pytest.fixture
def dying() -> type[DyingLocation]:
    return DyingLocation


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of a server of this machine that speaks S3's protocol."""
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    _forget_clients()
    yield f"http://{host}:{port}"
    _forget_clients()
    server.stop()


def _forget_clients() -> None:
    """Clients are kept by their arguments, which the address of the server is none of."""
    import fsspec

    fsspec.filesystem("s3", use_listings_cache=False).clear_instance_cache()


@pytest.fixture
def s3_bucket(s3_server: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new bucket of it, which the environment leads to."""
    given = {"AWS_ENDPOINT_URL": s3_server, "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "hidden-key",
             "AWS_DEFAULT_REGION": "us-east-1"}  # fmt: skip
    with mock.patch.dict(os.environ, given):
        bucket = f"bucket-{abs(hash(request.node.nodeid)):x}"
        # By hand: a client of its own for each test would take longer than most tests.
        urllib.request.urlopen(urllib.request.Request(f"{s3_server}/{bucket}", method="PUT")).close()
        yield bucket


@pytest.fixture(params=["folder", "memory", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place for a store, of each kind."""
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path / "home"))
    if request.param == "folder":
        return (tmp_path / "measurements").as_uri()
    if request.param == "memory":
        return f"memory://{tmp_path.name}"
    return f"s3://{request.getfixturevalue('s3_bucket')}/team/measurements"


@pytest.fixture
def open_store() -> Callable[[str], Store]:
    return lambda root: Store(root, lower_bounds=lambda specs, devices: np.full(len(specs), np.nan))
