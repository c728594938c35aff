"""Whole models against public layer and end-to-end times: ours and the peers' of NeuSight's tables, and what limits them.

kernelcast train --data TABLES/gemm.parquet --data ... --split train --out MODEL
.venv/bin/python benchmarks/whole_models.py TABLES --model MODEL

TABLES is a folder with `model_ops.parquet` (operators of one layer, µs) and `model_e2e.parquet` (whole models, ms). Which
kernels an operator of PyTorch runs is read off PyTorch's sources; nothing is fitted to the labels. Operators are timed
one by one, so that a launch is in their time. Inference queues its kernels, which hides it. A step of training starts with an
empty allocator here and waits for memory at every kernel, so that no queue builds up.
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
from kernelcast.features.batch.cases import Floats
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.predict.predictor import ArtifactPredictor, load_predictor
from kernelcast.workloads.whole_model import Kernel, WholeModelPrediction, predict_whole

Row = Mapping[str, Any]
PEERS = ("neusight", "roofline", "habitat", "micro")

_LAYERS = {"bert_large": 24, "gpt2_large": 36}
_HIDDEN = {"bert_large": 1024, "gpt2_large": 1280}
_VOCABULARY = {"bert_large": 30522, "gpt2_large": 50257}
_ONCE = frozenset({
    "add_1", "add_2", "add_3", "bert_embeddings_layer_norm", "bert_pooler_dense", "bert_pooler_activation", "classifier",
    "cls_predictions_decoder", "cls_predictions_transform_dense", "cls_predictions_transform_layer_norm",
    "cls_seq_relationship", "gelu_1", "lm_head", "transformer_ln_f",
})  # fmt: skip
"""Operators outside the repeated layer; `mul` is one of them in BERT (the mask), part of the layer in GPT-2."""

_ONE_TENSOR = "mulu"
"""Stands for anything that reads a tensor once and writes one: copies, dropout, gathers, masks."""
_TWO_TENSORS = "mul"
"""Stands for anything that reads two tensors and writes one: the backward of activations."""


def elementwise(variant: str, rows: int, cols: int) -> KernelSpec:
    """An element-by-element kernel in fp32."""
    return KernelSpec.of("elementwise", "fp32", variant=variant, impl="torch", rows=rows, cols=cols)


def gemm(variant: str, batch: int, m: int, n: int, k: int) -> KernelSpec:
    """A matrix product in fp32."""
    return KernelSpec.of("gemm", "fp32", variant=variant, impl="torch", batch=batch, m=m, n=n, k=k)


def forward(row: Row) -> list[KernelSpec]:
    """The kernels that one operator runs forwards.

    * `torch.matmul` of permuted four-dimensional operands copies them first (aten/src/ATen/native/LinearAlgebra.cpp folds the
      leading dimensions with `reshape`): queries and keys before the scores, values before the context.
    * GPT-2 divides the scores by a tensor of no dimensions, which reads one tensor; the tables call it `div`.
    * BERT adds a mask that is one row per sequence, so one tensor is read.
    * x³ is two multiplications (aten/src/ATen/native/cuda/PowKernel.cu has kernels of their own for 2, 3 and some others).
    """
    op, name = row["op"], row["layer_name"]
    if op == "linear":
        return [gemm("bias", 1, row["m"], row["n"], row["k"])]
    if op == "bmm":
        copies = ((row["m"], row["k"]), (row["k"], row["n"])) if name == "matmul" else ((row["k"], row["n"]),)
        copied = [elementwise(_ONE_TENSOR, row["batch"] * rows, cols) for rows, cols in copies]
        return [*copied, gemm("batched", row["batch"], row["m"], row["n"], row["k"])]
    rows, cols = row["rows"], row["cols"]
    if op == "softmax":
        return [KernelSpec.of("softmax", "fp32", impl="torch", rows=rows, cols=cols)]
    if op == "ln":
        return [KernelSpec.of("layernorm", "fp32", variant="layernorm", impl="torch", rows=rows, cols=cols)]
    read_as = {"div": "divu", "powu": _ONE_TENSOR} | ({"add": "addu"} if name == "add_7" else {})
    return [elementwise(read_as.get(op, op), rows, cols)]


def backward(row: Row) -> list[KernelSpec]:
    """The kernels that the operator's gradient runs, from PyTorch's derivatives.yaml and their CUDA sources.

    A product has two products behind it, taken as those with a bias (the devices were measured with these alone), and a bias
    the sum of its rows; an addition hands its gradient on without a kernel; a multiplication by a number is one, of two
    tensors two; a softmax multiplies gradient and answer first and then goes over both; a LayerNorm has one kernel for its
    input and one for its weights; activations read both.
    """
    op = row["op"]
    if op == "linear":
        m, n, k = row["m"], row["n"], row["k"]
        return [gemm("bias", 1, m, k, n), gemm("bias", 1, n, k, m), elementwise("relu", m, n)]
    if op == "bmm":
        batch, m, n, k = (row[name] for name in ("batch", "m", "n", "k"))
        return [gemm("batched", batch, m, k, n), gemm("batched", batch, k, n, m)]
    variants: Mapping[str, tuple[str, ...]] = {
        "softmax": (_TWO_TENSORS, _TWO_TENSORS), "ln": (_TWO_TENSORS, _ONE_TENSOR), "gelu": (_TWO_TENSORS,),
        "tanh": (_TWO_TENSORS,), "relu": (_TWO_TENSORS,), "mulu": (_ONE_TENSOR,), "mul": (_TWO_TENSORS, _TWO_TENSORS),
        "div": (_ONE_TENSOR,), "divu": (_ONE_TENSOR,), "powu": (_ONE_TENSOR, _ONE_TENSOR, _TWO_TENSORS),
    }  # fmt: skip
    return [elementwise(variant, row["rows"], row["cols"]) for variant in variants.get(op, ())]


def unlisted(model: str, batch: int, seq_len: int, heads: int, *, train: bool) -> list[Kernel]:
    """Kernels of a whole model that the table leaves out: gathers of embeddings, merging of heads, the causal mask.

    When training also dropout (after the embeddings, on the scores, after both halves of a layer), its backward, the sum of
    gradients where a tensor was used twice, and the adding of weight gradients to those of the step before.
    """
    hidden, layers, tokens = _HIDDEN[model], _LAYERS[model], batch * seq_len
    scores = elementwise(_ONE_TENSOR, batch * heads * seq_len, seq_len)
    state = elementwise(_ONE_TENSOR, tokens, hidden)
    results = [Kernel(state, 1, "embedding"), Kernel(state, layers, "merge heads")]
    if model.startswith("gpt2"):
        results.append(Kernel(scores, layers * (2 if train else 1), "causal mask"))
    if train:
        results += [
            Kernel(scores, 2 * layers, "dropout of scores"),
            Kernel(state, 2 * (2 * layers + 1), "dropout"),
            Kernel(
                elementwise("add", tokens, hidden), (4 if model.startswith("bert") else 2) * layers, "gradients met"
            ),
            Kernel(elementwise("add", 12 * layers * hidden + _VOCABULARY[model], hidden), 1, "weight gradients"),
        ]
    return results


@dataclass(frozen=True, slots=True)
class Judged:
    """One row with its label, our answer and the peers', all in seconds (None where there is none)."""

    row: Row
    what: str
    label_s: float
    whole: WholeModelPrediction
    peers_s: Mapping[str, float | None]

    @property
    def ours_s(self) -> float:
        """Our answer."""
        return self.whole.latency_s.value

    @property
    def error(self) -> float:
        """Our error as a share of the label, with its sign."""
        return self.ours_s / self.label_s - 1


