"""Scripts that `torchrun` and a GPU would run are loaded without either."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import kernelcast.torch
import pytest
import torch
from kernelcast.features.errors import SpecError
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.workloads.torch_program.run import Run
from torch import distributed
from torch.utils.data import DataLoader, RandomSampler

pytestmark = pytest.mark.filterwarnings("ignore::Warning:torch")

REPLICAS = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank % torch.cuda.device_count())
model = DDP(nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda(), device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters())


def step():
    model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    torch.cuda.synchronize()
"""

SHARDS = """
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cuda", (8,))
model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)


def step():
    model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
"""

BATCHES = """
import torch
from torch.utils.data import DataLoader, TensorDataset
samples = TensorDataset(torch.randn(256, 64), torch.randint(0, 10, (256,)))
loader = DataLoader(samples, 32, shuffle=True, num_workers=4, pin_memory=True, prefetch_factor=2, persistent_workers=True)
model = torch.nn.Linear(64, 10).cuda()


def epoch():
    for x, label in loader:
        torch.nn.functional.cross_entropy(model(x.cuda()), label.cuda()).backward()
"""


def estimated(text: str, function: str, folder: Path, predictor: ArtifactPredictor) -> Run:
    path = folder / "script.py"
    path.write_text(text)
    return kernelcast.torch.estimate_script(path, function, ["h100-sxm"], model=predictor)


def names(run: Run) -> Counter[str]:
    return Counter(operation.name for operation in run.recording.operations)


def test_replicas_in_a_file_sum_their_gradients(
    tmp_path: Path, predictor: ArtifactPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = estimated(REPLICAS, "step", tmp_path, predictor)
    monkeypatch.setenv("WORLD_SIZE", "8")
    run = estimated(REPLICAS, "step", tmp_path, predictor)
    assert names(run)["c10d.allreduce_"] >= 1
    assert names(run) == names(alone)
    by_operator = {share.name: share.latency_s for share in run.totals["nvidia-h100-sxm-80gb"].by_operator}
    assert by_operator["c10d.allreduce_"] > 1e-5
    # A group of one has nothing to sum.
    assert "c10d.allreduce_" not in {share.name for share in alone.totals["nvidia-h100-sxm-80gb"].by_operator}
    assert "RANK" not in os.environ
    assert not distributed.is_initialized()


def test_shards_in_a_file_are_gathered(
    tmp_path: Path, predictor: ArtifactPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SpecError, match=r"a mesh of 8 devices .* set WORLD_SIZE=8"):
        estimated(SHARDS, "step", tmp_path, predictor)
    monkeypatch.setenv("WORLD_SIZE", "8")
    run = estimated(SHARDS, "step", tmp_path, predictor)
    assert names(run)["c10d._allgather_base_"] == 4
    assert names(run)["c10d._reduce_scatter_base_"] == 2
    without_mesh = SHARDS.replace('mesh = init_device_mesh("cuda", (8,))', "torch.distributed.init_process_group()")
    assert names(estimated(without_mesh.replace(", mesh=mesh", ""), "step", tmp_path, predictor)) == names(run)


def test_a_loader_draws_its_batches_beside_the_program(tmp_path: Path, predictor: ArtifactPredictor) -> None:
    run = estimated(BATCHES, "epoch", tmp_path, predictor)
    assert names(run)["aten.addmm"] == 256 // 32
    assert not {"aten.stack", "aten.select", "aten.randperm"} & names(run).keys()
    # Nothing stays as it was for the script.
    assert sorted(RandomSampler(range(4))) == [0, 1, 2, 3]
    assert DataLoader([1, 2], num_workers=1).num_workers == 1
    assert torch.cuda.device_count() == 0 or torch.cuda.is_available()


@pytest.mark.parametrize(
    ("name", "text"), [("WORLD_SIZE", "many"), ("WORLD_SIZE", "0"), ("WORLD_SIZE", "70000"), ("RANK", "1")]
)
def test_a_launcher_s_numbers_are_checked(
    name: str, text: str, tmp_path: Path, predictor: ArtifactPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(SpecError, match=f"{name} in the environment must be a whole number from .* got '{text}'"):
        estimated("def step():\n    pass\n", "step", tmp_path, predictor)


SCALED = """
import torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")


def step():
    scaler.scale(model(torch.ones(2, 8, device="cuda")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
"""


def test_a_scaler_of_a_file_scales(tmp_path: Path, predictor: ArtifactPredictor) -> None:
    run = estimated(SCALED, "step", tmp_path, predictor)
    assert names(run)["aten._amp_foreach_non_finite_check_and_unscale_"] == 1
    assert run.recording.notes == []
    off = estimated(SCALED.replace('"cuda")\n\n', '"cuda", enabled=False)\n\n'), "step", tmp_path, predictor)
    assert names(off)["aten._amp_foreach_non_finite_check_and_unscale_"] == 0
    assert any("GradScaler" in note for note in off.answers.notes)
