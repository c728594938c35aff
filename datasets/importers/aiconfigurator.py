"""aiconfigurator (NVIDIA; GitHub ai-dynamo/aiconfigurator): LLM kernels as vLLM, TensorRT-LLM and SGLang run them.

What is known of the files, from the code that writes and reads them (`collector/helper.py`,
`collector/*/collect_*.py`, `operations/*.py` of its SDK):

* One table per operator, backend and version: `systems/data/SYSTEM/[FAMILY/]BACKEND/VERSION/…_perf.parquet`, `.txt`
  (a CSV) in older versions. Columns name the framework, its version and the device as the driver calls it.
* `latency` is in **milliseconds**, the mean of several runs, most under CUDA graphs (`timing` `device`). vLLM's kernels
  in fp8_block take their host's 50 to 350 us whatever their sizes: their times are of calls. `power` and `power_limit` are in
  watts, read every 100 ms; 0 or empty is not measured. Rows with `compute_bound` 1 hold the power limit where power
  would be.
* A decode row's context is `step`, its `isl` is 1. Prefill has `step` 0. `window_size` is missing in older tables.
* `encoder_attention` is attention without a causal mask, of queries and keys of one length and as many heads.
* `scale_matrix` is an activation scaled by a given number and written in fp8; `computescale` what a quantisation that finds its
  scales takes beyond it: the difference of two measured times, which may be less than any kernel takes. SGLang's collector
  scales by four operators of PyTorch, ten times as slow as the kernel its engine runs; its tables of both are left out.
* Tables of TensorRT-LLM and SGLang that say `float16` were run with bf16 tensors: the code that logs the word makes
  those.
* `moe_torch_flow_min_latency` is another kernel for the same case (here `trtllm_min_latency-VERSION`); `…_nongated`
  has no gate, which is another amount of work than the family's and is left out. vLLM's rows do not say so.
* A version's folder with `INCOMPLETE.txt` and no `collection_meta.yaml` is not read by aiconfigurator itself, and not
  here.

Rows faster than their device allows are refused where tables are taken over; B200 decode rows of TensorRT-LLM with
heads of 256 are such.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...features.batch.cases import Floats, Strings
from ...features.device import catalogue, known_by
from ..form.importer import MS, SHORT_KERNEL_S, ImportBuilder, RowFilter, Sheet, table_importer

_DTYPES: Mapping[str, str] = {
    "bfloat16": "bf16",
    "float16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
}
"""Their words for formats the families know; others (`int4_wo`, `w4a16_mxfp4` …) mix formats of weights and activations."""

_NAME = re.compile(r"(?P<table>[a-z0-9_]+)_perf\.(parquet|txt|csv)")
_Columns = dict[str, Any]
Excluded = Sequence[tuple[npt.NDArray[np.bool_], str]]
"""Rows of a table, shape `(n,)`, with why they are no rows of its family."""


def _gemm(s: Sheet) -> _Columns:
    return {"batch": 1, "m": s.numbers("m"), "n": s.numbers("n"), "k": s.numbers("k")}


def _heads(s: Sheet) -> _Columns:
    window = np.nan_to_num(s.numbers("window_size"), nan=0.0)
    kv_heads = s.numbers("num_key_value_heads")
    heads = s.numbers("num_heads")
    # Their loader writes 0 for as many as heads.
    return {"batch": s.numbers("batch_size"), "heads": heads, "kv_heads": np.where(kv_heads == 0, heads, kv_heads),
            "head_dim": s.numbers("head_dim"), "window": np.maximum(window, 0.0)}  # fmt: skip


def _prefill(s: Sheet) -> _Columns:
    return _heads(s) | {"variant": "prefill", "q_len": s.numbers("isl"), "kv_len": s.numbers("isl")}


def _decode(s: Sheet) -> _Columns:
    return _heads(s) | {"variant": "decode", "q_len": 1, "kv_len": s.numbers("step")}


def _moe(s: Sheet) -> _Columns:
    return {
        "variant": s.text("distribution"), "tokens": s.numbers("num_tokens"), "hidden": s.numbers("hidden_size"),
        "inter": s.numbers("inter_size"), "topk": s.numbers("topk"), "experts": s.numbers("num_experts"),
        "tp": s.numbers("moe_tp_size"), "ep": s.numbers("moe_ep_size"),
    }  # fmt: skip


def _encoder(s: Sheet) -> _Columns:
    heads, length = s.numbers("num_heads"), s.numbers("isl")
    return {"variant": "full", "batch": s.numbers("batch_size"), "heads": heads, "kv_heads": heads, "q_len": length,
            "kv_len": length, "head_dim": s.numbers("head_dim"), "window": 0}  # fmt: skip


def _quantize(variant: str) -> Callable[[Sheet], _Columns]:
    return lambda s: {"variant": variant, "rows": s.numbers("m"), "cols": s.numbers("k")}


def _by_operators(s: Sheet) -> Excluded:
    return [(s.text("kernel_source") == "sglang", "a quantisation by operators of PyTorch, not by the engine's kernel")]


@dataclass(frozen=True, slots=True)
class _Table:
    """A kind of table: the family of its rows, the column of their dtype, their sizes, and rows that ran something else."""

    family: str
    dtype: str
    sizes: Callable[[Sheet], _Columns]
    excluded: Callable[[Sheet], Excluded] = lambda s: ()


_TABLES: Mapping[str, _Table] = {
    "gemm": _Table("gemm", "gemm_dtype", _gemm),
    "context_attention": _Table("attention", "attn_dtype", _prefill),
    "generation_attention": _Table("attention", "attn_dtype", _decode),
    "encoder_attention": _Table("attention", "attn_dtype", _encoder),
    "moe": _Table("moe", "moe_dtype", _moe),
    "scale_matrix": _Table("quantize", "quant_dtype", _quantize(""), _by_operators),
    "computescale": _Table("quantize", "quant_dtype", _quantize("scale"), _by_operators),
}
"""By the name of a file without `_perf`."""


_QUEUED = ("gemm", "moe")
"""Families whose kernels vLLM in fp8_block launches one by one, so that their times are those of calls."""


def excluded_rows(table: str, sheet: Sheet) -> Excluded:
    """Rows of a kind of table that ran something else than its family."""
    return _TABLES[table].excluded(sheet)


def operator_columns(table: str, rows: Sheet) -> list[tuple[str, Sheet, _Columns]]:
    """What the rows of a kind of table ran: families, the rows of each, and their columns of the form.

    Args:
        table: a file's name without `_perf`.
        rows: in its columns, all of formats the families know.
    """
    kind = _TABLES[table]
    columns = {"dtype": _formats(rows.text(kind.dtype)), **kind.sizes(rows)}
    if kind.family == "attention" and "kv_cache_dtype" in rows.names:
        columns["kv_dtype"] = _formats(rows.text("kv_cache_dtype"))
    return [(kind.family, rows, columns)]


def _is_table(path: Path) -> bool:
    match = _NAME.fullmatch(path.name)
    copied = path.suffix != ".parquet" and path.with_suffix(".parquet").exists()
    return match is not None and match["table"] in _TABLES and not copied


def _take(sheet: Sheet, _device: str | None, builder: ImportBuilder) -> None:
    folder = sheet.path.parent
    if (folder / "INCOMPLETE.txt").exists() and not (folder / "collection_meta.yaml").exists():
        builder.leave_out(len(sheet), "tables of a collection marked incomplete (INCOMPLETE.txt)")
        return
    match = _NAME.fullmatch(sheet.path.name)
    if match is None or not len(sheet):
        return
    kind, row_filter = _TABLES[match["table"]], RowFilter(builder, len(sheet))
    devices, words, source = sheet.text("device"), sheet.text(kind.dtype), sheet.text("kernel_source")
    for device in sorted(set(devices.tolist())):
        if other := _other_system(sheet.path, device):
            row_filter.leave_out(devices == device, f"the rows say {device}, their folder {other}")
    row_filter.only(words, _DTYPES, lambda word: f"dtype {word!r} is none of {', '.join(_DTYPES)}")
    nongated = np.char.endswith(source, "_nongated")
    row_filter.leave_out(nongated, "experts without a gate are another amount of work than the family's")
    row_filter.leave_out(sheet.numbers("beam_width") > 1, "attention over several beams")
    for mask, reason in kind.excluded(sheet):
        row_filter.leave_out(mask, reason)
    rows = sheet.at(~row_filter.out)
    builder.remark(
        int((rows.text(kind.dtype) == "float16").sum()), "called float16, taken as bf16, which the collector ran"
    )
    for family, part, operators in operator_columns(match["table"], rows):
        impl, latency_s = _impls(part), part.numbers("latency") * MS
        columns: _Columns = {"device": part.text("device"), "impl": impl, "latency_s": latency_s}
        is_call = (operators["dtype"] == "fp8_block") & np.char.startswith(impl, "vllm-")
        columns |= {"timing": np.where(is_call & (kind.family in _QUEUED), "call", "device")} | operators
        builder.add(family, len(part), **columns, **_power(part, latency_s, builder))


def _power(rows: Sheet, latency_s: Floats, builder: ImportBuilder) -> dict[str, Floats]:
    power, limit = rows.numbers("power"), rows.numbers("power_limit")
    power, limit = (np.where(column > 0, column, np.nan) for column in (power, limit))
    not_measured = ~np.isnan(power) & (rows.numbers("compute_bound") == 1)
    builder.remark(int(not_measured.sum()), "imported without power: what the table gives is the power limit")
    power = np.where(not_measured, np.nan, power)
    short = ~np.isnan(power) & (latency_s < SHORT_KERNEL_S)
    builder.remark(
        int(short.sum()), "their power is noisy: the kernel is shorter than 333 µs and the sensor was read every 100 ms"
    )
    return {"power_w": power, "power_limit_w": limit}


def _formats(words: Strings) -> Strings:
    return np.array([_DTYPES.get(word, word) for word in words.tolist()], dtype=np.str_)


def _impls(rows: Sheet) -> Strings:
    """`vllm-0.24.0`, `trtllm-1.3.0rc15` …: the library and its version as the rows say, else as their folders do."""
    folder_version, folder_library = rows.path.parent.name, rows.path.parent.parent.name
    cells = zip(*(rows.text(name).tolist() for name in ("framework", "version", "kernel_source")), strict=True)
    impls = []
    for framework, version, source in cells:
        library = (framework or folder_library).lower().replace("-", "").replace("tensorrtllm", "trtllm")
        kernel = "_min_latency" if source.endswith("_min_latency") else ""
        impls.append(f"{library}{kernel}-{(version or folder_version).partition('+')[0]}")
    return np.array(impls, dtype=np.str_)


def _other_system(path: Path, device: str) -> str | None:
    """The folder of a system the rows' device is not, or None: tables are copied and mixed up."""
    named = known_by(device, catalogue())
    systems = ((folder, known_by(folder.replace("_", "-"), catalogue())) for folder in path.parts[:-1])
    folder, system = next(((folder, system) for folder, system in systems if system is not None), ("", named))
    return folder if named is not None and system is not named else None


IMPORTER = table_importer(
    "aiconfigurator",
    "a clone of aiconfigurator, or its tables (…_perf.parquet, …_perf.txt)",
    _is_table,
    _take,
    origin="https://github.com/ai-dynamo/aiconfigurator",
)
