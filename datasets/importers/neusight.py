"""NeuSight (Lee et al., ASPLOS 2025; GitHub sitar-lab/NeuSight): fp32 PyTorch operators and the layers of whole models.

What is known of the files, from the code that writes them (`neusight/Dataset/collect.py`,
`neusight/Tracing/analysis.py`):

* Operator tables have `OPName`, `Device` (the driver's name), `Latency` and the sizes. `Latency` is in
  **milliseconds**: the mean of the 5 fastest of 25, between CUDA events, launch included (`timing` `call`). TF32 is off.
* Sizes of `linear` and `bmm` are called B, M, N, K, but **N is the inner size and K the columns of the result**:
  `Linear(N, K)` on `[B, M, N]`, `bmm([B, M, N], [B, N, K])`.
* Element-wise operators, `softmax` and `ln` have B rows of H, `conv` a column spelt `Kernel_Szie`.
* The training campaign and the later test campaign are told apart by their folder, which becomes `split`; the same
  case differs by 16 % (mean) between them for `linear`. The P4's `linear` rows of the training campaign were measured
  throttled.
* Merged tables (`train/bmm.csv`) repeat rows of the collected ones (`train/collect/bmm/…`); a row counts once.
* Layer tables (`label/DEVICE/MODEL-MODE-SEQ-BATCH.csv`) have a row per node of a traced graph: `Name`,
  `input_shapes`, `output_shape`, `fw_latency` in milliseconds, timed alike. A scalar held in a tensor has the shape
  `(1,)` there, so GPT models' scaling of attention looks like a division of two tensors; operand shapes tell it apart.
  `_act` nodes do not say which function.

The torch version is in folder names only, and merged tables have lost it: `impl` is `torch`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...features.device import canonical_name, catalogue
from ...features.families.elementwise import FLOPS_PER_ELEMENT
from ..form.importer import MS, ImportBuilder, Sheet, header_of, table_importer

_OPERATORS = {"OPName", "Latency", "Device"}
_LAYERS = {"Name", "input_shapes", "output_shape", "fw_latency"}
_THROTTLED = {
    ("nvidia-p4", "linear", "train"): "linear training rows of the P4 were measured while the card was throttled"
}

_Columns = dict[str, Any]
_Key = tuple[object, ...]


def _linear(s: Sheet) -> _Columns:
    sizes = _bmm(s)
    return sizes | {"variant": "bias", "batch": 1, "m": sizes["batch"] * sizes["m"]}


def _bmm(s: Sheet) -> _Columns:
    return {
        "variant": "batched",
        "batch": s.numbers("B"),
        "m": s.numbers("M"),
        "n": s.numbers("K"),
        "k": s.numbers("N"),
    }


def _rows(s: Sheet) -> _Columns:
    return {"rows": s.numbers("B"), "cols": s.numbers("H")}


def _conv(s: Sheet) -> _Columns:
    kernel = "Kernel_Szie" if "Kernel_Szie" in s.names else "Kernel_Size"
    return {
        "batch": s.numbers("B"), "in_channels": s.numbers("Input_Channel"), "out_channels": s.numbers("Output_Channel"),
        "height": s.numbers("Input_Size"), "width": s.numbers("Input_Size"), "kernel": s.numbers(kernel),
        "stride": s.numbers("Stride"), "padding": s.numbers("Padding"),
    }  # fmt: skip


_TABLES: dict[str, tuple[str, Callable[[Sheet], _Columns]]] = {
    "linear": ("gemm", _linear), "bmm": ("gemm", _bmm), "softmax": ("softmax", _rows), "ln": ("layernorm", _rows),
    "conv": ("conv2d", _conv),
}  # fmt: skip


def _is_table(path: Path) -> bool:
    if path.suffix.lower() != ".csv":
        return False
    columns = set(header_of(path))
    return columns >= _OPERATORS or columns >= _LAYERS


def _take(sheet: Sheet, _device: str | None, builder: ImportBuilder) -> None:
    if set(sheet.names) >= _OPERATORS:
        _operators(sheet, builder)
    else:
        _layers(sheet, builder)


def _operators(sheet: Sheet, builder: ImportBuilder) -> None:
    split = next((part for part in reversed(sheet.path.parts[:-1]) if part in ("train", "test")), "")
    names, devices = sheet.text("OPName"), sheet.text("Device")
    for word, device in sorted(set(zip(names.tolist(), devices.tolist(), strict=True))):
        here = (names == word) & (devices == device)
        family, sizes = _TABLES.get(word, ("elementwise", _rows))
        if word not in _TABLES and word not in FLOPS_PER_ELEMENT:
            builder.leave_out(int(here.sum()), f"no family of kernels for the operator {word!r}")
            continue
        if why := _THROTTLED.get((canonical_name(device, catalogue()), word, split)):
            builder.leave_out(int(here.sum()), why)
            continue
        part = sheet.at(here)
        columns = {"variant": word if family == "elementwise" else ""} | sizes(part)
        latency = part.numbers("Latency") * MS
        fresh = _fresh(
            (word, device, split), [*(columns[n] for n in columns if n != "variant"), latency], len(part), builder.seen
        )
        builder.leave_out(int((~fresh).sum()), "the same row stands in another table of the clone")
        new_columns = {n: column[fresh] if isinstance(column, np.ndarray) else column for n, column in columns.items()}
        builder.add(family, int(fresh.sum()), device=device, dtype="fp32", impl="torch", timing="call",
                    latency_s=latency[fresh], split=split, **new_columns)  # fmt: skip


def _fresh(key: _Key, columns: list[Any], rows: int, seen: Counter[_Key]) -> npt.NDArray[np.bool_]:
    """Mask of the rows that no table before had as often: repeats within one table are measurements of their own."""
    here: Counter[_Key] = Counter()
    fresh = np.zeros(rows, dtype=np.bool_)
    for i, cells in enumerate(zip(*(np.broadcast_to(column, (rows,)).tolist() for column in columns), strict=True)):
        row = (*key, *cells)
        here[row] += 1
        fresh[i] = here[row] > seen[row]
    seen |= here
    return fresh


_NORM = re.compile(r"(^|_)ln(_|$)|layer_?norm")
_NODE = re.compile(r"(truediv|addmm|matmul|bmm|softmax|tanh|gelu|add|mul|div|pow)(_\d+)?")
_SHAPES = tuple[tuple[int, ...], ...]


def _layers(sheet: Sheet, builder: ImportBuilder) -> None:
    """Forward times of a model's layers. Backward times are sums over several kernels and are no rows."""
    device = sheet.path.parent.name.replace("_", " ")
    latency, dtypes = sheet.numbers("fw_latency"), sheet.text("dtype")
    columns = zip(*(sheet.text(n).tolist() for n in ("Name", "meta", "input_shapes", "output_shape")), strict=True)
    for i, (name, meta, inputs, output) in enumerate(columns):
        if not latency[i] > 0:
            builder.leave_out(1, "layers that launch nothing, or whose time is missing")
            continue
        if dtypes[i] not in ("", "torch.float32"):
            builder.leave_out(1, "layers in another dtype than fp32")
            continue
        layer_case = _layer(name, meta, _parsed(inputs), _parsed(f"[{output}]"))
        if isinstance(layer_case, str):
            builder.leave_out(1, layer_case)
            continue
        family, case = layer_case
        builder.add(family, 1, device=device, dtype="fp32", impl="torch", timing="call", latency_s=latency[i] * MS,
                    split="label", **case)  # fmt: skip


