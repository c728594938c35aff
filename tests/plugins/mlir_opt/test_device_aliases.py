"""The names of devices that the C++ passes know are those that Python knows."""

from __future__ import annotations

import re
import subprocess

from kernelcast.features.device import catalogue

from .conftest import ROOT


def test_names_and_aliases_are_those_of_the_catalogue() -> None:
    script = ROOT / "plugins" / "mlir_opt" / "device_aliases.sh"
    done = subprocess.run(["sh", script], capture_output=True, text=True, check=True, timeout=60)
    pairs = re.findall(r'\{"(.*)", "(.*)"\},', done.stdout)
    devices = [catalogue().get(name) for name in catalogue().names()]
    expected = {alias.lower(): device.name for device in devices for alias in (device.name, *device.aliases)}
    assert len(pairs) >= len(expected)
    assert dict(pairs) == expected
