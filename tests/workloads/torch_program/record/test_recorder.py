"""The recorder where processes work together: collectives are named, whatever API calls them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from kernelcast.features.errors import SpecError
from kernelcast.workloads.torch_program.run import Run
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore::Warning:torch")


@pytest.fixture
def eight_ranks() -> Iterator[None]:
    """A process group of eight in which nothing is sent."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_collectives_are_priced_by_memory_alone_and_named(eight_ranks: None, recorded: Callable[..., Run]) -> None:
    from torch.distributed import _functional_collectives as functional

    def program() -> None:
        x, whole = torch.empty(8192, 8192), torch.empty(65536, 8192)
        dist.all_reduce(x)
        dist.all_gather_into_tensor(whole, x)
        functional.all_reduce(x, "sum", dist.group.WORLD) + 1

    run = recorded(program)
    names = [item.name for item in run.recording.operations]
    assert names == ["c10d.allreduce_", "c10d._allgather_base_", "_c10d_functional.all_reduce", "aten.add"]
    (answer,) = run.totals.values()
    (note,) = (note for note in answer.notes if note.startswith("links between devices"))
    assert all(name in note for name in names[:3])
    assert answer.latency_s is not None
    assert answer.latency_s.upper > 20 * answer.latency_s.value


def test_a_reducer_on_real_gradients_is_an_error(eight_ranks: None, recorded: Callable[..., Run]) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    with pytest.raises(SpecError, match=r"estimate its `\.module`"):
        recorded(lambda: model(torch.ones(2, 4)))