def layer_rows(rows: Sequence[Row], predictor: ArtifactPredictor) -> Iterator[Judged]:
    """Every operator with a label, forwards and backwards."""
    for row in rows:
        for what, kernels in (("fw", forward), ("bw", backward)):
            label_us = row[f"label_{what}_us"]
            if specs := kernels(row) if label_us else []:
                peers = {peer: _scaled(row[f"pred_{peer}_{what}_us"], 1e-6) for peer in PEERS}
                whole = predict_whole(predictor, [Kernel(spec) for spec in specs], row["device"])
                yield Judged(row, what, label_us * 1e-6, whole, peers)


def whole_rows(e2e: Sequence[Row], ops: Sequence[Row], predictor: ArtifactPredictor) -> Iterator[Judged]:
    """Every whole model on one device without fusion whose operators are in the table."""
    by_model = {key: list(group) for key, group in groupby(sorted(ops, key=_model), key=_model)}
    for row in e2e:
        operators = by_model.get((row["device"], row["model"], row["mode"], row["seq_len"], row["batch"]))
        if row["option"] or operators is None:
            continue
        train = row["mode"] == "train"
        kernels = unlisted(row["model"], row["batch"], row["seq_len"], _heads(operators, row["batch"]), train=train)
        for op in operators:
            times = 1 if _runs_once(op) else _LAYERS[op["model"]]
            kernels += [Kernel(spec, times, op["layer_name"]) for spec in forward(op)]
            if train:
                kernels += [Kernel(spec, times, op["layer_name"] + " backward") for spec in backward(op)]
        peers = {peer: _scaled(row[f"pred_{peer}_e2e_ms"], 1e-3) for peer in PEERS}
        whole = predict_whole(predictor, kernels, row["device"], queued=not train)
        yield Judged(row, row["mode"], row["label_e2e_ms"] * 1e-3, whole, peers)


