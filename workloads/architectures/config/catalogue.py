"""Facts of models by name, a repository's or a short one, for those that ship; and from the columns of a table for others."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from ....features.errors import SpecError, listed
from ..facts import ModelFacts
from .reading import read_config_file, read_facts

MODELS = Path(__file__).with_name("models.yaml")


@cache
def _entries() -> Mapping[str, Mapping[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries: Mapping[str, Mapping[str, Any]] = yaml.load(MODELS.read_text(encoding="utf-8"), loader)["models"]  # noqa: S506
    return MappingProxyType(entries)


@cache
def _names() -> Mapping[str, str]:
    """Repository by any name in lower case."""
    return MappingProxyType({
        alias.lower(): name for name, entry in _entries().items() for alias in (name, *entry["aliases"])
    })  # fmt: skip


def model_names() -> tuple[str, ...]:
    """The models that ship."""
    return tuple(_entries())


def published_parameters(name: str) -> float:
    """Parameters that the makers of a shipped model publish."""
    return float(_entries()[name]["parameters"])


def _repository(name: str) -> str | None:
    """The shipped repository that a name means: any of its names, its maker before a short one or not."""
    maker, _, short = name.lower().rpartition("/")
    key = _names().get(name.lower()) or _names().get(short)
    return key if key is not None and (name.lower() in _names() or key.lower().startswith(f"{maker}/")) else None


def model_facts(name: str) -> ModelFacts:
    """The facts of a shipped model.

    Raises:
        SpecError: there is none of that name; the message names the nearest.
    """
    key = _repository(name) if isinstance(name, str) else None
    if key is None:
        nearest = difflib.get_close_matches(str(name).lower(), _names(), n=3, cutoff=0.5)
        near = dict.fromkeys(_names()[word] if word not in _entries() else word for word in nearest)
        which = (
            f"one of the {len(model_names())} that do; nearest: {listed(near)}"
            if near
            else f"one of: {listed(model_names())}"
        )
        raise SpecError(f"no model {name!r} ships; give the path of its config.json, or {which}", field="model")
    return read_facts(_entries()[key]["config"], key, source=f"config.json of huggingface.co/{key}")


def facts_of(model: str | Path | Mapping[str, Any] | ModelFacts) -> ModelFacts:
    """The facts of a model, by the name of one that ships, the path of a `config.json`, or what such a file says.

    A text is a path where it ends in `.json`, or is that of a folder with a `config.json`; one that ends in `.yaml` has lines
    of `FACTS`, such as `layers: 32`, or those of a configuration.

    Raises:
        SpecError: there is no such model or file, or the configuration is refused.
    """
    if isinstance(model, ModelFacts):
        return model
    if isinstance(model, Mapping):
        return read_facts(model, str(model.get("_name_or_path") or "model"))
    if not isinstance(model, str | Path):
        raise SpecError(
            f"a model is a name, the path of a config.json or its content, got {type(model).__name__}", field="model"
        )
    path = Path(model)
    if (path / "config.json").is_file():
        return read_config_file(path / "config.json")
    if path.suffix in (".yaml", ".yml"):
        return _yaml_facts(path)
    if isinstance(model, Path) or path.suffix == ".json":
        return read_config_file(path)
    return model_facts(model)


FACTS = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "experts", "top_k", "moe_ffn", "kv_lora_rank", "vocab",
)  # fmt: skip
"""Columns that describe a model's shape; `layers`, `hidden` and `heads` are needed."""


def _yaml_facts(path: Path) -> ModelFacts:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}", field="model") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError(f"{path} is no YAML: {str(error).splitlines()[0]}", field="model") from error
    name = path.stem
    if isinstance(raw, dict) and "model_type" in raw:
        return read_facts(raw, name, source=str(path))
    if not isinstance(raw, dict) or not {"layers", "hidden", "heads"} <= set(raw) <= {"name", *FACTS}:
        raise SpecError(
            f"{path} has lines of {listed(FACTS)}, of which layers, hidden and heads are needed, and a name if it likes; or "
            "those of a config.json", field="model",
        )  # fmt: skip
    sizes = {column: size for column in FACTS if (size := _size(raw, column)) is not None}
    return read_facts(_config(sizes), str(raw.get("name") or name), source=str(path))


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
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 or not 0 <= value < math.inf:
        raise SpecError(f"{column} must be a whole number, got {value!r}", field=column)
    return int(value)


def _config(sizes: Mapping[str, int]) -> dict[str, Any]:
    """A configuration with such sizes, of the architecture that has them."""
    words = {
        "hidden_size": "hidden", "num_hidden_layers": "layers", "num_attention_heads": "heads",
        "num_key_value_heads": "kv_heads", "head_dim": "head_dim", "intermediate_size": "ffn", "vocab_size": "vocab",
    }  # fmt: skip
    # Null where a row says nothing: no class's default is meant.
    config: dict[str, Any] = {key: sizes.get(name) for key, name in words.items()}
    config["vocab_size"] = sizes.get("vocab", 128256)
    if "experts" in sizes:
        config |= {"num_experts": sizes["experts"], "num_experts_per_tok": sizes.get("top_k", 1)}
        config["moe_intermediate_size"] = sizes.get("moe_ffn")
    if "kv_lora_rank" in sizes:
        # DeepSeek-V3's sizes of heads: every published model with latent attention of this rank has them.
        return config | {
            "model_type": "deepseek_v3", "kv_lora_rank": sizes["kv_lora_rank"], "q_lora_rank": 1536, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "n_shared_experts": 1, "first_k_dense_replace": 3,
            "n_routed_experts": config.pop("num_experts", 1),
        }  # fmt: skip
    return config | {"model_type": "qwen3_moe" if "experts" in sizes else "llama"}
