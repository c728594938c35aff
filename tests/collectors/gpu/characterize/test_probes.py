"""Every case a GPU is characterised by has a runner that takes it, as far as can be told without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from kernelcast.collectors.gpu.characterize.probes import PROBES
from kernelcast.collectors.gpu.measure.operands import TORCH_DTYPES
from kernelcast.collectors.gpu.runners.cupy import tile_of
from kernelcast.collectors.gpu.runners.triton import triton_binaries
from kernelcast.collectors.runner import gpu_runners
from kernelcast.features.kernel import KernelSpec, View, get_family

CASES = {
    f"{probe.name} {which}": spec
    for probe in PROBES
    for which in ("small", "large", "spec")
    if isinstance(spec := getattr(probe, which, None), KernelSpec)
}


def shaped(spec: KernelSpec) -> Any:
    """What torch would return, by calling it on tensors that have shapes and no data."""
    operands = tuple(
        torch.empty([int(size) for size in item.shape], dtype=getattr(torch, TORCH_DTYPES[item.dtype]), device="meta")
        for item in get_family(spec.family).inputs(View.of(spec))
    )
    return gpu_runners()[spec.impl].launch(spec, operands).call()


TAKES: Mapping[str, Callable[[KernelSpec], Any]] = {"torch": shaped, "triton": triton_binaries, "cupy-tiled": tile_of}
"""What raises `UnsupportedCaseError`, or an error of the library, where a runner does not take a case."""


def test_probes_with_cases_are_found() -> None:
    assert len(CASES) == 2 * 10 + 2 * 10 + 2
    assert {spec.impl for spec in CASES.values()} == set(TAKES)


@pytest.mark.parametrize("name", CASES)
def test_the_case_of_a_probe_has_a_runner_that_takes_it(name: str) -> None:
    spec = CASES[name]
    assert spec.impl in gpu_runners()
    assert TAKES[spec.impl](spec) is not None
