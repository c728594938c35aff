"""Operators that move data in more than one pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kernelcast.features.kernel import View, get_family
from kernelcast.workloads.torch_program.kernels.kernel_use import UNKNOWN
from kernelcast.workloads.torch_program.kernels.table import kernels_of
from kernelcast.workloads.torch_program.operation import Operation


@pytest.mark.parametrize(
    ("sizes", "on_gpu", "on_cpu"),
    [((4096,), 1, 6), ((4097,), 2, 7), ((64, 1024), 2, 3 + 5)],
    ids=lambda value: str(value),
)
def test_fourier_transforms_pass_over_memory_as_often_as_their_size_takes(
    sizes: tuple[int, ...], on_gpu: int, on_cpu: int, operations: Callable[..., list[Operation]]
) -> None:
    x = torch.ones(8, *sizes, dtype=torch.complex64)
    (operation,) = operations(lambda: torch.fft.fftn(x, dim=tuple(range(1, len(sizes) + 1))))
    for kind, passes in (("gpu", on_gpu), ("cpu", on_cpu)):
        (use,) = kernels_of(operation, kind)
        moved_b = float(get_family(use.spec.family).bytes_moved(View.of(use.spec)))
        assert moved_b == pytest.approx(passes * 2 * x.nbytes, rel=0.01)
        assert use.widening == UNKNOWN
