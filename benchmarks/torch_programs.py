"""PyTorch programs, measured, against `kernelcast.torch.estimate`, PyTorch's estimator and the roofline.

On this machine's CPU, measured and judged at once:

.venv/bin/python benchmarks/torch_programs.py --device intel-xeon-emerald-rapids-vm-2c

With one thread its processor time is taken, which leaves out what others on the machine run meanwhile; with `--threads 2` that
of the clock, on a machine that runs nothing else. Of several rounds over all programs, the one with the least median counts,
since what remains of the others only adds. All 26 programs take some two minutes a run, and two more to compile three of them,
which needs a C++ compiler. Roots of zeros, such as those of an embedding's rows that no sample touches, take MKL fifteen times
as long; shapes do not tell.

On a GPU in two sizes with energy and memory, some three minutes, and judged later on a machine without one:

mkdir -p build/run && ln -sfn $PWD build/run/kernelcast
PYTHONPATH=build/run:benchmarks python3 -P benchmarks/torch_programs.py --measure cuda --out programs.parquet
.venv/bin/python benchmarks/torch_programs.py --measured programs.parquet --device nvidia-h200-sxm-141gb

Those of an H200 are shipped: `--measured datasets/data/programs/torch.parquet`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch_suite import Step, programs

ROUND_S = 0.6


@dataclass(frozen=True, slots=True)
class Judged:
    """A program with its time, its estimate, the roofline and PyTorch's own estimate, in seconds."""

    name: str
    measured_s: float
    value_s: float
    lower_s: float
    upper_s: float
    roofline_s: float
    pytorch_s: float
    operators: int


def measured_s(step: Step, clock: Callable[[], float]) -> float:
    """The median time of one round by a clock."""
    times, end = [], time.perf_counter() + ROUND_S
    while time.perf_counter() < end or len(times) < 3:
        start = clock()
        step()
        times.append(clock() - start)
    return float(np.median(times))


def main() -> None:
    """Measure, estimate, print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="intel-xeon-emerald-rapids-vm-2c")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="programs whose name has this in it")
    parser.add_argument("--show", action="store_true", help="print the whole answers too")
    parser.add_argument("--measure", choices=["cuda"], help="measure on this machine's GPU, into the file of --out")
    parser.add_argument("--out", type=Path, default=Path("programs.parquet"))
    parser.add_argument("--seconds", type=float, default=160.0, help="programs that would begin later are left out")
    parser.add_argument("--measured", type=Path, help="judge what was measured into this file, on --device")
    args = parser.parse_args()
    # Each way imports its own: the predictor is not there where a GPU is measured.
    if args.measure:
        from torch_programs_gpu import measure_cuda

        measure_cuda(args.out, seconds=args.seconds, only=args.only)
    elif args.measured:
        from torch_programs_judge import judge

        judge(args.measured, args.device, only=args.only, show=args.show)
    else:
        judge_cpu(args.device, threads=args.threads, rounds=args.rounds, only=args.only, show=args.show)


def judge_cpu(device_name: str, *, threads: int, rounds: int, only: str, show: bool) -> None:
    """Measure on this machine's CPU and judge the estimates."""
    import kernelcast
    from kernelcast.features.device import catalogue
    from kernelcast.torch import estimate
    from torch_networks import pytorch_s

    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    predictor, device = kernelcast.load(), catalogue().get(device_name)
    share = min(1.0, threads / device.required("compute_units"))
    steps = {name: build() for name, build in programs().items() if only in name}
    least = dict.fromkeys(steps, float("inf"))
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            least[name] = min(least[name], measured_s(step, clock))
    rows = []
    for name, step in steps.items():
        with estimate(device_name, threads=threads, model=predictor) as run:
            step()
        (answer,) = run.totals.values()
        if answer.latency_s is None or answer.bound_s is None:
            raise SystemExit(f"{name} has no answer: {answer.unanswered}")
        latency, operators = answer.latency_s, len(run.recording.operations)
        bounds = (answer.bound_s, pytorch_s(step, device, share))
        rows.append(Judged(name, least[name], latency.value, latency.lower, latency.upper, *bounds, operators))
        if show:
            print(f"{name}: measured {least[name] * 1e3:.3f} ms\n{run}\n")
    print_rows(rows)


def print_rows(rows: list[Judged]) -> None:
    """A line for each program, and the errors of all."""
    print(
        f"{'program':38s} {'operators':>9s} {'measured':>11s} {'estimate':>11s} {'error':>7s} {'inside':>6s} {'roofline':>9s} "
        f"{'PyTorch':>8s}"
    )
    for row in rows:
        error, roofline, pytorch = (
            value / row.measured_s - 1 for value in (row.value_s, row.roofline_s, row.pytorch_s)
        )
        inside = "yes" if row.lower_s <= row.measured_s <= row.upper_s else "no"
        print(
            f"{row.name:38s} {row.operators:9d} {row.measured_s * 1e3:8.3f} ms {row.value_s * 1e3:8.3f} ms {error:+7.0%} "
            f"{inside:>6s} {roofline:+9.0%} {pytorch:+8.0%}"
        )
    errors = np.array([abs(row.value_s / row.measured_s - 1) for row in rows])
    roofline = np.array([abs(row.roofline_s / row.measured_s - 1) for row in rows])
    pytorch = np.array([abs(row.pytorch_s / row.measured_s - 1) for row in rows])
    covered = np.mean([row.lower_s <= row.measured_s <= row.upper_s for row in rows])
    print(
        f"{len(rows)} programs: mean error {errors.mean():.1%}, median {np.median(errors):.1%}, inside the 90 % interval "
        f"{covered:.0%}; roofline {roofline.mean():.1%} / {np.median(roofline):.1%}; "
        f"PyTorch's estimator {pytorch.mean():.1%} / {np.median(pytorch):.1%}"
    )


if __name__ == "__main__":
    main()
