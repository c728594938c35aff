"""Engine profiles: fitted to public steps, judged on models and plans left out, and written to the file that ships.

.venv/bin/python benchmarks/engine_steps.py forward_steps.parquet [--write] [--model MODEL]

`forward_steps.parquet` has whole steps of vLLM 0.20 on a B300 and of TensorRT-LLM on a B200. Steps that took less than 60 % of
their kernels' sum belong to another one (an asynchronous scheduler reports them so): they are left out of the fit and counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.workloads.serving.engine.profile import NUMBERS, PROFILES, EngineProfile, StepColumns, profile_text
from kernelcast.workloads.serving.engine.profile_fit import fit_profile, half_width, left_out_errors
from kernelcast.workloads.serving.step_rows import step_columns, step_groups

IMPOSSIBLE = 0.6
VLLM_GRAPHS = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Default capture sizes of vLLM (`vllm/config/vllm.py`)."""
TRTLLM_GRAPHS = (1, 2, 4, *range(8, 129, 8), 256, 512, 1024, 2048)
"""Batch sizes of TensorRT-LLM's CUDA graphs, padding on, up to its largest batch (`tensorrt_llm/llmapi/llm_args.py`)."""
SGLANG_GRAPHS = (1, 2, 4, 8, 12, 16, 24, 32, *range(40, 257, 8), *range(272, 513, 16))
"""Default capture sizes of SGLang on GPUs of 80 GB and more (`python/sglang/srt/server_args.py`)."""

START = EngineProfile(
    engine="vllm", version="0.20.1", impl="", decode_s=1e-3, decode_factor=1.0, collective_share=0.6, small_share=0.3,
    prompt_s=0.5e-3, prompt_factor=1.0, layer_host_s=0.1e-3, moe_layer_host_s=1e-3, linear_layer_host_s=0.5e-3,
    captured_tokens=512, batches=VLLM_GRAPHS, decode_spread=0.2, prompt_spread=0.2,
)  # fmt: skip
"""Where the fits start, and what the priors say: some ten launches of 10 µs in a dense layer, some thirty of Python functions
in one with experts, half as many in linear attention. The two shares were chosen on decode steps of all four groups."""
STARTS = {
    "vllm": START,
    "trtllm": replace(START, engine="trtllm", version="1.3.0rc15", impl="trtllm-1.3.0rc15", captured_tokens=0,
                      batches=TRTLLM_GRAPHS),
}  # fmt: skip
TRTLLM_DECODE_S = 0.37e-3
"""Constant of TensorRT-LLM's decode steps from 1.1 on, from services (`llm_serving.py`, closed loops of Llama-3.1-70B and
gpt-oss-120b on B200): each model alone gives some 0.6 ms less than vLLM's. Its releases up to 1.0 take vLLM's."""
TRTLLM_LAYER_HOST_S = {"0.20": 0.1e-3, "1.0": 0.7e-3}
"""Launch of a dense layer of older releases: compiled engines of C++, and the first ones of PyTorch, whose steps with prompts
of Qwen3-32B and Llama-3.1-8B on 4 and 8 H100 take some 0.7 ms a layer, however short their kernels (the same services)."""
NOT_MEASURED = 1.5
"""Spreads of what was not measured are those of vLLM times this: a judgement."""
UNKNOWN = 0.5
"""Spread of an engine nothing is known of: a factor of 1.65 either way, a judgement."""
TRIAL = {
    ("decode", "plan"): "4.1 / 4.0 (TP1 to TP4), 10.5 / 4.9 (TP4 to TP1)", ("decode", "model"): "8.0 / 5.3 (dense to MoE)",
    ("prompt", "plan"): "7.7 / 6.3, 18.7 / 11.0", ("prompt", "model"): "17.5 / 13.1",
}  # fmt: skip
"""Errors of an earlier trial with `c0 + max(k·sum, host·layers)`, by phase and what is left out."""


def words(errors: Any) -> str:
    """Mean and median error in percent, and the bias."""
    percent = 100 * np.expm1(errors)
    return f"{np.abs(percent).mean():5.1f} / {np.median(np.abs(percent)):4.1f} ({np.median(percent):+5.1f})"


def left_out_plan(start: EngineProfile, steps: StepColumns, seconds: Any, models: Any, plans: Any) -> Any:
    """Errors in ln where a profile is fitted to the other plan of the same model alone."""
    errors = np.full(len(seconds), np.nan)
    for model in dict.fromkeys(models):
        rows = np.flatnonzero(models == model)
        errors[rows] = left_out_errors(start, steps.take(rows), seconds[rows], list(plans[rows]))
    return errors


