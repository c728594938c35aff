"""What a service takes beyond the steps of its engine, fitted to public services with a model or a device left out.

.venv/bin/python benchmarks/llm_serving_fit.py serving.parquet --engine vllm --client llm-inference-bench [--rows 40]

A handful of times per engine and client (`workloads/serving/engine/service_profiles.yaml`): seconds of every step, every
sequence and every further device, factors of the kernels' times, seconds per request, steps until a full server admits one.
The steps of the rows are predicted once; then the simulation runs again for every guess of a Nelder-Mead search, and again
without each model and each device.
"""

from __future__ import annotations

import argparse
import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from kernelcast.features.batch.cases import Floats
from kernelcast.features.errors import SpecError
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.workloads.serving.batching.simulation import Scheduling
from kernelcast.workloads.serving.batching.step_table import Overhead, StepTable
from kernelcast.workloads.serving.engine.service_profile import ServiceProfile
from kernelcast.workloads.serving.predict import ServingPredictor, set_up
from kernelcast.workloads.serving.replicas import Served, Share, serve
from kernelcast.workloads.serving.request import ServingRequest
from kernelcast.workloads.serving.table import request_of
from llm_serving import TARGETS, counts
from scipy.optimize import minimize

START: Mapping[str, float] = {
    "step_s": 1e-3, "sequence_s": 2e-5, "prompt_s": 3e-3, "decode_factor": 1.0, "prompt_factor": 1.0, "between_s": 1e-2,
    "rank_s": 2e-3, "admission": 0.3,
}  # fmt: skip
"""Where the search starts; what a group does not fit is 0, or 1 for factors."""
WIDTH: Mapping[str, float] = dict.fromkeys(START, 1.0) | {"decode_factor": 0.25, "prompt_factor": 0.25}
"""How far, in logarithms, a number is expected to be from its start: a weak prior that keeps what rows do not tell."""
PRIOR = 0.003
FITTED = ("TTFT", "TPOT", "output tokens/s", "all tokens/s")
ENERGY = "J/token"
"""What is judged, and has no part in the fit: power is one law for all services."""


@dataclass(frozen=True, slots=True)
class Case:
    """A row with all that its simulation needs, and its labels by target."""

    row: Mapping[str, Any]
    table: StepTable
    shares: tuple[Share, ...]
    how: Scheduling
    request: ServingRequest
    labels: Mapping[str, float]
    resting_w: float
    limit_w: float


