"""Which nodes of a cluster have which devices: a custom resource `device:NAME` counts them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .ray_library import NO_AMDSMI, QUIET, amdsmi_is_broken

PREFIX = "device:"
OBJECT_STORE_B = 80 * 10**6
"""Rows are small and go inline: the least that Ray takes is enough (75 MiB, ray_constants)."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One device of one node; `index` counts those of one name on that node, as CUDA does."""

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
    found = [
        Instance(name.removeprefix(PREFIX), node["NodeID"], node["NodeManagerHostname"], index)
        for node in ray.nodes() if node["Alive"]
        for name, count in node["Resources"].items() if name.startswith(PREFIX)
        for index in range(int(count))
    ]  # fmt: skip
    return sorted(found, key=lambda one: (one.device, one.host, one.node_id, one.index))


def is_alive(ray: Any, node_id: str) -> bool:
    """Whether the cluster takes the node for alive."""
    return any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes())


def is_held(ray: Any, device: str) -> bool:
    """Whether actors hold every device of this name."""
    return float(ray.available_resources().get(label(device), 0)) < 1