def judge(
    engine: str, table: Mapping[str, Sequence[Any]], predictor: Any
) -> tuple[EngineProfile, dict[str, float | None]]:
    """The profile of an engine, and its spreads; prints how far steps left out are."""
    start = STARTS[engine]
    groups, refused = step_groups(predictor, table, start)
    steps, taken = step_columns(groups, refused)
    column = {name: np.array([table[name][row] for row in taken], dtype=object) for name in ("model", "tp", "phase")}
    seconds = np.array([table["step_p50_s"][row] for row in taken], dtype=np.float64)
    possible = seconds > IMPOSSIBLE * steps.gpu_s
    steps, seconds = steps.take(possible), seconds[possible]
    models, plans, phases = (column[name][possible] for name in ("model", "tp", "phase"))
    prompt = phases != "decode"
    if len(dict.fromkeys(models)) > 1:
        errors = {
            "model": left_out_errors(start, steps, seconds, list(models)),
            "plan": left_out_plan(start, steps, seconds, models, plans),
        }  # fmt: skip
    else:
        halves = [int(row) % 2 for row in np.argsort(np.argsort(steps.tokens, kind="stable"))]
        errors = {"half": left_out_errors(start, steps, seconds, halves)}
    raw = np.log(steps.gpu_s / seconds)
    print(f"\n{engine}: {len(taken)} steps, {int((~possible).sum())} impossible, {sum(map(bool, refused))} refused")
    for model, plan in dict.fromkeys(zip(models, plans, strict=True)):
        for phase in dict.fromkeys(phases):
            rows = (models == model) & (plans == plan) & (phases == phase)
            if rows.any():
                print(f"  {model:22} TP{plan} {phase:8} {rows.sum():4}  sum {words(raw[rows])}  "
                      + "  ".join(f"{name} left out {words(item[rows])}" for name, item in errors.items()))  # fmt: skip
    spreads: dict[str, float | None] = {}
    for name, rows in (("decode", ~prompt), ("prompt", prompt)):
        if not rows.any():
            spreads[name] = None
            continue
        both = np.concatenate([item[rows] for item in errors.values()])
        spreads[name] = half_width(both)
        print(f"  {name}: " + "; ".join(f"{key} left out {words(item[rows])}" for key, item in errors.items()),
              f"; 90 % within ±{spreads[name]:.3f}; an earlier trial:",
              "; ".join(f"{key} {TRIAL[name, key]}" for key in errors if (name, key) in TRIAL) or "13.6 / 12.4")  # fmt: skip
    return fit_profile(start, steps, seconds), spreads


def main(argv: Sequence[str] | None = None) -> None:
    """Fit, judge, print, and write if told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--model", type=Path, default=None)
    given = parser.parse_args(argv)
    predictor = load_predictor(given.model or default_model_dir())
    table = pq.read_table(given.steps)
    profiles: dict[str, EngineProfile] = {}
    for engine in STARTS:
        of_engine = table.filter(np.array([name == engine for name in table["engine"].to_pylist()]))
        columns = {name: of_engine[name].to_pylist() for name in table.column_names}
        profile, spreads = judge(engine, columns, predictor)
        vllm = profiles.get("vllm", profile)
        wide = {f"{name}_spread": value if value is not None else NOT_MEASURED * getattr(vllm, f"{name}_spread")
                for name, value in spreads.items()}  # fmt: skip
        if spreads["decode"] is None:
            profile = replace(profile, decode_s=vllm.decode_s, decode_factor=vllm.decode_factor)
        measured = ", ".join(dict.fromkeys(columns["model"])), ", ".join(dict.fromkeys(columns["device"]))
        source = f"{len(columns['model'])} public steps of {measured[0]} on {measured[1]}"
        profiles[engine] = replace(profile, **wide, source=source + (
            "" if spreads["decode"] is not None else "; decode steps from services"
        ))  # fmt: skip
    vllm, newest = profiles["vllm"], profiles.pop("trtllm")
    for version, layer_host_s in TRTLLM_LAYER_HOST_S.items():
        profiles[f"trtllm {version}"] = replace(
            newest, version=version, layer_host_s=layer_host_s,
            source="the steps of the newest release; decode steps are vLLM's, the launch of layers from services",
        )  # fmt: skip
    profiles["trtllm"] = replace(newest, decode_s=TRTLLM_DECODE_S)
    profiles["sglang"] = replace(
        vllm, engine="sglang", version="0.5.9", impl="sglang-0.5.14", batches=SGLANG_GRAPHS, captured_tokens=0,
        decode_spread=NOT_MEASURED * vllm.decode_spread, prompt_spread=NOT_MEASURED * vllm.prompt_spread,
        source="no public steps: the numbers of vLLM, whose layers it launches alike; prompts are not captured by default",
    )  # fmt: skip
    profiles["other"] = replace(
        START, engine="other", version="", batches=(), captured_tokens=0, decode_spread=UNKNOWN, prompt_spread=UNKNOWN,
        source="no steps: where the fits of other engines start, without graphs",
    )  # fmt: skip
    for profile in profiles.values():
        print({name: getattr(profile, name) for name in ("engine", *NUMBERS)})
    if given.write:
        head = "# Written by benchmarks/engine_steps.py --write; what the numbers mean: profile.py.\n"
        PROFILES.write_text(profile_text(list(profiles.values()), head))


if __name__ == "__main__":
    main()
