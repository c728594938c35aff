"""The Ray cluster, and which of its nodes have which devices: a custom resource `device:NAME` counts them.

Ray is imported late and quiet: no usage statistics, no dashboard, no log of the nodes on the terminal.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import shlex
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..campaign import CampaignError

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Without it Ray hides the GPUs from an actor that asks for none by Ray's own count: devices are asked for by label here.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Environment of the driver and of every node (docs.ray.io: usage statistics; accelerators)."""

_ANSWER_S = 5.0
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_SETTINGS = 4
"""How a client greets an HTTP/2 server, gRPC's too, and the kind of frame that must come back first (RFC 9113, section 3.4)."""
_VERSIONS = re.compile(r"Ray: (\S+)\s+Python: (\S+)")
NO_AMDSMI = Path(__file__).parent / "no_amdsmi"


class FleetError(CampaignError):
    """The fleet cannot be used; the message is one sentence that says why and what to do."""


@cache
def amdsmi_is_broken() -> bool:
    """Whether `amdsmi` is installed but fails for want of ROCm's library.

    Ray 2.60 asks it for GPUs whenever it is imported, and expects nothing worse than an ImportError; some
    versions raise KeyError instead, and no Ray process would start.
    """
    if find_spec("amdsmi") is None:
        return False
    try:
        # It prints what it misses.
        with contextlib.redirect_stdout(io.StringIO()):
            import amdsmi  # noqa: F401
    except ImportError:
        return False
    except (KeyError, OSError, AttributeError):
        return True
    return False


def load_ray() -> Any:
    """The `ray` package.

    Raises:
        ImportError: it is not installed.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if "ray" in sys.modules or not amdsmi_is_broken():
        import ray

        return ray
    # None makes an import fail with ImportError, which Ray understands.
    sys.modules["amdsmi"] = None  # type: ignore[assignment]
    try:
        import ray
    finally:
        del sys.modules["amdsmi"]
    return ray


def connect(address: str | None) -> Any:
    """Ray, connected to the cluster at `HOST:PORT`, by default RAY_ADDRESS; the same cluster may be connected to again.

    Raises:
        FleetError: nothing answers there, this machine is not a node of it, or it runs another version.
        ImportError: Ray is not installed.
    """
    ray = load_ray()
    address = address_of(address)
    if ray.is_initialized():
        return ray
    try:
        # Ray itself would try for minutes and print what it tries.
        greet(address)
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError) as error:
        raise FleetError(_why_not(address, error)) from error
    _silence(ray)
    return ray


def disconnect(ray: Any) -> None:
    """Leave a cluster that is gone: Ray would end this process after a minute without it. Waits for some seconds at most."""
    leaving = threading.Thread(target=ray.shutdown, name="leave the cluster", daemon=True)
    leaving.start()
    leaving.join(_ANSWER_S)


def address_of(address: str | None) -> str:
    """The address given, by default RAY_ADDRESS.

    Raises:
        FleetError: it is not HOST:PORT.
    """
    address = address or os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in address:
        raise FleetError(f"the address of a cluster is HOST:PORT, such as 10.0.0.1:6379, not {address!r}")
    return address


def greet(address: str) -> None:
    """See whether a gRPC server, as a cluster's first node is one, answers at an address within some seconds.

    Raises:
        OSError: none does.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=_ANSWER_S) as connection:
        # Inside TLS nothing but Ray can tell.
        if os.environ.get("RAY_USE_TLS", "0") != "0":
            return
        connection.sendall(_HELLO)
        heard = connection.recv(9)
    if len(heard) < 4 or heard[3] != _SETTINGS:
        raise ConnectionError("what answers there is no Ray")


def _why_not(address: str, error: Exception) -> str:
    versions = _VERSIONS.findall(str(error)) if "Version mismatch" in str(error) else []
    if len(versions) == 2:
        theirs, ours = (f"Ray {ray} on Python {python}" for ray, python in versions)
        return f"the cluster at {address} runs {theirs}, this machine {ours}; install the same versions on all machines"
    words = " ".join(str(error).split())[:200]
    return (
        f"no Ray cluster to be used at {address} ({words}); start this machine's node first: `kernelcast measure fleet start` "
        "prints the line"
    )