def _parsed(cell: str) -> _SHAPES | None:
    try:
        return tuple(tuple(int(size) for size in shape) for shape in ast.literal_eval(cell))
    except (ValueError, SyntaxError, TypeError):
        return None


def _layer(name: str, meta: str, inputs: _SHAPES | None, output: _SHAPES | None) -> tuple[str, _Columns] | str:
    """Family and columns of a layer, or why it is none."""
    if not inputs or not output or not output[0]:
        return "layers without shapes"
    out, match = output[0], _NODE.fullmatch(name.lower())
    node = match.group(1) if match else ""
    flat = {"rows": prod(out[:-1]), "cols": out[-1]}
    if node == "addmm" or "linear.Linear" in meta:
        source = inputs[1] if len(inputs) == 3 else inputs[0]
        return "gemm", {"variant": "bias", "batch": 1, "m": prod(source[:-1]), "n": out[-1], "k": source[-1]}
    if node in ("matmul", "bmm"):
        if len(inputs) != 2 or len(inputs[0]) < 3 or inputs[0][:-2] != inputs[1][:-2]:
            return "products that are no batch of equal ones"
        a, b = inputs
        return "gemm", {"variant": "batched", "batch": prod(a[:-2]), "m": a[-2], "n": b[-1], "k": a[-1]}
    if node == "softmax":
        return "softmax", flat
    if _NORM.search(name.lower()) and inputs[0] == out:
        return "layernorm", flat
    if node in ("tanh", "gelu"):
        return "elementwise", {"variant": node} | flat
    if node in ("add", "mul", "div", "truediv", "pow"):
        return _binary(node.removeprefix("true"), inputs, out, flat)
    return "layers whose kernels no family covers, or whose name does not say which they are"


def _binary(operator: str, inputs: _SHAPES, out: tuple[int, ...], flat: _Columns) -> tuple[str, _Columns] | str:
    """One tensor and a scalar (`divu`), or two tensors of one shape (`div`), by the operands and not by the label."""
    tensors = [shape for shape in inputs if prod(shape) > 1 or shape == out]
    if any(shape != out for shape in tensors) or not tensors:
        return "element-wise layers that broadcast one operand"
    return "elementwise", {"variant": operator if len(tensors) > 1 else f"{operator}u"} | flat


IMPORTER = table_importer(
    "neusight",
    "a clone of NeuSight, or its tables of operators and layers",
    _is_table,
    _take,
    origin="https://github.com/sitar-lab/NeuSight",
)