def cases(
    rows: Sequence[Mapping[str, Any]], service: ServingPredictor, engine: str, client: str, vendor: str, most: int
) -> Iterator[Case]:
    """The rows of one engine and client, evenly thinned."""
    chosen = []
    for row in filter(counts, rows):
        try:
            request = request_of(row)
        except SpecError:
            continue
        if request.engine == engine and request.client == client and request.device.startswith(vendor):
            chosen.append((row, request))
    for row, request in chosen[:: max(1, len(chosen) // most)]:
        labels = {name: value for name in (*FITTED, ENERGY) if (value := TARGETS[name][2](row))}
        plan = set_up(service, request)
        resting_w = service.times(request).resting_w
        yield Case(row, plan.table, plan.shares, plan.how, request, labels, resting_w, plan.limit_w)


def _mean(made: Served, values: Sequence[Floats]) -> float:
    """The mean of all requests with a value; NaN where none has one."""
    every, weights = np.concatenate(values), made.weighted(values)
    known = np.isfinite(every)
    if not known.any():
        return float("nan")
    return float(np.average(every[known], weights=None if weights is None else weights[known]))


def log_errors(items: Sequence[Case], numbers: Mapping[str, float]) -> dict[str, list[float]]:
    """ln(predicted / label) by target."""
    times = {name: value for name, value in numbers.items() if name in Overhead.__dataclass_fields__}
    profile = ServiceProfile(
        Overhead(**times),
        numbers.get("rank_s", 0.0),
        numbers.get("admission", 0.0),
        numbers.get("between_s", 0.0),
        {},
        (),
        "",
    )
    errors: dict[str, list[float]] = defaultdict(list)
    for case in items:
        table, request, how = copy.copy(case.table), case.request, replace(case.how, between_s=profile.between_s)
        table.change(profile.overhead_of(request.plan.stage_ranks))
        if request.load.kind == "queued" and request.sequences:
            how = replace(how, sequences=profile.running(request.sequences, request.load.output_tokens))
        made = serve(table, case.shares, how, request.load, request.replicas)
        outputs = made.output_tokens
        values = {
            "TTFT": _mean(made, made.ttft_s),
            "TPOT": _mean(made, made.tpot_s(request.events)),
            "output tokens/s": request.replicas * outputs / made.duration_s,
            "all tokens/s": request.replicas * (outputs + made.input_tokens) / made.duration_s,
        }
        if table.knows_energy:
            devices = request.plan.devices
            idle_s = max(0.0, made.duration_s - made.total(run.busy_s for run in made.runs))
            total_j = made.total(run.energy_j for run in made.runs) + case.resting_w * devices * idle_s
            values[ENERGY] = min(total_j, case.limit_w * devices * made.duration_s) / outputs
        for name, label in case.labels.items():
            if name not in values:
                continue
            errors[name].append(float(np.log(values[name] / label)))
    return errors


def fitted(items: Sequence[Case], names: Sequence[str]) -> dict[str, float]:
    """The numbers that make the mean absolute log error least."""
    start, width = (np.array([kind[name] for name in names]) for kind in (START, WIDTH))

    def loss(x: Any) -> float:
        every = log_errors(items, dict(zip(names, start * np.exp(x), strict=True)))
        errors = np.abs(np.concatenate([values for name, values in every.items() if name in FITTED]))
        return float(np.minimum(errors, 1.5).mean() + PRIOR * np.square(x / width).sum())

    simplex = np.vstack([np.zeros(len(names)), np.diag(width)])
    best = minimize(
        loss, simplex[0], method="Nelder-Mead", options={"maxfev": 30 * len(names), "initial_simplex": simplex}
    )
    return dict(zip(names, (start * np.exp(best.x)).tolist(), strict=True))


def shown(errors: Mapping[str, Sequence[float]]) -> str:
    """Mean / median APE % by target."""
    apes = {name: 100 * np.abs(np.expm1(values)) for name, values in errors.items()}
    return "; ".join(f"{name} {ape.mean():.1f} / {np.median(ape):.1f} % of {len(ape)}" for name, ape in apes.items())


def main() -> None:
    """Fit one engine and client, print the numbers and their errors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("serving", type=Path)
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--client", default="")
    parser.add_argument("--vendor", default="", help="first word of the devices' names")
    parser.add_argument("--numbers", nargs="+", choices=sorted(START), default=["step_s", "sequence_s", "between_s"])
    parser.add_argument("--rows", type=int, default=40)
    args = parser.parse_args()
    service = ServingPredictor(load_predictor(default_model_dir()))
    items = list(
        cases(pq.read_table(args.serving).to_pylist(), service, args.engine, args.client, args.vendor, args.rows)
    )
    print("nothing fitted:", shown(log_errors(items, {})))
    numbers = fitted(items, args.numbers)
    print(
        "fitted:", {name: float(f"{value:.3g}") for name, value in numbers.items()}, shown(log_errors(items, numbers))
    )
    for key in ("model", "device"):
        errors: dict[str, list[float]] = defaultdict(list)
        values = sorted({case.row[key] for case in items})
        for value in values if len(values) > 1 else ():
            rest = fitted([case for case in items if case.row[key] != value], args.numbers)
            for name, some in log_errors([case for case in items if case.row[key] == value], rest).items():
                errors[name] += some
        print(f"each {key} left out:", shown(errors))


if __name__ == "__main__":
    main()
