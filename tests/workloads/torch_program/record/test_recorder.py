"""The recorder where processes work together: collectives, whatever API calls them, and models spread over ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from kernelcast.features.device import catalogue
from kernelcast.workloads.serving.engine.collectives import shipped_laws
from kernelcast.workloads.torch_program.run import Run
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

pytestmark = pytest.mark.filterwarnings("ignore::Warning:torch")


@pytest.fixture
def eight_ranks() -> Iterator[None]:
    """A process group of eight in which nothing is sent."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_collectives_take_the_time_of_their_law(eight_ranks: None, recorded: Callable[..., Run]) -> None:
    from torch.distributed import _functional_collectives as functional

    def program() -> None:
        x, whole = torch.empty(8192, 8192), torch.empty(65536, 8192)
        dist.all_reduce(x)
        dist.all_gather_into_tensor(whole, x)
        dist.reduce_scatter_tensor(x, whole)
        functional.all_reduce(x, "sum", dist.group.WORLD) + 1

    run = recorded(program, "h200", "rtx-4090", "amd-epyc-9005-vm-2c")
    names = [item.name for item in run.recording.operations]
    assert names == [
        "c10d.allreduce_", "c10d._allgather_base_", "c10d._reduce_scatter_base_", "_c10d_functional.all_reduce", "aten.add",
    ]  # fmt: skip
    device = catalogue().get("h200")
    part_b = 4 * 8192**2
    times = {
        kind: float(shipped_laws().seconds(device, "", kind, 8, np.array([float(size_b)]))[0][0])
        for kind, size_b in (("all_reduce", part_b), ("all_gather", part_b), ("reduce_scatter", 8 * part_b))
    }
    answer = run.totals[device.name]
    latency_s = {share.name: share.latency_s for share in answer.by_operator}
    assert (
        latency_s["c10d.allreduce_"] == latency_s["_c10d_functional.all_reduce"] == pytest.approx(times["all_reduce"])
    )
    assert latency_s["c10d._allgather_base_"] == pytest.approx(times["all_gather"])
    assert latency_s["c10d._reduce_scatter_base_"] == pytest.approx(times["reduce_scatter"])
    assert answer.by_operator[0].bound == "link"
    assert any("NCCL" in note for note in answer.notes)
    # A GPU with nothing but its slot takes longer; how CPUs are linked is not known.
    by_slot = {share.name: share.latency_s for share in run.totals["nvidia-rtx-4090"].by_operator}
    assert by_slot["c10d.allreduce_"] > 5 * latency_s["c10d.allreduce_"]
    cpu = run.totals["amd-epyc-9005-vm-2c"]
    (note,) = (note for note in cpu.notes if note.startswith("links between devices"))
    assert all(name in note for name in names[:4])
    assert cpu.latency_s is not None
    assert cpu.latency_s.upper > 20 * cpu.latency_s.value


def test_lists_of_tensors_are_exchanged_as_one_tensor_is(eight_ranks: None, recorded: Callable[..., Run]) -> None:
    def in_lists() -> None:
        x, parts = torch.empty(1 << 20), [torch.empty(1 << 20) for _ in range(8)]
        dist.all_gather(parts, x)
        dist.reduce_scatter(x, parts)
        dist.all_to_all(parts, parts)
        dist.gather(x, parts, 0)
        dist.scatter(x, parts, 0)

    def in_one() -> None:
        x, whole = torch.empty(1 << 20), torch.empty(1 << 23)
        dist.all_gather_into_tensor(whole, x)
        dist.reduce_scatter_tensor(x, whole)
        dist.all_to_all_single(whole, whole)

    lists, one = (
        {share.name.split(".")[1]: share.latency_s for share in run.totals["nvidia-h200-sxm-141gb"].by_operator}
        for run in (recorded(in_lists), recorded(in_one))
    )
    assert lists["allgather_"] == lists["gather_"] == pytest.approx(one["_allgather_base_"])
    assert lists["reduce_scatter_"] == lists["scatter_"] == pytest.approx(one["_reduce_scatter_base_"])
    assert lists["alltoall_"] == pytest.approx(one["alltoall_base_"])


