"""Tables of Triton programs with products: of matrices, convolutions and attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .case import Scalar
from .structure import Structure, flags, powers

_DOT = {"TILE_M": powers(16, 256), "TILE_N": powers(16, 256), "TILE_K": powers(16, 128)}
_DOT_HELD = ("TILE_M", "TILE_N")
_DOT_STAGES = (1, 2, 3, 4, 5)
_HALF = ("fp16", "bf16")
_SMALL = ("fp8e4nv", "fp8e5", "i8")
_ATTEND = {"TILE_M": powers(16, 256), "TILE_N": powers(16, 256), "HEAD_DIM": (32, 64, 128, 256)}
_ATTEND_HELD = ("TILE_M", "HEAD_DIM")

_PLAIN = {"bias": None, "other": None, "scale_a": None, "scale_b": None, "TRANS_A": False, "TRANS_B": False, "EVEN_K": False,
          "SPLIT": 1, "BATCHED": False, "INTEGER": False, "PRECISION": "ieee", "GROUP": 8}  # fmt: skip
_OPERANDS = "a* b* bias* other* scale_a*fp32 scale_b*fp32"


def _without(constants: Mapping[str, Scalar], *names: str) -> dict[str, Scalar]:
    """The constants with some of them made arguments again."""
    return {name: value for name, value in constants.items() if name not in names}


def _products() -> Iterator[Structure]:
    changes: Mapping[str, Mapping[str, Scalar]] = {
        "plain": {}, "even": {"EVEN_K": True}, "rows": {"GROUP": 1}, "transposed_b": {"TRANS_B": True},
        "transposed_a": {"TRANS_A": True}, "transposed": {"TRANS_A": True, "TRANS_B": True},
        "batched": {"BATCHED": True},
        "batched-transposed_b": {"BATCHED": True, "TRANS_B": True},
    }  # fmt: skip
    variants = {name: {**_PLAIN, **change} for name, change in changes.items()}
    yield Structure("matmul", "matmul.matmul", f"{_OPERANDS} out* m n k", _DOT, _DOT_HELD, variants,
                    _HALF, _DOT_STAGES, configs=8)  # fmt: skip
    fused = {name: _without({**_PLAIN, **change}, operand)
             for name, operand, change in (("bias", "bias", {}), ("residual", "other", {}),
                                           ("bias-even", "bias", {"EVEN_K": True}),
                                           ("bias-transposed_b", "bias", {"TRANS_B": True}))}  # fmt: skip
    yield Structure("matmul", "matmul.matmul", f"{_OPERANDS} out* m n k", _DOT, _DOT_HELD, fused,
                    _HALF, _DOT_STAGES, points=6, configs=3)  # fmt: skip
    split = {f"split{parts}": {**_PLAIN, "SPLIT": parts} for parts in (2, 4, 8)}
    yield Structure(
        "matmul", "matmul.matmul", f"{_OPERANDS} out*fp32 m n k", _DOT, _DOT_HELD, split, _HALF, _DOT_STAGES
    )
    single = {f"{word}-{name}": {**_PLAIN, **change, "PRECISION": word} for word in ("ieee", "tf32", "tf32x3")
              for name, change in (("plain", {}), ("transposed_b", {"TRANS_B": True}))}  # fmt: skip
    yield Structure(
        "matmul_fp32", "matmul.matmul", f"{_OPERANDS} out* m n k", _DOT, _DOT_HELD, single, ("fp32",), _DOT_STAGES
    )
    scaled = _without(_PLAIN, "scale_a", "scale_b")
    small = {**_DOT, "TILE_K": (32, 64, 128)}
    whole: Mapping[str, Mapping[str, Scalar]] = {
        "plain": {**_PLAIN, "INTEGER": True, "TRANS_B": True},
        "scaled": {**scaled, "INTEGER": True, "TRANS_B": True},
    }
    yield Structure(
        "matmul_int8",
        "matmul.matmul",
        f"{_OPERANDS} out*fp16 m n k",
        small,
        _DOT_HELD,
        whole,
        ("i8",),
        _DOT_STAGES,
        configs=10,
    )
    eighth: Mapping[str, Mapping[str, Scalar]] = {
        "plain": {**_PLAIN, "TRANS_B": True},
        "scaled": {**scaled, "TRANS_B": True},
        "row_major": _PLAIN,
    }
    yield Structure("matmul_fp8", "matmul.matmul", f"{_OPERANDS} out*bf16 m n k", small, _DOT_HELD, eighth,
                    ("fp8e4nv", "fp8e5"), _DOT_STAGES, configs=8)  # fmt: skip


MATMULS = (
    *_products(),
    Structure("matmul_blocks", "matmul.matmul_blocks", "a* b* out* m n k", _DOT, _DOT_HELD,
              flags(TRANS_B=(False, True), GROUP=(1, 8)), _HALF, _DOT_STAGES, points=2),
    Structure("matmul_descriptors", "matmul.matmul_descriptors", "a* b* out* m n k", _DOT, _DOT_HELD,
              flags(GROUP=(8,)), _HALF, _DOT_STAGES, points=3, configs=6),
    Structure("matmul_persistent", "matmul.matmul_persistent", "a* b* out* m n k", _DOT, _DOT_HELD,
              flags(GROUP=(1, 8)), _HALF, _DOT_STAGES, points=2),
    Structure("matmul_gated", "matmul.matmul_gated", "a* gate* up* out* m n k", _DOT, ("TILE_M",
              "TILE_N"), dtypes=_HALF,
              stages=_DOT_STAGES, points=5),
    Structure("matmul_weights", "matmul.matmul_weights", "a* b*i8 scales* zeros* out* m n k", _DOT, ("TILE_M",
              "TILE_N"), {
        "int8": {"zeros": None, "FOUR": False}, "int4": {"zeros": None, "FOUR": True}, "int4-zeros": {"FOUR": True}},
        _HALF, _DOT_STAGES, configs=6),
    Structure("matmul_blockwise", "matmul.matmul_blockwise", "a* b* scale_a*fp32 scale_b*fp32 out*bf16 m n k",
              {**_DOT, "TILE_K": (32, 64, 128)}, _DOT_HELD, dtypes=("fp8e4nv", "fp8e5"), stages=_DOT_STAGES, configs=8),
    Structure("matmul_experts", "matmul.matmul_experts",
              "a* b* tokens*i32 experts*i32 gates*fp32 out* n k count per_token",
              _DOT, _DOT_HELD, {"gated": {"GATED": True}, "plain": {"GATED": False, "gates": None}},
              _HALF, _DOT_STAGES, configs=6),
    Structure("matmul_low_rank", "matmul.matmul_low_rank", "x* down* up* out* m n k scale:fp32",
              {**_DOT, "RANK": (16, 32, 64)},
              _DOT_HELD, dtypes=_HALF, stages=_DOT_STAGES, configs=6),
    Structure("matmul_pair", "matmul.matmul_pair", "x* first* second* out* m hidden",
              {"WIDTH": (32, 64, 128, 256), "TILE_M": powers(16, 256), "TILE_H": powers(16, 128)}, ("TILE_M", "WIDTH"),
              dtypes=_HALF, stages=_DOT_STAGES, points=5),
    Structure("conv2d", "matmul.conv2d", "x* weight* bias* out* batch height width channels filters",
              {**_DOT, "WINDOW": (1, 3, 5, 7), "STRIDE": (1, 2)}, _DOT_HELD, {"bias": {}, "plain": {"bias": None}},
              _HALF, _DOT_STAGES, points=3),
    Structure("conv1d", "matmul.conv1d", "x* weight* bias* out* length channels",
              {"BLOCK": powers(32, 512), "STEPS": powers(1, 64), "WINDOW": (2, 3, 4)}, ("BLOCK", "STEPS"),
              {"silu": {"SILU": True}, "plain": {"SILU": False, "bias": None}}),
)  # fmt: skip

_FORWARD = {"bias": None, "sinks": None, "sums": None, "CAUSAL": False, "WINDOW": 0, "CAP": 0, "MASK_IN_LOOP": True}
_BACK = "q* k* v* dout* sums*fp32 delta*fp32"

ATTENTION = (
    Structure("attention", "attention.forward", "q* k* v* bias* sinks*fp32 out* sums*fp32 q_len kv_len scale:fp32",
              _ATTEND, _ATTEND_HELD, {
        "causal": {**_FORWARD, "CAUSAL": True}, "full": {**_FORWARD}, "unmasked": {**_FORWARD, "MASK_IN_LOOP": False},
        "window": {**_FORWARD, "CAUSAL": True, "WINDOW": 512}, "capped": {**_FORWARD, "CAUSAL": True, "CAP": 50},
        "bias": _without(_FORWARD, "bias"),
        "causal-sums": {**_without(_FORWARD, "sums"), "CAUSAL": True},
        "causal-sinks": {**_without(_FORWARD, "sinks"), "CAUSAL": True}},
        _HALF, _DOT_STAGES, configs=12),
    Structure("attention_backward_keys", "attention.backward_keys", f"{_BACK} dk* dv* q_len kv_len scale:fp32",
              {**_ATTEND, "TILE_M": powers(16, 128), "TILE_N": powers(16, 128)}, ("TILE_N", "HEAD_DIM"),
              flags(CAUSAL=(False, True)), _HALF, _DOT_STAGES, configs=12),
    Structure("attention_backward_queries", "attention.backward_queries", f"{_BACK} dq* q_len kv_len scale:fp32",
              {**_ATTEND, "TILE_M": powers(16, 128), "TILE_N": powers(16, 128)}, _ATTEND_HELD,
              flags(CAUSAL=(False, True)), _HALF, _DOT_STAGES, configs=12),
    Structure("attention_backward_delta", "attention.backward_delta", "out* dout* delta*fp32 rows",
              {"HEAD_DIM": (32, 64, 128, 256), "TILE_M": powers(1, 128)}, _ATTEND_HELD),
    Structure("attention_decode", "attention.decode",
              "q* k* v* pages*i32 lengths*i32 out* sums*fp32 kv_heads part_len scale:fp32",
              {"HEAD_DIM": (32, 64, 128, 256), "GROUP": (16, 32), "TILE_N": powers(16, 128)}, ("TILE_N", "HEAD_DIM"), {
        "plain": {"pages": None, "PAGE": 0, "DOT": True},
        "paged": {"PAGE": 16, "DOT": True}}, _HALF, _DOT_STAGES, configs=10),
    Structure("attention_decode_elementwise", "attention.decode",
              "q* k* v* pages*i32 lengths*i32 out* sums*fp32 kv_heads part_len scale:fp32",
              {"HEAD_DIM": (32, 64, 128), "GROUP": (1, 2, 4), "TILE_N": powers(16, 128)}, ("TILE_N", "HEAD_DIM", "GROUP"), {
        "plain": {"pages": None, "PAGE": 0, "DOT": False},
        "paged": {"PAGE": 16, "DOT": False}}, _HALF, _DOT_STAGES, configs=8),
    Structure("attention_merge", "attention.merge_parts", "parts* sums*fp32 out* rows count",
              {"HEAD_DIM": (32, 64, 128, 256), "TILE_M": powers(1, 64)}, _ATTEND_HELD),
    Structure("linear_attention", "attention.linear", "q* k* v* gate*fp32 out* length",
              {"KEY_DIM": (16, 32, 64, 128), "VALUE_DIM": (16, 32, 64, 128), "TILE": (16, 32, 64, 128)},
              ("KEY_DIM", "VALUE_DIM"),
              {"plain": {"gate": None, "DECAY": False}, "decay": {"DECAY": True}}, ("bf16",), _DOT_STAGES, configs=12),
)  # fmt: skip
