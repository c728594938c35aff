"""Vidur (Microsoft, MLSys 2024; GitHub microsoft/vidur): operators of LLM layers in fp16, by model and tensor-parallel
width.

What is known of the files, from the code that writes them (`vidur/profiling/{mlp,attention}/`,
`vidur/profiling/common/`):

* `data/profiling/compute/DEVICE/MODEL/{mlp,attention}.csv`; the folder names the device (`a100`, `h100`, `a40`).
* `time_stats.OPERATOR.median` (and min, max, mean, std) are in **milliseconds**, of kernel time as torch.profiler saw
  it. Tensors are fp16. `timing` is left empty: the profilers have other methods too, the tables do not name theirs, and
  short operators take some 12 us, as calls do.
* Sizes are the model's (`n_head`, `n_kv_head`, `n_embd`, `n_expanded_embd`), and `num_tensor_parallel_workers`
  divides the heads and the MLP's inner width; not every operator is divided.
* Decode rows attend to their cache and to the new token: `kv_cache_size + 1` positions.
* Which norm a model has and whether products have a bias are in Vidur's model files, not in the tables. Only RMSNorm
  may come after attention, so rows with `post_attention_layernorm` have it; the norm of other models is left out.
  Products are imported without bias.
* The gated activation (`mlp_act` with `use_gated_mlp`) reads two values and writes one, sums of three tensors, `emb`
  and `attn_rope` are no operators of the families and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...features.batch.cases import Floats
from ..form.importer import MS, ImportBuilder, Sheet, agreed_device, header_of, table_importer

_MODEL = {"n_embd", "num_tensor_parallel_workers"}
_FILES: Mapping[str, set[str]] = {
    "mlp.csv": _MODEL | {"num_tokens", "n_head", "n_expanded_embd"},
    "attention.csv": _MODEL | {"n_q_head", "prefill_chunk_size", "kv_cache_size"},
}
_Columns = dict[str, Any]
_Mask = npt.NDArray[np.bool_]


def _product(k: Callable[[Sheet], Floats], n: Callable[[Sheet], Floats]) -> Callable[[Sheet], _Columns]:
    return lambda s: {"batch": 1, "m": s.numbers("num_tokens"), "n": n(s), "k": k(s)}


def _width(s: Sheet) -> Floats:
    return s.numbers("n_embd")


def _share(s: Sheet, name: str) -> Floats:
    """A size of the model divided among its tensor-parallel workers."""
    return s.numbers(name) / s.numbers("num_tensor_parallel_workers")


def _qkv(s: Sheet) -> Floats:
    return _head_dim(s, "n_head") * (_share(s, "n_head") + 2 * _share(s, "n_kv_head"))


def _head_dim(s: Sheet, heads: str) -> Floats:
    return _width(s) / s.numbers(heads)


def _says_yes(s: Sheet, name: str) -> _Mask:
    yes: _Mask = np.char.lower(s.text(name)) == "true"
    return yes


def _gated(s: Sheet) -> _Mask:
    return _says_yes(s, "use_gated_mlp")


def _up(s: Sheet) -> Floats:
    return _share(s, "n_expanded_embd") * np.where(_gated(s), 2, 1)


def _norm(s: Sheet) -> _Columns:
    return {"variant": "rmsnorm", "rows": s.numbers("num_tokens"), "cols": _width(s)}


def _normed_twice(s: Sheet) -> _Mask:
    return s.numbers("time_stats.post_attention_layernorm.median") > 0


def _always(s: Sheet) -> _Mask:
    return np.ones(len(s), dtype=np.bool_)


_Operator = tuple[str, Callable[[Sheet], _Columns], Callable[[Sheet], _Mask], str]
_OPERATORS: Mapping[str, _Operator] = {
    "attn_pre_proj": ("gemm", _product(_width, _qkv), _always, ""),
    "attn_post_proj": ("gemm", _product(lambda s: _share(s, "n_embd"), _width), _always, ""),
    "mlp_up_proj": ("gemm", _product(_width, _up), _always, ""),
    "mlp_down_proj": ("gemm", _product(lambda s: _share(s, "n_expanded_embd"), _width), _always, ""),
    "input_layernorm": ("layernorm", _norm, _normed_twice, "which norm the model has is not in the table"),
    "post_attention_layernorm": ("layernorm", _norm, _normed_twice, "times that are missing or 0"),
    "mlp_act": (
        "elementwise",
        lambda s: {"variant": "gelu", "rows": s.numbers("num_tokens"), "cols": _share(s, "n_expanded_embd")},
        lambda s: ~_gated(s), "gated activations are no operator of the elementwise family",
    ),
    "add": (
        "elementwise", lambda s: {"variant": "add", "rows": s.numbers("num_tokens"), "cols": _width(s)},
        _normed_twice, "sums of three tensors are no operator of the elementwise family",
    ),
}  # fmt: skip


def _heads(s: Sheet) -> _Columns:
    return {"batch": s.numbers("batch_size"), "heads": _share(s, "n_q_head"), "kv_heads": _share(s, "n_kv_head"),
            "head_dim": _head_dim(s, "n_q_head"), "window": 0}  # fmt: skip


def _prefill(s: Sheet) -> _Columns:
    chunk = s.numbers("prefill_chunk_size")
    return _heads(s) | {"variant": "prefill", "q_len": chunk, "kv_len": chunk + s.numbers("kv_cache_size")}


def _decode(s: Sheet) -> _Columns:
    return _heads(s) | {"variant": "decode", "q_len": 1, "kv_len": s.numbers("kv_cache_size") + 1}


def _is_prefill(s: Sheet) -> _Mask:
    return _says_yes(s, "is_prefill")


_ATTENTION: Mapping[str, _Operator] = {
    "attn_prefill": ("attention", _prefill, _is_prefill, "prefill times of decode rows"),
    "attn_decode": ("attention", _decode, lambda s: ~_is_prefill(s), "decode times of prefill rows"),
}


def _is_table(path: Path) -> bool:
    wanted = _FILES.get(path.name)
    return wanted is not None and set(header_of(path)) >= wanted


def _take(sheet: Sheet, device: str | None, builder: ImportBuilder) -> None:
    where = agreed_device(_device(sheet.path), device, str(sheet.path))
    operators = _OPERATORS if sheet.path.name == "mlp.csv" else _ATTENTION
    for operator in _timed(sheet):
        _operator(sheet, operator, operators.get(operator), where, builder)


def _operator(sheet: Sheet, name: str, operator: _Operator | None, device: str, builder: ImportBuilder) -> None:
    latency = sheet.numbers(f"time_stats.{name}.median") * MS
    timed = latency > 0
    if operator is None:
        builder.leave_out(int(timed.sum()), f"no family of kernels for the operator {name!r}")
        return
    family, sizes, covered, why = operator
    wanted = covered(sheet)
    builder.leave_out(int((timed & ~wanted).sum()), why)
    rows = sheet.at(timed & wanted)
    columns = {"device": device, "dtype": "fp16", "impl": _impls(rows), **sizes(rows)}
    builder.add(family, len(rows), latency_s=latency[timed & wanted], **columns)


def _impls(rows: Sheet) -> npt.NDArray[np.str_]:
    """`sarathi`, whose layers Vidur times, and what runs attention: `AttentionBackend.FLASHINFER` is `sarathi_flashinfer`."""
    backends = (word.rpartition(".")[2].lower().replace("-", "_") for word in rows.text("attention_backend").tolist())
    return np.array([f"sarathi_{word}" if word else "sarathi" for word in backends], dtype=np.str_)


def _timed(sheet: Sheet) -> list[str]:
    return [name[11:-7] for name in sheet.names if name.startswith("time_stats.") and name.endswith(".median")]


def _device(path: Path) -> str:
    """The folder under `compute`; empty where the file lies elsewhere."""
    parts = path.resolve().parts
    return parts[parts.index("compute") + 1] if "compute" in parts[:-2] else ""


IMPORTER = table_importer(
    "vidur",
    "a clone of Vidur, or its profiles (mlp.csv, attention.csv)",
    _is_table,
    _take,
    names_devices=False,
    origin="https://github.com/microsoft/vidur",
)