def test_more_ranks_than_a_machine_has_take_longer(recorded: Callable[..., Run]) -> None:
    """Sixteen once took a fifth of the time of eight: their links are not known."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    times = []
    for size in (8, 16):
        dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
        run = recorded(lambda: dist.all_reduce(torch.empty(8192, 8192)), "h200")
        dist.destroy_process_group()
        (answer,) = run.totals.values()
        times.append(answer.latency_s)
    inside, beyond = times
    assert beyond.value == pytest.approx(inside.value)
    assert beyond.upper == pytest.approx(9 * inside.upper, rel=0.1)
    assert any("16 devices are more than one machine's 8" in note for note in answer.notes)


def layers() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(3)))


def test_gradients_of_data_parallel_replicas_are_summed_in_buckets(
    eight_ranks: None, recorded: Callable[..., Run]
) -> None:
    model, x = nn.parallel.DistributedDataParallel(layers(), bucket_cap_mb=1), torch.ones(16, 256)

    def step() -> None:
        with model.no_sync():
            model(x).sum().backward()
        model(x).sum().backward()

    run = recorded(step)
    reduced = [item for item in run.recording.operations if item.name == "c10d.allreduce_"]
    parameters = sum(each.numel() for each in model.parameters())
    assert len(reduced) == 6, "of six megabytes"
    assert sum(item.inputs[0].numel for item in reduced) == parameters
    assert {item.phase for item in reduced} == {"backward"}
    total = run.totals["nvidia-h200-sxm-141gb"]
    whole = {share.name: share.latency_s for share in total.by_operator}["c10d.allreduce_"]
    # All but one bucket run beside the backward, as far as that is long enough.
    kernels_s = next(share.latency_s for share in total.by_phase if share.name == "backward") - whole
    assert 0.7 * min(kernels_s, whole * 5 / 6) < total.overlap_s <= min(kernels_s, whole * 5 / 6) * (1 + 1e-9)
    assert total.overlap_s < total.kernels_s
    assert all(each.grad is None for each in model.parameters())
    assert model(x).shape == (16, 256)


def test_buckets_of_gradients_take_memory_unless_gradients_are_views_of_them(
    eight_ranks: None, recorded: Callable[..., Run]
) -> None:
    x = torch.ones(16, 256)
    peaks_b = []
    for views in (False, True):
        model = nn.parallel.DistributedDataParallel(layers(), gradient_as_bucket_view=views, bucket_cap_mb=0.1)
        peaks_b.append(recorded(lambda model=model: model(x).sum().backward()).memory.peak_b)
    size_b = sum(4 * each.numel() for each in model.parameters())
    # Views pass through a bucket of the largest layer here.
    assert peaks_b[0] - peaks_b[1] == pytest.approx(size_b, rel=0.2)


def test_fully_sharded_parameters_are_gathered_and_each_rank_keeps_its_part(
    eight_ranks: None, recorded: Callable[..., Run]
) -> None:
    from torch.distributed.fsdp import fully_shard

    model, x = layers(), torch.ones(16, 256)
    mesh = init_device_mesh("cpu", (8,))
    size_b = sum(4 * each.numel() for each in model.parameters())
    for part in (*model, model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()

    run = recorded(step)
    names = Counter(item.name for item in run.recording.operations)
    assert (names["c10d._allgather_base_"], names["c10d._reduce_scatter_base_"]) == (6, 3)
    assert run.memory.weights_b == size_b / 8
    assert run.memory.optimizer_state_b == pytest.approx(2 * size_b / 8, rel=1e-3)
    assert run.memory.peak_b < size_b + 4 * size_b / 8 + 2 * size_b
    moments = [item for item in run.recording.operations if item.name == "aten._foreach_lerp_"]
    assert sum(tensor.nbytes for tensor in moments[0].outputs) == size_b / 8
    assert all(each.grad is None for each in model.parameters())
    assert not optimizer.state


def test_ranks_that_split_a_layer_sum_its_results(eight_ranks: None, recorded: Callable[..., Run]) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, x = layers(), torch.ones(16, 256)
    for part in model:
        parallelize_module(part, init_device_mesh("cpu", (8,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    run = recorded(lambda: model(x).sum())
    products = [item.inputs[-1].shape for item in run.recording.operations if item.name == "aten.addmm"]
    assert products == [(256, 128), (128, 256)] * 3
    assert Counter(item.name for item in run.recording.operations)["_c10d_functional.all_reduce"] == 3


def test_inference_mode_runs_the_same_products_and_leaves_modules_alone(recorded: Callable[..., Run]) -> None:
    """Each run once wrapped calls of all modules once more, and the fourth died of recursion."""
    layer, x, before = nn.Linear(64, 32), torch.ones(8, 128, 64).transpose(0, 1), nn.Module.__call__
    products = []
    for mode in (torch.no_grad, torch.inference_mode):

        def infer(mode: Callable[[], Any] = mode) -> None:
            with mode():
                layer(x)

        (answer,) = recorded(infer).totals.values()
        (gemm,) = (part.kernel.spec for part in answer.whole.parts if part.kernel.spec.family == "gemm")
        products.append({name: dict(gemm.dims)[name] for name in "mnk"})
    assert products == [{"m": 1024, "n": 32, "k": 64}] * 2
    assert nn.Module.__call__ is before
