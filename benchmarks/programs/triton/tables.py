"""Tables of Triton programs: rows, reductions, movement of data, updates; and all there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .case import Scalar, Structure, flags, powers

_ROW = {"BLOCK": powers(128, 32768)}
_FLAT = {"BLOCK": powers(64, 16384)}
_PLANE = {"ROWS": powers(1, 64), "BLOCK": powers(32, 4096)}

ROWS = (
    Structure("softmax", "rows.softmax", "x* bias* out* n stride scale:fp32", _ROW, ("BLOCK",), {
        "plain": {"bias": None, "LOG": False, "CAUSAL": False}, "log": {"bias": None, "LOG": True, "CAUSAL": False},
        "causal": {"bias": None, "LOG": False, "CAUSAL": True}, "bias": {"LOG": False, "CAUSAL": False},
    }, points=2),
    Structure("softmax_tiled", "rows.softmax_tiled", "x* out* rows n stride", _PLANE, ("ROWS", "BLOCK"),
              flags(LOG=(False, True))),
    Structure("softmax_looped", "rows.softmax_looped", "x* out* n stride", _ROW, ("BLOCK",), flags(LOG=(False, True))),
    Structure("softmax_backward", "rows.softmax_backward", "y* dy* dx* n stride", _ROW, ("BLOCK",),
              flags(LOG=(False, True))),
    Structure("norm", "rows.norm", "x* residual* weight* bias* out* mean*fp32 rstd*fp32 n stride eps:fp32", _ROW, ("BLOCK",), {
        "layer": {"residual": None, "RMS": False},
        "layer-inference": {"residual": None, "mean": None, "rstd": None, "RMS": False},
        "layer-residual": {"RMS": False}, "layer-no_bias": {"residual": None, "bias": None, "RMS": False},
        "rms": {"residual": None, "bias": None, "mean": None, "RMS": True},
        "rms-residual": {"bias": None, "mean": None, "rstd": None, "RMS": True},
    }, points=2),
    Structure("norm_looped", "rows.norm_looped", "x* weight* bias* out* n stride eps:fp32", _ROW, ("BLOCK",), {
        "layer": {"RMS": False}, "rms": {"RMS": True, "bias": None}}),
    Structure("norm_backward", "rows.norm_backward",
              "dy* x* weight* mean*fp32 rstd*fp32 dx* dweight*fp32 dbias*fp32 rows n stride", _ROW, ("BLOCK",),
              {"layer": {"RMS": False}, "rms": {"RMS": True, "mean": None, "dbias": None}}, configs=8),
    Structure("group_norm", "rows.group_norm", "x* weight* bias* out* channels size eps:fp32",
              {"CHANNELS": powers(1, 32), "BLOCK": powers(64, 4096)}, ("CHANNELS", "BLOCK"), flags(SILU=(False, True))),
    Structure("cross_entropy", "rows.cross_entropy",
              "logits* target*i64 loss*fp32 grad* n stride smoothing:fp32", _ROW, ("BLOCK",), {
        "plain": {"grad": None, "SMOOTH": False}, "smooth": {"grad": None, "SMOOTH": True}, "grad": {"SMOOTH": False},
        "grad-smooth": {"SMOOTH": True}}),
    Structure("divergence", "rows.divergence", "p* q* out*fp32 n stride", _ROW, ("BLOCK",),
              flags(SYMMETRIC=(False, True))),
    Structure("row_quantise", "rows.row_quantise", "x* out*i8 scales*fp32 n stride limit:fp32", _ROW, ("BLOCK",),
              flags(RMS=(False, True)), points=2),
    Structure("row_quantise_fp8", "rows.row_quantise", "x* out*fp8e4nv scales*fp32 n stride limit:fp32",
              _ROW, ("BLOCK",),
              flags(RMS=(False, True))),
    Structure("rope", "rows.rope", "q* cos* sin* out* heads stride",
              {"HALF": (16, 32, 64, 128), "HEADS": powers(1, 64)},
              ("HALF", "HEADS"), flags(INTERLEAVED=(False, True))),
)  # fmt: skip

REDUCTIONS = (
    Structure("reduce_rows", "reductions.reduce_rows", "x* out* rows n stride", _PLANE, ("ROWS", "BLOCK"),
              flags(WHAT=("sum", "max", "min", "argmax", "var", "norm", "logsumexp")), points=1),
    Structure("reduce_columns", "reductions.reduce_columns", "x* out*fp32 rows n", _PLANE, ("ROWS", "BLOCK"), {
        "sum": {"WHAT": "sum", "ATOMIC": False}, "max": {"WHAT": "max", "ATOMIC": False},
        "squares": {"WHAT": "squares", "ATOMIC": False}, "sum-atomic": {"WHAT": "sum", "ATOMIC": True}}),
    Structure("reduce_all", "reductions.reduce_all", "x* y* out*fp32 n", _FLAT, ("BLOCK",), {
        "sum": {"y": None, "WHAT": "sum", "ATOMIC": False}, "max": {"y": None, "WHAT": "max", "ATOMIC": False},
        "squares-atomic": {"y": None, "WHAT": "squares", "ATOMIC": True},
        "dot": {"WHAT": "sum", "ATOMIC": False}}, points=1),
    Structure("welford", "reductions.welford", "x* mean*fp32 variance*fp32 n stride", _ROW, ("BLOCK",)),
    Structure("argmax_looped", "reductions.argmax_looped", "x* out*i32 n stride", _ROW, ("BLOCK",),
              flags(LEAST=(False, True))),
    Structure("scan", "reductions.scan", "x* y* out* rows n stride", _PLANE, ("ROWS", "BLOCK"), {
        "sum": {"y": None, "WHAT": "sum", "REVERSE": False}, "sum-reverse": {"y": None, "WHAT": "sum", "REVERSE": True},
        "product": {"y": None, "WHAT": "product", "REVERSE": False},
        "recurrence": {"WHAT": "recurrence", "REVERSE": False}}),
    Structure("scan_looped", "reductions.scan_looped", "x* out* n stride", _ROW, ("BLOCK",)),
    Structure("state_space", "reductions.state_space", "x* delta* decay*fp32 gate* out* length width",
              {"BLOCK": powers(16, 512), "STATE": (8, 16, 32, 64)}, ("BLOCK", "STATE"), configs=6),
    Structure("histogram", "reductions.histogram", "x*i32 out*i32 n",
              {"BLOCK": powers(256, 8192), "BINS": powers(16, 1024)},
              ("BLOCK",), dtypes=("i32",)),
    Structure("matvec", "reductions.matvec", "a* x* out* m k", _PLANE, ("ROWS", "BLOCK"), points=3),
    Structure("pool", "reductions.pool", "x* out* height width",
              {"BLOCK": powers(64, 4096), "WINDOW": (2, 3, 5), "STRIDE": (1, 2)},
              ("BLOCK",), flags(MAXIMUM=(False, True))),
)  # fmt: skip

DATA = (
    Structure("embedding", "data.embedding", "table* index*i64 positions* out* n width", _PLANE, ("ROWS", "BLOCK"),
              {"plain": {"positions": None}, "positions": {}}),
    Structure("embedding_bag", "data.embedding_bag",
              "table* index*i64 offsets*i32 weights*fp32 out* width", _FLAT, ("BLOCK",), {
        "sum": {"weights": None, "MEAN": False}, "weighted": {"MEAN": False}, "mean": {"weights": None, "MEAN": True}}),
    Structure("scatter", "data.scatter_add", "values* index*i64 out*fp32 n width", _PLANE, ("ROWS",
              "BLOCK"), flags(ATOMIC=(False, True))),
    Structure("gather", "data.gather_elements", "x* index*i32 out* rows n",
              {"ROWS": powers(1, 16), "BLOCK": powers(32, 512)},
              ("ROWS", "BLOCK"), flags(ON_CHIP=(False, True))),
    Structure("transpose", "data.transpose", "x* out* m n",
              {"TILE_M": powers(8, 256), "TILE_N": powers(8, 256)}, ("TILE_M", "TILE_N"),
              flags(ON_CHIP=(False, True), BATCHED=(False, True)), ("fp16", "fp32", "i8")),
    Structure("swap_heads", "data.swap_heads", "x* out* length heads",
              {"HEAD_DIM": (32, 64, 128), "HEADS": powers(1, 32), "STEPS": powers(1, 32)}, ("HEAD_DIM", "HEADS", "STEPS")),
    Structure("interleave", "data.interleave", "x* y* out* n", _FLAT, ("BLOCK",), flags(SPLIT=(False, True))),
    Structure("concat", "data.concat", "x* y* out* rows n_x n_y", _PLANE, ("ROWS", "BLOCK")),
    Structure("arrange", "data.arrange", "x* out* height width", _FLAT, ("BLOCK",),
              flags(WHAT=("flip", "roll", "pad", "double", "lower"))),
    Structure("dropout", "data.dropout", "x* residual* out* n seed chance:fp32", _FLAT, ("BLOCK",),
              {"plain": {"residual": None}, "residual": {}}, points=4),
    Structure("random_fill", "data.random_fill", "out* n seed", _FLAT, ("BLOCK",),
              flags(WHAT=("uniform", "normal", "whole", "four"))),
    Structure("mix_bits", "data.mix_bits", "x*i32 out*i32 n",
              {**_FLAT, "ROUNDS": (1, 2, 4)}, ("BLOCK",), dtypes=("i32",)),
    Structure("sort_rows", "data.sort_rows", "x* out* n stride", {"BLOCK": powers(32, 1024)}, ("BLOCK",),
              flags(DESCENDING=(False, True)), ("fp32", "fp16")),
)  # fmt: skip

_STEP = "n rate:fp32"

UPDATES = (
    Structure("sgd", "updates.sgd", f"param*fp32 grad* velocity*fp32 copy*bf16 {_STEP} momentum:fp32 decay:fp32",
              _FLAT, ("BLOCK",), {
        "plain": {"velocity": None, "copy": None, "NESTEROV": False}, "momentum": {"copy": None, "NESTEROV": False},
        "nesterov-copy": {"NESTEROV": True}}),
    Structure("adam", "updates.adam", f"param* grad* first* second* highest*fp32 copy*bf16 {_STEP} beta1:fp32 beta2:fp32"
              " eps:fp32 decay:fp32 correct1:fp32 correct2:fp32", _FLAT, ("BLOCK",), {
        "plain": {"highest": None, "copy": None, "DECOUPLED": False},
        "decoupled": {"highest": None, "copy": None, "DECOUPLED": True},
        "decoupled-copy": {"highest": None, "DECOUPLED": True}, "highest": {"copy": None, "DECOUPLED": False}}),
    Structure("adam_8bit", "updates.adam_8bit",
              f"param* grad* first*i8 second*i8 scale1*fp32 scale2*fp32 {_STEP} beta1:fp32 beta2:fp32 eps:fp32",
              {"BLOCK": powers(64, 4096)}, ("BLOCK",)),
    Structure("lion", "updates.lion", f"param* grad* mean* {_STEP} beta1:fp32 beta2:fp32 decay:fp32",
              _FLAT, ("BLOCK",)),
    Structure("adagrad", "updates.adagrad", f"param* grad* squares*fp32 {_STEP} alpha:fp32 eps:fp32",
              _FLAT, ("BLOCK",), flags(FADING=(False, True))),
    Structure("quantise_groups", "updates.quantise_groups", "x* out*i8 scales* zeros*fp32 n",
              {"GROUPS": powers(1, 64), "GROUP": (32, 64, 128)}, ("GROUPS", "GROUP"), {
        "int8": {"zeros": None, "BITS": 8}, "int4": {"zeros": None, "BITS": 4}, "int4-zeros": {"BITS": 4}}),
    Structure("dequantise", "updates.dequantise", "x*i8 scales* table*fp32 out* n",
              {**_FLAT, "GROUP": (32, 64, 128)}, ("BLOCK",), {
        "int8": {"table": None, "BITS": 8}, "int4": {"table": None, "BITS": 4}, "table": {"BITS": 4}}, points=1),
    Structure("fake_quantise", "updates.fake_quantise", "x* out* mask*i8 n scale:fp32 zero:fp32", _FLAT, ("BLOCK",)),
    Structure("gate", "updates.gate", "x* out* rows n", _PLANE, ("ROWS", "BLOCK"),
              flags(KIND=("silu", "gelu", "relu"))),
    Structure("gate_backward", "updates.gate_backward", "x* dout* dx* n", _FLAT, ("BLOCK",),
              flags(KIND=("silu", "gelu", "relu"))),
    Structure("clip", "updates.clip", "grad* norm*fp32 n most:fp32", _FLAT, ("BLOCK",)),
    Structure("average", "updates.average", "shadow* param* n keep:fp32", _FLAT, ("BLOCK",)),
)  # fmt: skip


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

STRUCTURES = (*ROWS, *REDUCTIONS, *MATMULS, *ATTENTION, *DATA, *UPDATES)
