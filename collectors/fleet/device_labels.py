"""Which nodes of a cluster have which devices: a custom resource `device:NAME` counts them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...features.device import Catalogue, Device, known_by, known_machine, machine_id, machine_name
from ..meters.nvml import NvmlMissingError, NvmlReader, nvml_reader
from .ray_setup import NO_AMDSMI, QUIET, amdsmi_is_broken

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


class NotThatDeviceError(Exception):
    """The machine has another device than its label says; the message is one sentence."""


def check_cpu(device: Device, known: Catalogue) -> None:
    """That this machine's processor is `device`.

    Raises:
        NotThatDeviceError: it is another one, or in no device file.
    """
    actual = known_machine(known)
    if actual is None or actual.name != device.name:
        what = "in no device file" if actual is None else actual.name
        raise NotThatDeviceError(
            f"the node is labelled {device.name}, but its processor ({machine_name()}, {machine_id()}) is {what}; "
            "start it with the line that `kernelcast fleet start` prints there"
        )


def check_gpu(device: Device, index: int, known: Catalogue) -> NvmlReader:
    """That GPU `index` of this machine is `device`; what reads its board.

    Raises:
        NotThatDeviceError: it is another one, in no device file, or the driver does not say.
    """
    try:
        reader = nvml_reader(index)
    except NvmlMissingError as missing:
        raise NotThatDeviceError(f"the node is labelled {device.name}, but {missing}") from missing
    name = reader.name()
    actual = None if name is None else known_by(name, known)
    if actual is None or actual.name != device.name:
        what = "in no device file" if actual is None else actual.name
        raise NotThatDeviceError(
            f"the node is labelled {device.name}, but GPU {index} calls itself {name!r}, which is {what}; start it with the "
            "line that `kernelcast fleet start` prints there"
        )
    return reader
