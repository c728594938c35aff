"""Judges estimates of the programs of `torch_suite.py` by what `torch_programs_gpu.py` measured; needs no GPU.

Programs are built on the meta device, so that those of large sizes take no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import kernelcast
import numpy as np
import torch
from kernelcast.features.device import catalogue
from kernelcast.models.predict.prediction import Interval
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.torch import estimate
from torch_networks import pytorch_s
from torch_programs_gpu import SIZES, Measured, read
from torch_suite import is_compiled, is_training, programs


@dataclass(frozen=True, slots=True)
class Judged:
    """A measured program with its estimates.

    Attributes:
        measured: What was measured.
        latency_s: Our estimate of the time.
        roofline_s: The time no run of its kernels can beat.
        pytorch_s: What PyTorch's estimator says.
        energy_j: Our estimate of the energy; None where there is none.
        memory_b: Our estimate of the peak.
        host_s: Our estimate of what the host takes.
        kernels_s: Our estimate of what the GPU takes.
        label_j: Energy of a step of `latency_s`; None where it was not measured.
    """

    measured: Measured
    latency_s: Interval
    roofline_s: float
    pytorch_s: float
    energy_j: Interval | None
    memory_b: float
    host_s: float
    kernels_s: float
    label_j: float | None


SLICES: Mapping[str, Callable[[Measured], bool]] = {
    "all": lambda row: True,
    "small": lambda row: row.size == "small",
    "large": lambda row: row.size == "large",
    "eager": lambda row: not is_compiled(row.program),
    "compiled": lambda row: is_compiled(row.program),
    "training": lambda row: is_training(row.program),
    "inference": lambda row: not is_training(row.program),
    "large, eager": lambda row: row.size == "large" and not is_compiled(row.program),
}


def judge(path: Path, device_name: str, *, only: str = "", show: bool = False) -> None:
    """Estimate every measured program and print how far off the estimates are."""
    rows, facts = read(path)
    print(f"measured on {facts.get('device')}, torch {facts.get('torch')}; left out: {facts.get('left_out') or 'none'}")
    for row in rows:
        if row.message:
            print(f"{row.program} ({row.size}): {row.message}")
    predictor = kernelcast.load()
    wanted = [row for row in rows if row.latency_s is not None and only in row.program]
    waiting_w = min((row.power_w for row in rows if row.power_w is not None), default=0.0)
    judged = [judge_one(row, device_name, predictor, waiting_w, show=show) for row in wanted]
    if not judged:
        raise SystemExit(f"{path} holds no measured program whose name has {only!r} in it")
    print_rows(judged)
    print_slices(judged)


def energy_label_j(row: Measured, waiting_w: float) -> float | None:
    """Energy of a step of `latency_s`: where the host limits, steps take up to 1.7 times as long while it reads the sensor too,
    and the GPU waits longer for each.

    Args:
        row: a measured program.
        waiting_w: what the GPU draws between kernels: the least power of all programs, of one that keeps it busy for 3 %.
    """
    if row.energy_j is None or row.energy_step_s is None or row.latency_s is None:
        return None
    return row.energy_j - waiting_w * max(0.0, row.energy_step_s - row.latency_s)


def judge_one(
    row: Measured, device_name: str, predictor: ArtifactPredictor, waiting_w: float, *, show: bool = False
) -> Judged:
    """The estimates of a measured program."""
    device = catalogue().get(device_name)
    with torch.device("meta"):
        step = programs(large=SIZES[row.size])[row.program]()
    with estimate(device_name, model=predictor) as run:
        step()
    (answer,) = run.totals.values()
    if answer.latency_s is None or answer.bound_s is None:
        raise SystemExit(f"{row.program} ({row.size}) has no answer: {answer.unanswered}")
    with torch.compiler.set_stance("force_eager"):
        peer_s = pytorch_s(step, device)
    if show:
        print(f"{row.program} ({row.size}): measured {row}\n{run}\n")
    return Judged(
        row, answer.latency_s, answer.bound_s, peer_s, answer.energy_j, run.memory.peak_b, answer.host_s, answer.kernels_s,
        energy_label_j(row, waiting_w),
    )  # fmt: skip


def print_rows(judged: Sequence[Judged]) -> None:
    """A line for each program: its time, then its energy and memory."""
    print(
        f"\n{'program':46s} {'measured':>11s} {'estimate':>11s} {'error':>6s} {'inside':>6s} {'roofline':>8s} "
        f"{'PyTorch':>7s}  {'host':>15s}  {'GPU':>15s}"
    )
    for each in judged:
        row, value = each.measured, each.latency_s
        assert row.latency_s is not None
        error, roofline, pytorch = (
            other / row.latency_s - 1 for other in (value.value, each.roofline_s, each.pytorch_s)
        )
        host, gpu = _pair(row.host_s, each.host_s, 1e3), _pair(row.device_s, each.kernels_s, 1e3)
        print(
            f"{_title(row):46s} {row.latency_s * 1e3:8.3f} ms {value.value * 1e3:8.3f} ms {error:+6.0%} "
            f"{_inside(value, row.latency_s):>6s} {roofline:+8.0%} {pytorch:+7.0%}  {host:>15s}  {gpu:>15s}"
        )
    print("host and GPU: ms measured / estimated\n")
    print(
        f"{'program':46s} {'measured':>11s} {'estimate':>11s} {'error':>6s} {'inside':>6s}  {'memory':>12s} "
        f"{'estimate':>12s} {'error':>6s}"
    )
    for each in judged:
        row = each.measured
        energy = " " * 37
        if each.label_j is not None and each.energy_j is not None:
            value = each.energy_j
            energy = (
                f"{each.label_j * 1e3:8.1f} mJ {value.value * 1e3:8.1f} mJ {value.value / each.label_j - 1:+6.0%} "
                f"{_inside(value, each.label_j):>6s}"
            )
        memory = ""
        if row.memory_b:
            error = each.memory_b / row.memory_b - 1
            memory = f"{row.memory_b * 1e-6:9.1f} MB {each.memory_b * 1e-6:9.1f} MB {error:+6.0%}"
        print(f"{_title(row):46s} {energy}  {memory}")


def print_slices(judged: Sequence[Judged]) -> None:
    """Errors of time, energy and memory by kind of program."""
    for name, belongs in SLICES.items():
        some = [each for each in judged if belongs(each.measured)]
        if not some:
            continue
        print(f"\n{name}: {len(some)} programs")
        times = [(each.latency_s, each.measured.latency_s) for each in some if each.measured.latency_s]
        energies = [(each.energy_j, each.label_j) for each in some if each.energy_j and each.label_j]
        for what, pairs in (("latency", times), ("energy", energies)):
            if pairs:
                covered = np.mean([value.lower <= label <= value.upper for value, label in pairs])
                errors = _errors([(value.value, label) for value, label in pairs])
                print(f"  {what:8s} {errors}, inside the 90 % interval {covered:.0%}")
        print(f"  {'memory':8s} {_errors([(each.memory_b, each.measured.memory_b) for each in some])}")
        print(f"  {'roofline':8s} {_errors([(each.roofline_s, each.measured.latency_s) for each in some])}")
        print(f"  {'PyTorch':8s} {_errors([(each.pytorch_s, each.measured.latency_s) for each in some])}")


def _errors(pairs: Sequence[tuple[float, float | None]]) -> str:
    errors = np.array([abs(value / label - 1) for value, label in pairs if label])
    if not errors.size:
        return "not measured"
    within = np.mean(errors <= 0.1)
    return f"{errors.size} programs: mean {errors.mean():.1%}, median {np.median(errors):.1%}, within 10 % {within:.0%}"


def _title(row: Measured) -> str:
    return f"{row.program} ({row.size})"


def _inside(value: Interval, label: float) -> str:
    return "yes" if value.lower <= label <= value.upper else "no"


def _pair(measured: float | None, estimated: float, scale: float) -> str:
    return f"{'-' if measured is None else f'{measured * scale:.3f}'} / {estimated * scale:.3f}"
