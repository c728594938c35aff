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
* `mla_…_module` is a whole attention part of DeepSeek-V3: projections, norms, positions, the cache, attention and the output
  projection, with weights in `gemm_type`; communication is not in it. TensorRT-LLM and vLLM run it under CUDA graphs.
* `gdn`, `kda` and `mamba2` hold the convolution and the scan of linear attention in rows of their own, told apart by
  `kernel_source`. TensorRT-LLM's convolutions before gated delta nets are of the keys' channels alone, and its states in bf16,
  as vLLM's are of prompts; other states are in fp32.
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


def _latent(variant: str) -> Callable[[Sheet], _Columns]:
    def columns(s: Sheet) -> _Columns:
        length = s.numbers("isl")
        # A prompt of one position runs as decoding does.
        kv_len = np.maximum(s.numbers("step"), 1.0) if variant == "decode" else length
        return {"variant": np.where(length == 1, "decode", variant), "batch": s.numbers("batch_size"),
                "heads": s.numbers("num_heads"), "q_len": length, "kv_len": kv_len}  # fmt: skip

    return columns


def _heads_of(s: Sheet, rule: str) -> tuple[Floats, Floats, Floats, Floats]:
    """Heads and their size, of values and of keys."""
    names = ("nheads", "head_dim", "n_groups", "d_state")
    if rule != "mamba2":
        names = ("num_v_heads", "head_v_dim", "num_k_heads", "head_k_dim")
    heads, value, keys, key = (s.numbers(name) for name in names)
    return heads, value, keys, key


def _scan(rule: str) -> Callable[[Sheet], _Columns]:
    def columns(s: Sheet) -> _Columns:
        heads, value, keys, key = _heads_of(s, rule)
        step = s.text("phase") != "context"
        library = _libraries(s)
        half = (rule == "gated_delta") & ((library == "trtllm") | (library == "vllm") & ~step)
        return {
            "variant": np.where(step, f"{rule}_step", rule), "kv_dtype": np.where(half, "bf16", "fp32"),
            "batch": s.numbers("batch_size"), "q_len": s.numbers("seq_len"), "heads": heads, "key_heads": keys,
            "key_dim": key, "value_dim": value,
        }  # fmt: skip

    return columns


def _convolution(rule: str) -> Callable[[Sheet], _Columns]:
    def columns(s: Sheet) -> _Columns:
        heads, value, keys, key = _heads_of(s, rule)
        alone = (_libraries(s) == "trtllm") & (rule == "gated_delta")
        return {
            "variant": np.where(s.text("phase") == "context", "", "step"), "batch": s.numbers("batch_size"),
            "q_len": s.numbers("seq_len"), "channels": np.where(alone, keys * key, 2 * keys * key + heads * value),
            "width": s.numbers("d_conv"),
        }  # fmt: skip

    return columns


def _is_convolution(s: Sheet) -> npt.NDArray[np.bool_]:
    return np.char.startswith(s.text("kernel_source"), "causal_conv1d")


def _by_operators(s: Sheet) -> Excluded:
    return [(s.text("kernel_source") == "sglang", "a quantisation by operators of PyTorch, not by the engine's kernel")]


def _in_fp8(s: Sheet) -> Excluded:
    return [
        (s.text("mla_dtype") == "fp8", "latent attention with scores in fp8, which the family does not tell apart"),
        (
            ~np.isin(s.text("model"), _LATENT_MODELS),
            f"latent attention of other sizes than that of {_LATENT_MODELS[0]}",
        ),
    ]


_LATENT_MODELS = ("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3.1")
"""Rows give heads alone; the other sizes are these models', which are the family's defaults."""

_FUSED = ("fused_kda_decode", "kda_fused_decode", "fused_kda_decode_mtp_dspark")


