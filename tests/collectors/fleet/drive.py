"""A driver in a process of its own, to be killed: ADDRESS STORE DEVICE FIRST LAST."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fleet_cases import drive, slow_cases
from kernelcast.collectors.campaign import CampaignError
from kernelcast.collectors.fleet.cluster import FleetError

if __name__ == "__main__":
    address, root, device, first, last = sys.argv[1:]
    try:
        print(drive(address, Path(root), {device: slow_cases(int(first), int(last))}), flush=True)
    except (CampaignError, FleetError) as error:
        print(f"refused: {error}", flush=True)