def _model(op: Row) -> tuple[Any, ...]:
    return op["device"], op["model"], op["mode"], op["seq_len"], op["model_batch"]


def _runs_once(op: Row) -> bool:
    return op["layer_name"] in _ONCE or (op["model"] == "bert_large" and op["layer_name"] == "mul")


def _heads(ops: Sequence[Row], batch: int) -> int:
    return int(next(op["batch"] for op in ops if op["op"] == "bmm")) // batch


def _scaled(value: float | None, unit: float) -> float | None:
    """A peer's answer in seconds; None where it has none, which the tables also write as 0."""
    return value * unit if value else None


def errors(judged: Sequence[Judged], peer: str | None = None) -> Floats:
    """Absolute errors in percent, of ours or of a peer where it has an answer."""
    pairs = [(item.ours_s if peer is None else item.peers_s[peer], item.label_s) for item in judged]
    return np.array([100 * abs(item / label - 1) for item, label in pairs if item is not None])


def line(name: str, judged: Sequence[Judged]) -> list[str]:
    """A row of the page: how many, and mean / median / share within 10 % of ours and of each peer."""
    cells = [name, str(len(judged))]
    for peer in (None, *PEERS):
        ape = errors(judged, peer)
        cells.append(f"{ape.mean():.1f} / {np.median(ape):.1f} / {np.mean(ape <= 10) * 100:.0f}" if len(ape) else "")
    bias = f"{100 * np.median([item.error for item in judged]):+.0f}"
    intervals = [(item.label_s, item.whole.latency_s) for item in judged]
    inside = f"{100 * np.mean([ends.lower <= label_s <= ends.upper for label_s, ends in intervals]):.0f}"
    return [*cells, bias, inside, f"{np.median([ends.upper / ends.lower for _, ends in intervals]):.2f}"]


_BY: Mapping[str, Callable[[Judged], str]] = {
    "device seen or not": lambda one: f"{one.what}, {'unseen' if one.row['device_unseen'] else 'seen'} device",
    "device": lambda one: f"{one.row['device']} {one.what}",
    "operator": lambda one: f"{one.row['op']} {one.what}",
    "model": lambda one: " ".join(str(one.row[name]) for name in ("device", "model", "mode", "batch")),
}


def page(judged: Sequence[Judged], by: Sequence[str]) -> str:
    """A table of errors for each of the criteria, which are names of `_BY`."""
    heads = ["", "rows", "ours", *PEERS, "our median bias %", "inside 90 % interval", "upper / lower"]
    parts = []
    for title in by:
        key = _BY[title]
        groups = {name: list(group) for name, group in groupby(sorted(judged, key=key), key=key)}
        lines = [heads, ["---"] * len(heads), *(line(name, group) for name, group in groups.items())]
        parts.append(f"### By {title}\n\n" + "\n".join("| " + " | ".join(cells) + " |" for cells in lines))
    return "\n\n".join(parts)


def read(path: Path) -> list[Row]:
    """The rows of a table, missing values as None.

    Raises:
        SpecError: the file is not there.
    """
    if not path.exists():
        raise SpecError(f"{path} does not exist; give the folder that holds NeuSight's tables")
    rows: list[Row] = pq.read_table(path).to_pylist()
    return rows


def main() -> None:
    """Judge a model, print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("tables", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    args = parser.parse_args()
    predictor = load_predictor(args.model)
    ops, e2e = read(args.tables / "model_ops.parquet"), read(args.tables / "model_e2e.parquet")
    print("Mean / median APE and share within 10 %, in percent.\n\n## Layers\n")
    print(page(list(layer_rows(ops, predictor)), ("device seen or not", "device", "operator")))
    print("\n## Whole models\n")
    print(page(list(whole_rows(e2e, ops, predictor)), ("device seen or not", "device", "model")))


if __name__ == "__main__":
    main()
