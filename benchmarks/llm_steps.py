"""Steps of language models against public timings: the sum of the kernels, and what one constant per engine adds.

.venv/bin/python benchmarks/llm_steps.py [--steps forward_steps.parquet] [--whole model_e2e.parquet] [--model MODEL]

`forward_steps.parquet` has whole steps of an engine (vLLM on a B300, TensorRT-LLM on a B200) with their sequences;
`model_e2e.parquet` NeuSight's passes of BERT-large and GPT-2-large in PyTorch, operator by operator. The kernels follow
from the models' configurations alone, nothing is fitted to the labels but the constant where the tables say so.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import ArtifactPredictor, load_predictor
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.architectures.estimate import estimate, formats_of
from kernelcast.workloads.architectures.forward import forward
from kernelcast.workloads.architectures.plan import ParallelPlan
from kernelcast.workloads.architectures.step import Sequences, Step
from kernelcast.workloads.whole_model import Kernel, predict_whole

Row = Mapping[str, Any]
NEUSIGHT = {"bert_large": "google-bert/bert-large-uncased", "gpt2_large": "openai-community/gpt2-large"}


@dataclass(frozen=True, slots=True)
class Judged:
    """One step: its group in the tables, the label, and our answer with its interval, in seconds."""

    group: tuple[str, ...]
    label_s: float
    value_s: float
    lower_s: float
    upper_s: float
    peer_s: float | None = None


def engine_steps(rows: Sequence[Row], predictor: ArtifactPredictor) -> Iterator[Judged]:
    """Every step of an engine; the sequences of a row are taken as equally long."""
    for row in rows:
        facts, plan = model_facts(row["model"]), ParallelPlan(tp=row["tp"] or 1)
        impl = "trtllm-1.3.0rc15" if row["engine"] == "trtllm" else ""
        whole = estimate(predictor, facts, step_of(row), row["device"], plan=plan, impl=impl).whole.latency_s
        group = (row["engine"], row["model"], row["phase"], f"TP{plan.tp}")
        yield Judged(group, row["step_p50_s"], whole.value, whole.lower, whole.upper)


def step_of(row: Row) -> Step:
    """The sequences of a row."""
    groups = []
    if count := row["prefill_requests"]:
        groups.append(Sequences(count, -(-row["prefill_tokens"] // count), row["prefill_kv_tokens"] // count))
    if count := row["decode_requests"]:
        # A label's positions contain the new one.
        groups.append(Sequences(count, 1, max(0, row["decode_kv_tokens"] // count - 1)))
    return Step(tuple(groups))


def neusight_steps(rows: Sequence[Row], predictor: ArtifactPredictor) -> Iterator[Judged]:
    """Forward passes of PyTorch without fusion: eager attention, and logits of every position."""
    for row in rows:
        if row["mode"] != "inf" or row["option"] or row["model"] not in NEUSIGHT:
            continue
        facts = model_facts(NEUSIGHT[row["model"]])
        step = Step.prefill(row["batch"], row["seq_len"])
        device = predictor.devices.get(row["device"])
        steps = forward(facts, step, formats_of(facts), device=device, impl="torch", fused_attention=False)
        kernels = [kernel for kernel in steps.kernels if kernel.name not in ("logits", "sampling")]
        variant = "bias" if facts.architecture == "bert" else ""
        head = KernelSpec.of(
            "gemm", "fp32", impl="torch", timing="device", variant=variant, m=step.tokens, n=facts.vocabulary, k=facts.hidden
        )  # fmt: skip
        whole = predict_whole(predictor, [*kernels, Kernel(head)], device.name).latency_s
        group = ("PyTorch", row["model"], "unseen device" if row["device_unseen"] else "seen device")
        peer = row["pred_neusight_e2e_ms"]
        yield Judged(
            group, row["label_e2e_ms"] * 1e-3, whole.value, whole.lower, whole.upper, peer * 1e-3 if peer else None
        )


def neusight_training(rows: Sequence[Row], predictor: ArtifactPredictor) -> Iterator[Judged]:
    """Forward and backward passes of the same, without a step of the optimiser; their dropout is left out."""
    for row in rows:
        if row["mode"] != "train" or row["option"] or row["model"] not in NEUSIGHT:
            continue
        facts = model_facts(NEUSIGHT[row["model"]])
        step = Step.prefill(row["batch"], row["seq_len"])
        whole = estimate(
            predictor, facts, step, row["device"], impl="torch", fused_attention=False, training=True
        ).whole  # fmt: skip
        optimizer_s = sum(part.latency_s for part in whole.parts if part.kernel.name == "optimizer")
        value_s, lower_s, upper_s = (
            end - optimizer_s for end in (whole.latency_s.value, whole.latency_s.lower, whole.latency_s.upper)
        )
        peer = row["pred_neusight_e2e_ms"]
        group = ("PyTorch", row["model"], "training")
        yield Judged(group, row["label_e2e_ms"] * 1e-3, value_s, lower_s, upper_s, peer * 1e-3 if peer else None)


def others_constant_s(group: tuple[str, ...], groups: Mapping[tuple[str, ...], Sequence[Judged]]) -> float | None:
    """The median of what steps of the same engine and phase, but of another plan or model, take beyond their kernels.

    None where there are none; passes of PyTorch have no engine around them.
    """
    if group[0] == "PyTorch":
        return None
    rest = [
        item.label_s - item.value_s
        for key, items in groups.items() if key[0] == group[0] and key[2:3] == group[2:3] and key != group
        for item in items
    ]  # fmt: skip
    return float(np.median(rest)) if rest else None


def line(group: tuple[str, ...], groups: Mapping[tuple[str, ...], Sequence[Judged]]) -> list[str]:
    """A row of the page: errors of the kernels' sum, with the constant of other plans, and with their own."""
    items = groups[group]
    label, value = (np.array([getattr(item, name) for item in items]) for name in ("label_s", "value_s"))
    inside = np.mean([item.lower_s <= item.label_s <= item.upper_s for item in items])
    constant_s = others_constant_s(group, groups)
    own_s = None if constant_s is None else float(np.median(label - value))
    peers = np.array([[item.peer_s, item.label_s] for item in items if item.peer_s is not None])
    return [
        " ".join(group), str(len(items)), _errors(value / label - 1), f"{100 * np.median(value / label - 1):+.1f}",
        f"{100 * inside:.0f}",
        *(
            "" if item is None else f"{_errors((value + item) / label - 1)} ({item * 1e3:.2f} ms)"
            for item in (constant_s, own_s)
        ),
        _errors(peers[:, 0] / peers[:, 1] - 1) if len(peers) else "",
    ]  # fmt: skip


