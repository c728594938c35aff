"""What a PyTorch program costs: its operators, recorded under fake tensors, as kernels; this is `kernelcast.torch`.

>>> import kernelcast.torch, torch
>>> model, x = torch.nn.Linear(512, 512), torch.randn(64, 512)
>>> with kernelcast.torch.estimate("h100-sxm") as run:
...     loss = model(x).sum()
...     loss.backward()
>>> run.totals["nvidia-h100-sxm-80gb"].latency_s.value > 0
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..models.predict.predictor import ArtifactPredictor
    from ..workloads.torch_program.run import Run

__all__ = ["estimate", "estimate_script"]


def estimate(
    *devices: str, threads: int | None = None, batch: int | None = None, model: Path | str | ArtifactPredictor | None = None,
    coverage: float = 0.9, compiled: bool = False, price_per_hour: Mapping[str, float] | None = None,
    power_limit_w: float | None = None, clock_hz: float | None = None,
) -> Run:  # fmt: skip
    """A context that records a PyTorch program without computing it, and then says what one run costs on each device.

    The model may be an ordinary one, or one on the meta device or under a FakeTensorMode, without weights. Nothing of it is
    changed: weights, gradients and the state of optimisers are as before afterwards. No GPU is needed.

    Args:
        devices: devices of the catalogue, by name or alias.
        threads: CPU threads; default: all cores.
        batch: samples that one run works on, for samples per second.
        model: a model directory, or a loaded predictor; default: the champion, else the shipped model.
        coverage: share of programs the intervals are built to contain, 0.5 to 0.99.
        compiled: take everything as compiled by `torch.compile`; modules that it wrapped are in any case.
        price_per_hour: price of an hour by device, in any one currency, for what a run costs.
        power_limit_w: power limit that the GPUs are set to, in watts; default: their own.
        clock_hz: clock that their compute units are locked to, in hertz.

    Raises:
        kernelcast.features.errors.SpecError: torch is missing, a device is unknown, or, from inside the block, the program
            depends on values or calls an operator without a fake kernel; the message says where.
    """
    from ..workloads.torch_program.run import Run
    from .model_cache import load

    if model is None or isinstance(model, str | Path):
        model = load(model)
    return Run(
        devices, model, threads=threads, coverage=coverage, batch=batch, compiled=compiled, prices=price_per_hour,
        power_limit_w=power_limit_w, clock_hz=clock_hz,
    )  # fmt: skip


def estimate_script(
    path: Path | str, function: str, devices: Sequence[str], *, threads: int | None = None, batch: int | None = None,
    model: Path | str | ArtifactPredictor | None = None, coverage: float = 0.9,
    price_per_hour: Mapping[str, float] | None = None, power_limit_w: float | None = None, clock_hz: float | None = None,
) -> Run:  # fmt: skip
    """The same for a function of a file, which is loaded without data: its weights are fake, whatever device they are put on.

    Args:
        path: the file; what stands under `if __name__ == "__main__":` is not run.
        function: a function in it that needs no arguments and runs one step.
        devices: as for `estimate`, like the rest.
        threads: as for `estimate`.
        batch: as for `estimate`.
        model: as for `estimate`.
        coverage: as for `estimate`.
        price_per_hour: as for `estimate`.
        power_limit_w: as for `estimate`.
        clock_hz: as for `estimate`.

    Raises:
        kernelcast.features.errors.SpecError: as for `estimate`; or the file or the function is not there, cannot be run without
            arguments, or fails.
    """
    from ..workloads.torch_program.script import run_script

    return run_script(
        Path(path), function,
        estimate(
            *devices, threads=threads, batch=batch, model=model, coverage=coverage, price_per_hour=price_per_hour,
            power_limit_w=power_limit_w, clock_hz=clock_hz,
        ),
    )  # fmt: skip