def _fused(s: Sheet) -> Excluded:
    source = s.text("kernel_source")
    return [
        (np.isin(source, _FUSED), "a step fused with its convolution and norm"),
        (source == "causal_conv1d_fn_qkv3", "three convolutions in one time"),
    ]


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows of a kind of table that are of one family.

    Attributes:
        family: Its name.
        sizes: Their columns of the form.
        dtype: The column of their dtype; empty where all are bf16.
        only: Which rows they are.
        excluded: Rows that ran something else.
    """

    family: str
    sizes: Callable[[Sheet], _Columns]
    dtype: str = ""
    only: Callable[[Sheet], npt.NDArray[np.bool_]] = lambda s: np.ones(len(s), dtype=np.bool_)
    excluded: Callable[[Sheet], Excluded] = lambda s: ()


def _recurrent(rule: str) -> tuple[_Table, ...]:
    return (
        _Table("linear_attention", _scan(rule), only=lambda s: ~_is_convolution(s), excluded=_fused),
        _Table("causal_conv1d", _convolution(rule), only=_is_convolution),
    )


_TABLES: Mapping[str, tuple[_Table, ...]] = {
    "gemm": (_Table("gemm", _gemm, "gemm_dtype"),),
    "context_attention": (_Table("attention", _prefill, "attn_dtype"),),
    "generation_attention": (_Table("attention", _decode, "attn_dtype"),),
    "encoder_attention": (_Table("attention", _encoder, "attn_dtype"),),
    "moe": (_Table("moe", _moe, "moe_dtype"),),
    "scale_matrix": (_Table("quantize", _quantize(""), "quant_dtype", excluded=_by_operators),),
    "computescale": (_Table("quantize", _quantize("scale"), "quant_dtype", excluded=_by_operators),),
    "mla_context_module": (_Table("latent_attention", _latent("prefill"), "gemm_type", excluded=_in_fp8),),
    "mla_generation_module": (_Table("latent_attention", _latent("decode"), "gemm_type", excluded=_in_fp8),),
    "gdn": _recurrent("gated_delta"),
    "kda": _recurrent("kda"),
    "mamba2": _recurrent("mamba2"),
}
"""By the name of a file without `_perf`."""

_QUEUED = ("gemm", "moe")
"""Families whose kernels vLLM in fp8_block launches one by one, so that their times are those of calls."""


def excluded_rows(table: str, sheet: Sheet) -> Excluded:
    """Rows of a kind of table that ran something else than its families."""
    return [rows for kind in _TABLES[table] for rows in kind.excluded(sheet)]


def operator_columns(table: str, rows: Sheet) -> list[tuple[str, Sheet, _Columns]]:
    """What the rows of a kind of table ran: families, the rows of each, and their columns of the form.

    Args:
        table: a file's name without `_perf`.
        rows: in its columns, all of formats the families know.
    """
    parts = []
    for kind in _TABLES[table]:
        part = rows.at(kind.only(rows))
        if not len(part):
            continue
        columns = {"dtype": _formats(_words(kind, part)), **kind.sizes(part)}
        if "kv_cache_dtype" in rows.names:
            columns["kv_dtype"] = _formats(part.text("kv_cache_dtype"))
        parts.append((kind.family, part, columns))
    return parts


def _words(kind: _Table, rows: Sheet) -> Strings:
    return rows.text(kind.dtype) if kind.dtype else np.full(len(rows), "bfloat16")


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
    kinds, row_filter = _TABLES[match["table"]], RowFilter(builder, len(sheet))
    devices, words, source = sheet.text("device"), _words(kinds[0], sheet), sheet.text("kernel_source")
    for device in sorted(set(devices.tolist())):
        if other := _other_system(sheet.path, device):
            row_filter.leave_out(devices == device, f"the rows say {device}, their folder {other}")
    row_filter.only(words, _DTYPES, lambda word: f"dtype {word!r} is none of {', '.join(_DTYPES)}")
    nongated = np.char.endswith(source, "_nongated")
    row_filter.leave_out(nongated, "experts without a gate are another amount of work than the family's")
    row_filter.leave_out(sheet.numbers("beam_width") > 1, "attention over several beams")
    for mask, reason in excluded_rows(match["table"], sheet):
        row_filter.leave_out(mask, reason)
    rows = sheet.at(~row_filter.out)
    builder.remark(
        int((_words(kinds[0], rows) == "float16").sum()), "called float16, taken as bf16, which the collector ran"
    )
    for family, part, operators in operator_columns(match["table"], rows):
        impl, latency_s = _impls(part), part.numbers("latency") * MS
        columns: _Columns = {"device": part.text("device"), "impl": impl, "latency_s": latency_s}
        is_call = (operators["dtype"] == "fp8_block") & np.char.startswith(impl, "vllm-")
        columns |= {"timing": np.where(is_call & (family in _QUEUED), "call", "device")} | operators
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
    folder_version = rows.path.parent.name
    cells = zip(
        _libraries(rows).tolist(), *(rows.text(name).tolist() for name in ("version", "kernel_source")), strict=True
    )
    impls = []
    for library, version, source in cells:
        kernel = "_min_latency" if source.endswith("_min_latency") else ""
        impls.append(f"{library}{kernel}-{(version or folder_version).partition('+')[0]}")
    return np.array(impls, dtype=np.str_)


def _libraries(rows: Sheet) -> Strings:
    """The library alone: of an `impl` where the rows have one."""
    folder = rows.path.parent.parent.name
    words = np.char.partition(rows.text("impl"), "-")[:, 0] if "impl" in rows.names else rows.text("framework")
    names = [(word or folder).lower().replace("-", "").replace("tensorrtllm", "trtllm") for word in words.tolist()]
    return np.array(names, dtype=np.str_)


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
