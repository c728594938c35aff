"""Programs that call the runtime of a GPU run without one, in the block and in a file alike."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import kernelcast.torch
import pytest
import torch
from kernelcast.features.errors import SpecError
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.workloads.torch_program.run import Run

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="the runtime is there")

TIMED = """
import torch


def step():
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    torch.cuda.reset_peak_memory_stats()
    start.record()
    with torch.cuda.device(0), torch.cuda.stream(side), torch.cuda.nvtx.range("product"):
        x = torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
    x.record_stream(side)
    end.record(side)
    end.synchronize()
    torch.cuda.synchronize()
    torch.accelerator.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.get_device_name() and torch.cuda.device_count() == 1
    used = torch.cuda.max_memory_allocated()
    texts = f"{start.elapsed_time(end) / 10:.2f} ms", f"{used / 2**20:.1f} MB", f"{used // 2**20} MB"
    assert texts == ("unknown ms", "unknown MB", "unknown MB"), texts
"""


def test_a_program_that_times_itself_runs_in_the_block_and_in_a_file(
    tmp_path: Path, predictor: ArtifactPredictor, recorded: Callable[..., Run]
) -> None:
    before = dict(vars(torch.cuda)), torch.nn.Module.to, torch.Tensor.record_stream
    names = list(before[0])
    namespace: dict[str, Callable[[], None]] = {}
    exec(TIMED, namespace)
    block = recorded(namespace["step"])
    (tmp_path / "timed.py").write_text(TIMED)
    file = kernelcast.torch.estimate_script(tmp_path / "timed.py", "step", ["h200"], model=predictor)
    assert block.recording.operations == file.recording.operations
    assert (
        {name: getattr(torch.cuda, name) for name in names},
        torch.nn.Module.to,
        torch.Tensor.record_stream,
    ) == before


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (lambda: torch.cuda.CUDAGraph(), "leave the capture out"),
        (lambda: torch.cuda.graph(None), "leave the capture out"),
        (lambda: torch.cuda.get_device_properties(0).total_memory, "asks what its GPU is"),
        (lambda: torch.cuda.memory_allocated() > 0, "run.memory has the peak"),
        (lambda: torch.cuda.Event().elapsed_time(torch.cuda.Event()) > 0, "run.totals has the time"),
    ],
)
def test_what_only_a_device_knows_is_refused_with_its_line(
    program: Callable[[], object], message: str, recorded: Callable[..., Run]
) -> None:
    with pytest.raises(SpecError, match=r"test_runtime.py, line \d+, ") as error:
        recorded(program)
    assert message in str(error.value)


H200 = "nvidia-h200-sxm-141gb"


class _Interface:
    """What Triton's kernels, tuners and heuristics have in common; a launch without a GPU fails."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __getitem__(self, grid: Any) -> Any:
        raise RuntimeError("0 active drivers")


def test_kernels_that_a_program_brings_with_it_are_priced_by_what_they_are_given(
    monkeypatch: pytest.MonkeyPatch, recorded: Callable[..., Run]
) -> None:
    for name in ("triton", "triton.runtime", "triton.runtime.jit"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["triton.runtime.jit"], "KernelInterface", _Interface, raising=False)
    kernel = _Interface(_Interface(SimpleNamespace(__name__="add_rows")))
    x = torch.ones(1024, 1024)

    def program() -> None:
        y = torch.relu(x)
        kernel[lambda meta: (4,)](x, y, n=x.numel(), out=torch.empty_like(x), BLOCK=128)
        _Interface(SimpleNamespace(__name__="nothing"))[(1,)](7)

    run = recorded(program)
    (launch,) = (item for item in run.recording.operations if item.name == "triton.add_rows")
    assert launch.bytes_in == 3 * x.nbytes
    assert "triton.nothing" in {share.name for share in run.totals[H200].by_operator}
    assert any("triton.add_rows" in note for note in run.totals[H200].notes)
    with pytest.raises(RuntimeError):
        kernel[(4,)]


@pytest.mark.parametrize(
    ("build", "word"),
    [
        (lambda m: torch.nn.DataParallel(m), "DistributedDataParallel"),
        (lambda m: torch.nn.parallel.DistributedDataParallel(m), "before the `with` block"),
        (lambda m: torch.distributed.fsdp.FullyShardedDataParallel(m), "fully_shard"),
        (lambda m: torch.export.export(m, (torch.ones(2, 4),)), "export it before"),
    ],
)
def test_wrappers_that_need_what_is_not_here_say_what_to_take(
    recorded: Callable[..., Run], build: Callable[[torch.nn.Module], Any], word: str
) -> None:
    module = torch.nn.Linear(4, 4)
    with pytest.raises(SpecError, match=word):
        recorded(lambda: build(module))
    assert torch.export.export(module, (torch.ones(2, 4),)) is not None, "nothing stays patched"


def test_threads_are_named(recorded: Callable[..., Run]) -> None:
    def program() -> None:
        torch.ones(8).relu()
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

    assert any("threads" in note for note in recorded(program).answers.notes)


def test_a_tensor_is_copied_to_where_another_one_is(recorded: Callable[..., Run]) -> None:
    x = torch.ones(1024, 1024)

    def program() -> None:
        there = torch.ones(8, device="cuda")
        x.to(there).relu()
        there.to(x)

    copies = [item.inputs[0].shape for item in recorded(program).recording.operations if item.name == "host.copy"]
    assert copies == [(1024, 1024)]
