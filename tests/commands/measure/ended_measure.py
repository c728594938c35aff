"""`kernelcast measure TABLE` by workers that send this process a signal once they measured MOST cases: TABLE MOST SIGNAL."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from conftest import CPU, FakeWorkers
from kernelcast import cli
from kernelcast.collectors import host, kernel_campaign
from kernelcast.datasets.rows.schema import Measurement
from kernelcast.features import device as devices
from kernelcast.features.kernel import KernelSpec

TABLE, MOST, SIGNAL = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


class EndingWorkers(FakeWorkers):
    """End the process instead of the chunk with which they would have measured more."""

    def collect(self, specs: Sequence[KernelSpec]) -> list[Measurement]:
        if len(self.measured) + len(specs) > MOST:
            os.kill(os.getpid(), SIGNAL)
        return super().collect(specs)


workers = EndingWorkers()
kernel_campaign.local_workers = lambda device: workers
devices.cpu_info = host.cpu_info = lambda: dict(CPU)
os.sched_getaffinity = lambda _: {0, 1}
sys.exit(cli.main(["measure", TABLE]))
