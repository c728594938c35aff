"""This machine as a known CPU whose workers answer at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from kernelcast.collectors import host, kernel_campaign
from kernelcast.datasets.rows.schema import Measurement
from kernelcast.features import device as devices
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import Catalogue
from kernelcast.features.kernel import KernelSpec

DEVICE = "amd-epyc-9005-vm-2c"
CPU = {"vendor_id": "AuthenticAMD", "cpu family": "26", "model": "2", "model name": "AMD EPYC 9V45", "cpu MHz": "3000"}


@dataclass
class FakeWorkers:
    """Gives a launch and three lower bounds as the time of a case; cases of 13 columns fail, and after `most` comes Ctrl-C."""

    device: str = DEVICE
    most: int | None = None
    measured: list[KernelSpec] = field(default_factory=list)

    def __call__(self, impl: str, threads: int) -> FakeWorkers:
        return self

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        if self.most is not None and len(self.measured) + len(specs) > self.most:
            raise KeyboardInterrupt
        new = [spec for spec in specs if spec not in kernel_campaign.SENTINEL_CASES]
        self.measured += new
        return [self.row(spec) for spec in specs]

    def row(self, spec: KernelSpec) -> Measurement:
        if dict(spec.dims).get("cols") == 13:
            return Measurement(spec, self.device, "failed", block="", message="too busy")
        seconds = 5e-6 + 3 * float(work(Cases.from_specs([spec], [self.device]), Catalogue()).lower_bound_s[0])
        return Measurement(spec, self.device, "ok", "", seconds, latency_q1_s=seconds, latency_q3_s=seconds,
                           latency_min_s=seconds, n_samples=30, noisy=False)  # fmt: skip

    def facts(self) -> Mapping[str, Any]:
        return {"versions": {"torch": "2.0"}}

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What /proc/cpuinfo says; change it and the machine is another."""
    info = dict(CPU)
    monkeypatch.setattr(devices, "cpu_info", lambda: info)
    monkeypatch.setattr(host, "cpu_info", lambda: info)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    return info


@pytest.fixture
def workers(machine: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> FakeWorkers:
    fake = FakeWorkers()
    monkeypatch.setattr(kernel_campaign, "local_workers", lambda device: fake)
    return fake