def _silence(ray: Any) -> None:
    """Keep what Ray has to say of its nodes off the terminal; what matters of it is in the summary.

    `log_to_driver=False` leaves out what actors print, but lines such as "(raylet) A worker died or was killed" are
    written to standard output all the same, in the midst of a command's answer. No setting of Ray 2.60 stops them but the
    one its debugger uses.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    worker = ray._private.worker
    if hasattr(worker, "_worker_logs_enabled"):
        worker._worker_logs_enabled = False


_EVERY_S = 2.0


@dataclass(slots=True)
class Watch:
    """Greets the cluster's first node every other second, in a thread, as long as the `with` block lasts.

    Attributes:
        address: HOST:PORT of the node.
        lost_after_s: Seconds without an answer after which it counts as lost.
        lost: Whether it is lost.
    """

    address: str
    lost_after_s: float
    lost: bool = False
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watch:
        threading.Thread(target=self._run, name="cluster watch", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def answers(self) -> bool:
        """Whether the cluster can be asked something now. Without this look, Ray would wait for the answer for a minute."""
        if self.lost:
            return False
        try:
            greet(self.address)
        except OSError:
            return False
        return True

    def _run(self) -> None:
        heard = time.monotonic()
        while not self._over.wait(_EVERY_S):
            try:
                greet(self.address)
            except OSError:
                # For good: who is told so has begun to give up.
                self.lost |= time.monotonic() - heard >= self.lost_after_s
            else:
                heard = time.monotonic()


PREFIX = "device:"
OBJECT_STORE_B = 80 * 10**6
"""Rows are small and go inline: the least that Ray takes is enough (75 MiB, ray_constants)."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One device of one node.

    Attributes:
        device: Its name.
        node_id: Ray's id of the node.
        host: Host name of the node.
        index: Its number among those of one name on that node, as CUDA counts.
    """

    device: str
    node_id: str
    host: str
    index: int = 0

    def __str__(self) -> str:
        return f"{self.device} on {self.host}" + (f" (number {self.index})" if self.index else "")


def label(device: str) -> str:
    """The resource that a node with this device has."""
    return PREFIX + device


def start_line(devices: Mapping[str, int], address: str | None = None, port: int = 6379) -> str:
    """The `ray start` command line of a node with these devices (name to count); of the first node without `address`."""
    environment = dict(QUIET)
    if amdsmi_is_broken():
        environment["PYTHONPATH"] = str(NO_AMDSMI)
    resources = json.dumps({label(name): count for name, count in sorted(devices.items())})
    where = [f"--address={address}"] if address else ["--head", f"--port={port}", "--include-dashboard=false"]
    return " ".join([
        *(f"{name}={shlex.quote(value)}" for name, value in environment.items()), "ray", "start", *where,
        "--disable-usage-stats", "--num-cpus=1", "--num-gpus=0", f"--object-store-memory={OBJECT_STORE_B}",
        f"--resources={shlex.quote(resources)}",
    ])  # fmt: skip


def instances(ray: Any) -> list[Instance]:
    """The devices of the cluster's living nodes, by name, host and number."""
    labelled = [
        Instance(name.removeprefix(PREFIX), node["NodeID"], node["NodeManagerHostname"], index)
        for node in ray.nodes() if node["Alive"]
        for name, count in node["Resources"].items() if name.startswith(PREFIX)
        for index in range(int(count))
    ]  # fmt: skip
    return sorted(labelled, key=lambda instance: (instance.device, instance.host, instance.node_id, instance.index))


def is_alive(ray: Any, node_id: str) -> bool:
    """Whether the cluster takes the node for alive."""
    return any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes())


def is_held(ray: Any, device: str) -> bool:
    """Whether actors hold every device of this name."""
    return float(ray.available_resources().get(label(device), 0)) < 1
