"""Times of collectives: a latency, a bandwidth, and a term between them, by library, operation, interconnect and device.

An operation that `n` devices of one machine do on `s` bytes takes

    t = L + x + c·sqrt(L·x),   x = f(n)·s / B,   L = latency·(n / 2)^a,   B = efficiency·link·(n / 2)^b

where f(n)·s is what each device sends at least (2(n - 1)/n of an all-reduce, (n - 1)/n of the others), `link` the bandwidth of
a device's links in one direction, and c ≥ 0 the loss where neither term dominates. c, a and b are shared by the devices of one
kind of interconnect; latency and efficiency are a device's own. A device never measured takes the means of the others. The form
is Hockney's (Parallel Computing 20, 1994) with the term between; the numbers come from `benchmarks/collectives.py`.

An engine's own all-reduce ends at a size, above which it calls NCCL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ....features.batch.cases import Floats
from ....features.device import Device
from ....features.errors import SpecError
from ....models.predict.prediction import Interval
from ...architectures.plan import Collective

LAWS = Path(__file__).with_name("collectives.yaml")

FACTORS: Mapping[str, tuple[float, float]] = {
    "all_reduce": (2.0, 2.0), "all_gather": (1.0, 1.0), "reduce_scatter": (1.0, 1.0), "all_to_all": (1.0, 1.0),
}  # fmt: skip
"""By operation, u and v of the bytes that each device sends: u·(n - 1)/n of the size (NCCL's doc/PERFORMANCE.md, where the size
of an all-gather and a reduce-scatter is that of the whole)."""

SWITCHED = -0.25
"""b of every law over PCIe. The one machine whose collectives were measured shares a host bridge (b of -2: of 8 devices each
gets a sixteenth of the bandwidth of one of two), and published services do not run on its like: TensorRT-LLM's throughputs on
4 and 8 L40S (`docs/source/performance/perf-overview.md`, releases 0.8 to 0.17) give this b together; with it those on 8 err by
some 20 % instead of 85 %, so they do not judge it."""
KINDS = (*FACTORS, "send")
ANY = "any"
"""In place of an architecture that was not measured."""
INTERCONNECTS: Mapping[str, str] = {"fabric": "fabric_bandwidth_b_per_s", "pcie": "pcie_bandwidth_b_per_s"}
"""By kind (NVLink and Infinity Fabric, or the slot), the fact of a device with its bandwidth in one direction; faster first."""


@dataclass(frozen=True, slots=True)
class CollectiveLaw:
    """One operation of one library over one kind of interconnect.

    Attributes:
        curvature: c of the formula.
        latency_exponent: a.
        bandwidth_exponent: b.
        latency_s: By device, L of two devices.
        efficiency: By device, the share of its links' bandwidth that two devices reach.
        spread: 90 % of ln errors of measured devices are within it.
        spread_unseen: … of devices left out.
    """

    curvature: float
    latency_exponent: float
    bandwidth_exponent: float
    latency_s: Mapping[str, float]
    efficiency: Mapping[str, float]
    spread: float
    spread_unseen: float

    def seconds(self, kind: str, device: str, link_b_per_s: float, ranks: int, size_b: Floats) -> tuple[Floats, float]:
        """Times of one operation on `size_b` bytes, shape `(n,)`, and the log half-width of their 90 % interval."""
        seen = device in self.latency_s
        latency_s = self.latency_s[device] if seen else _geometric_mean(self.latency_s.values())
        efficiency = self.efficiency[device] if seen else _geometric_mean(self.efficiency.values())
        latency_s *= (ranks / 2) ** self.latency_exponent
        bandwidth = efficiency * link_b_per_s * (ranks / 2) ** self.bandwidth_exponent
        sent_s = sent_b(kind, ranks, size_b) / bandwidth
        return latency_s + sent_s + self.curvature * np.sqrt(latency_s * sent_s), (
            self.spread if seen else self.spread_unseen
        )


def sent_b(kind: str, ranks: int, size_b: Floats) -> Floats:
    """Bytes that each device sends at least."""
    return FACTORS[kind][0] * (ranks - 1) / ranks * size_b


def _geometric_mean(values: Any) -> float:
    return float(np.exp(np.mean(np.log(list(values)))))


@dataclass(frozen=True, slots=True)
class CollectiveLaws:
    """All laws, and where an engine's own all-reduce ends.

    Attributes:
        laws: By library, operation and kind of interconnect.
        own_up_to_b: By engine, architecture (or `ANY`) and number of devices (2, 4, 8): the largest all-reduce in bytes that
            the engine does itself.
    """

    laws: Mapping[tuple[str, str, str], CollectiveLaw]
    own_up_to_b: Mapping[str, Mapping[str, Mapping[int, float]]]

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> CollectiveLaws:
        """The laws of what `collectives.yaml` holds."""
        laws = {
            (library, kind, link): CollectiveLaw(
                fields["curvature"], fields["latency_exponent"],
                SWITCHED if link == "pcie" else fields["bandwidth_exponent"],
                {name: item["latency_s"] for name, item in fields["devices"].items()},
                {name: item["efficiency"] for name, item in fields["devices"].items()},
                fields["spread"], fields["spread_unseen"],
            )
            for library, kinds in raw["libraries"].items() for kind, links in kinds.items() for link, fields in links.items()
        }  # fmt: skip
        return cls(laws, raw["own_up_to_b"])

    def seconds(self, device: Device, engine: str, kind: str, ranks: int, size_b: Floats) -> tuple[Floats, Floats]:
        """Times of one operation, and the log half-widths of their 90 % intervals, both of shape `(n,)`.

        Args:
            device: one of the devices, all alike.
            engine: whose all-reduce it is; an engine without one of its own uses NCCL's.
            kind: one of `KINDS`.
            ranks: devices that take part.
            size_b: bytes that each of them holds before it, shape `(n,)`.

        Raises:
            SpecError: the device's links are not known, or so many devices are not linked in one machine.
        """
        link, bandwidth = self._link(device, ranks)
        if kind == "send":
            # Of two devices each sends half of what they gather.
            kind, ranks, whole_b = "all_gather", 2, 2 * size_b
        else:
            whole_b = size_b * ranks if kind == "all_gather" else size_b
        value, spread = self.laws["nccl", kind, link].seconds(kind, device.name, bandwidth, ranks, whole_b)
        spreads = np.full(len(value), spread)
        if kind == "all_reduce" and engine in self.own_up_to_b:
            engines, spread = self.laws[engine, kind, link].seconds(kind, device.name, bandwidth, ranks, whole_b)
            sizes = self.own_up_to_b[engine]
            measured = sizes.get(device.architecture, sizes[ANY])
            ours = whole_b <= measured[min(measured, key=lambda count: abs(np.log(count / ranks)))]
            value, spreads = np.where(ours, engines, value), np.where(ours, spread, spreads)
        return value, spreads

    def together(self, device: Device, items: Iterable[Collective]) -> Interval | None:
        """Seconds of collectives one after the other, as NCCL does them; None where the device's links are not known, or so
        many devices are not linked in one machine.
        """
        value = lower = upper = 0.0
        for item in items:
            try:
                times, spreads = self.seconds(device, "", item.kind, item.ranks, np.array([float(item.size_b)]))
            except SpecError:
                return None
            time_s, factor = item.count * float(times[0]), float(np.exp(spreads[0]))
            value, lower, upper = value + time_s, lower + time_s / factor, upper + time_s * factor
        return Interval(value, lower, upper)

    @staticmethod
    def _link(device: Device, ranks: int) -> tuple[str, float]:
        for kind, fact in INTERCONNECTS.items():
            bandwidth = device.fact(fact)
            if bandwidth is None:
                continue
            if ranks > (most := most_ranks(device)):
                raise SpecError(
                    f"{ranks} devices of {device.name} take part in one operation; times are known within one machine, "
                    f"of up to {most}: give tp·dp of at most {most}, and stages (pp) beyond", field="tp",
                )  # fmt: skip
            return kind, bandwidth
        raise SpecError(
            f"how fast devices of {device.name} are linked is not known; give {' or '.join(INTERCONNECTS.values())} in a "
            "device file (--device-file)", field="device",
        )  # fmt: skip


MOST_DEVICES = 8
"""Devices of one machine, where a device's file says nothing else."""


def most_ranks(device: Device) -> int:
    """Devices that take part in one operation within a machine."""
    return int(device.fact("fabric_devices") or MOST_DEVICES)


@cache
def shipped_laws() -> CollectiveLaws:
    """The laws that ship."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return CollectiveLaws.of(yaml.load(LAWS.read_text(encoding="utf-8"), loader))  # noqa: S506


def collectives_seconds(device: Device, engine: str, collectives: Sequence[Collective]) -> tuple[Floats, Floats]:
    """Time of each of a step's collectives with all its repetitions, and log half-widths, both of shape `(n,)`.

    Raises:
        SpecError: as in `CollectiveLaws.seconds`.
    """
    value, spread = np.zeros(len(collectives)), np.zeros(len(collectives))
    keys = [(item.kind, item.ranks) for item in collectives]
    for kind, ranks in dict.fromkeys(keys):
        rows = [i for i, key in enumerate(keys) if key == (kind, ranks)]
        sizes = np.array([collectives[i].size_b for i in rows])
        counts = np.array([collectives[i].count for i in rows], dtype=np.float64)
        once, spread[rows] = shipped_laws().seconds(device, engine, kind, ranks, sizes)
        value[rows] = once * counts
    return value, spread
