"""Facts of a model from the columns of a table that describe its shape, where no model of its name ships."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....features.errors import SpecError
from ..facts import ModelFacts
from .catalogue import facts_of
from .reading import read_facts

FACTS = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "experts", "top_k", "moe_ffn", "kv_lora_rank", "vocab",
)  # fmt: skip
"""Columns that describe a model's shape; `layers`, `hidden` and `heads` are needed."""


def row_facts(row: Mapping[str, Any]) -> ModelFacts:
    """The model of a row: one that ships under its name, or else what the row's columns say of its shape.

    Raises:
        SpecError: no model of that name ships, and the columns do not describe one.
    """
    name = row.get("model")
    if not isinstance(name, str) or not name:
        raise SpecError("a row needs the name of a model", field="model")
    try:
        return facts_of(name)
    except SpecError:
        sizes = {column: size for column in FACTS if (size := _size(row, column)) is not None}
        if not {"layers", "hidden", "heads"} <= set(sizes):
            raise
    return read_facts(_config(sizes), name, source="columns of the table")


def _size(row: Mapping[str, Any], column: str) -> int | None:
    """A size, None where the row has none: empty, NaN or 0."""
    value = row.get(column)
    if value is None or value != value or value == 0:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise SpecError(f"{column} must be a whole number, got {value!r}", field=column)
    return int(value)


def _config(sizes: Mapping[str, int]) -> dict[str, Any]:
    """A configuration with such sizes, of the architecture that has them."""
    words = {
        "hidden_size": "hidden", "num_hidden_layers": "layers", "num_attention_heads": "heads",
        "num_key_value_heads": "kv_heads", "head_dim": "head_dim", "intermediate_size": "ffn", "vocab_size": "vocab",
    }  # fmt: skip
    config: dict[str, Any] = {"vocab_size": 128256} | {key: sizes[name] for key, name in words.items() if name in sizes}
    if "experts" in sizes:
        config |= {"num_experts": sizes["experts"], "num_experts_per_tok": sizes.get("top_k", 1)}
        if "moe_ffn" in sizes:
            config["moe_intermediate_size"] = sizes["moe_ffn"]
    if "kv_lora_rank" in sizes:
        # DeepSeek-V3's sizes of heads: every published model with latent attention of this rank has them.
        return config | {
            "model_type": "deepseek_v3", "kv_lora_rank": sizes["kv_lora_rank"], "q_lora_rank": 1536, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "n_shared_experts": 1, "first_k_dense_replace": 3,
            "n_routed_experts": config.pop("num_experts", 1),
        }  # fmt: skip
    return config | {"model_type": "qwen3_moe" if "experts" in sizes else "llama"}