def _errors(errors: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    return f"{100 * np.mean(np.abs(errors)):.1f} / {100 * np.median(np.abs(errors)):.1f}"


def page(judged: Sequence[Judged]) -> str:
    """The table as Markdown."""
    key: Callable[[Judged], tuple[str, ...]] = lambda item: item.group  # noqa: E731 - used twice below
    groups = {name: list(items) for name, items in groupby(sorted(judged, key=key), key=key)}
    heads = ["steps", "rows", "mean / median APE %", "bias %", "inside 90 % interval", "with the constant of others",
             "with their own", "NeuSight"]  # fmt: skip
    lines = [heads, ["---"] * len(heads), *(line(group, groups) for group in groups)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main() -> None:
    """Judge a model, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=Path)
    parser.add_argument("--whole", type=Path)
    parser.add_argument("--model", type=Path)
    args = parser.parse_args()
    predictor = load_predictor(args.model or default_model_dir())
    judged: list[Judged] = []
    if args.steps:
        judged += engine_steps(pq.read_table(args.steps).to_pylist(), predictor)
    if args.whole:
        rows = pq.read_table(args.whole).to_pylist()
        judged += [*neusight_steps(rows, predictor), *neusight_training(rows, predictor)]
    print(page(judged))


if __name__ == "__main__":
    main()
