"""Operators at computed places as kernels: embeddings, additions to places, sorts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kernelcast.features.kernel import View, get_family
from kernelcast.workloads.torch_program.kernels.kernel_use import LOOPED, SCATTERED
from kernelcast.workloads.torch_program.kernels.table import kernels_of
from kernelcast.workloads.torch_program.operation import Operation
from torch.nn import functional as F  # noqa: N812 - as PyTorch's pages call it

Recorded = Callable[..., list[Operation]]


def test_embeddings_and_their_gradients_are_of_their_family_or_else_of_their_bytes(operations: Recorded) -> None:
    table = torch.ones(1000, 64, requires_grad=True)
    ran = operations(lambda: F.embedding(torch.ones(5, 3, dtype=torch.int64), table).sum().backward())
    by_name = {operation.name: kernels_of(operation, "gpu") for operation in ran}
    (forward,), (backward,) = (by_name[name] for name in ("aten.embedding", "aten.embedding_dense_backward"))
    sizes = "tokens=15,vocabulary=1000,cols=64"
    assert str(forward.spec) == f"embedding[{sizes}]:fp32 device"
    assert str(backward.spec) == f"embedding[{sizes}]:fp32 backward device"
    assert [other.spec.family for use in (forward, backward) for other in use.otherwise] == ["elementwise"] * 2
    (gathered,) = forward.otherwise
    moved_b = float(get_family("elementwise").bytes_moved(View.of(gathered.spec)))
    assert moved_b == pytest.approx(2 * 15 * 64 * 4 + 15 * 8, rel=0.05)


def test_atomic_additions_and_sorts_take_gpus_longer_than_their_bytes(operations: Recorded) -> None:
    rows, places = torch.ones(256, 64, dtype=torch.bfloat16), torch.zeros(256, dtype=torch.int64)
    (added,) = operations(lambda: torch.zeros(8, 64, dtype=torch.bfloat16).index_add_(0, places, rows))[-1:]
    on_gpu, on_cpu = (kernels_of(added, kind)[0].spec for kind in ("gpu", "cpu"))
    assert on_gpu["rows"] * on_gpu["cols"] > 5 * on_cpu["rows"] * on_cpu["cols"]
    (ordered,) = operations(lambda: torch.sort(places))
    assert sum(use.scale for use in kernels_of(ordered, "gpu")) > 10
    assert len(kernels_of(ordered, "cpu")) == 1


def test_searches_read_as_many_bounds_as_halving_takes_and_masks_write_places(operations: Recorded) -> None:
    bounds, values, rows = torch.arange(1024.0), torch.ones(500), torch.ones(64, 8)
    (search,) = operations(lambda: torch.searchsorted(bounds, values))
    (index,) = (each for each in operations(lambda: rows[torch.rand(64) > 0.5]) if each.name == "aten.index")
    for operation, bytes_ in ((search, 500 * (8 + 11 * 4)), (index, 2 * 64 * 32 + 64 + 2 * 8 * 64)):
        (on_gpu,), (on_cpu,) = (kernels_of(operation, kind) for kind in ("gpu", "cpu"))
        assert float(get_family("elementwise").bytes_moved(View.of(on_gpu.spec))) == pytest.approx(bytes_, rel=0.05)
        assert (on_gpu.widening, on_gpu.scale) == (SCATTERED, 1.0)
        # A CPU goes through both number by number.
        assert on_cpu.spec == on_gpu.spec
        assert on_cpu.widening == LOOPED
        assert on_cpu.scale > 5


def test_what_a_cpu_loops_over_takes_longer_in_both_passes(operations: Recorded) -> None:
    x = torch.ones(2, 4, 16, 16, requires_grad=True)
    ran = operations(lambda: F.interpolate(x, scale_factor=2, mode="bicubic").sum().backward())
    for name in ("aten.upsample_bicubic2d", "aten.upsample_bicubic2d_backward"):
        (operation,) = (each for each in ran if each.name == name)
        scales = [kernels_of(operation, kind)[0].scale for kind in ("gpu", "cpu")]
        assert scales == [1.0, 88.0]
