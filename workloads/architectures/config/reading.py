"""The facts of a model from its configuration: the architecture's reader, or an error that says which there are."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ....features.errors import SpecError, check_text, listed
from ..facts import ModelFacts
from .decoders import TRAITS, Traits, read_decoder, read_deepseek
from .fields import Config
from .others import (
    read_bert,
    read_gpt2,
    read_gpt_neox,
    read_gptj,
    read_mamba2,
    read_nemotron_h,
    read_opt,
    read_phi,
    read_starcoder2,
    read_vit,
    read_whisper,
)

MAX_CONFIG_B = 2**22
"""Largest configuration read; real ones are some kilobytes."""

READERS: Mapping[str, Callable[[Config, str], ModelFacts]] = {
    **{name: partial(read_decoder, traits=traits) for name, traits in TRAITS.items()},
    **{name: partial(read_deepseek, traits=Traits()) for name in ("deepseek_v2", "deepseek_v3", "kimi_k2")},
    "bert": read_bert,
    "gpt2": read_gpt2,
    "gpt_neox": read_gpt_neox,
    "gptj": read_gptj,
    "mamba2": read_mamba2,
    "nemotron_h": read_nemotron_h,
    "opt": read_opt,
    "phi": read_phi,
    "starcoder2": read_starcoder2,
    "vit": read_vit,
    "whisper": read_whisper,
}
"""By `model_type`."""

_TEXT_OF = {
    "gemma3": "gemma3_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "mistral3": "mistral",
}
"""Models of text and images whose text part is read, by `model_type`, with what that part is where it does not say."""


_DROPOUTS = ("hidden_dropout_prob", "resid_pdrop", "hidden_dropout", "residual_dropout", "dropout")
"""Fields that say which share of the residual stream training drops; a model has one of them."""
_DROP = frozenset({"bert", "gpt2", "opt"})
"""Models that drop some where the field is missing: the defaults of their classes in transformers."""


def read_facts(values: Any, name: str, *, source: str = "") -> ModelFacts:
    """The facts of a model.

    Args:
        values: the content of its `config.json`.
        name: its name.
        source: where the configuration comes from.

    Raises:
        SpecError: the architecture is unknown, or a field missing or wrong; the message says what is possible.
    """
    config = Config(values, check_text(name, "name"))
    kind = config.word("model_type", "")
    if not kind:
        raise config.wrong("model_type", f"the architecture, one of {listed(sorted({*READERS, *_TEXT_OF}))}")
    if kind in _TEXT_OF:
        facts = _read_text_part(config, kind, name)
    elif kind in READERS:
        facts = READERS[kind](config, name)
    else:
        known = sorted({*READERS, *_TEXT_OF})
        nearest = difflib.get_close_matches(kind, known, n=1, cutoff=0.5)
        hint = f"; nearest: {nearest[0]}" if nearest else ""
        raise SpecError(
            f"{name}: no architecture {kind!r} is read{hint}; read are {listed(known)}. A list of kernels of your own goes to "
            "`kernelcast predict model`", field="model_type",
        )  # fmt: skip
    return replace(facts, source=source, dropout=_drops(config, kind))


def _drops(config: Config, kind: str) -> bool:
    shares = {field: config.values[field] for field in _DROPOUTS if config.values.get(field) is not None}
    for field, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise config.wrong(field, "a share from 0 to 1")
    return any(shares.values()) if shares else kind in _DROP


def _read_text_part(config: Config, kind: str, name: str) -> ModelFacts:
    text = config.nested("text_config")
    if text is None:
        raise config.wrong("text_config", "the configuration of its text part")
    # What the outer configuration says holds for the text part too, unless that says otherwise.
    outer = {key: config.values[key] for key in ("quantization_config", "torch_dtype", "dtype", "tie_word_embeddings")
             if key in config}  # fmt: skip
    inner = Config({**outer, **text.values, "model_type": _TEXT_OF[kind]}, text.origin)
    facts = READERS[_TEXT_OF[kind]](inner, name)
    return replace(facts, notes=(*facts.notes, "only the text part of the model is read; images are left out"))


def read_config_file(path: Path, name: str | None = None) -> ModelFacts:
    """The facts of the model a file describes; its name is that of the folder where none is given.

    Raises:
        SpecError: the file cannot be read, is no JSON, or is refused by `read_facts`.
    """
    try:
        if path.stat().st_size > MAX_CONFIG_B:
            raise SpecError(
                f"{path} has more than {MAX_CONFIG_B} bytes; a config.json has some thousand", field="config"
            )
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}", field="config") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path} is no JSON: {error}", field="config") from error
    return read_facts(values, name or (path.resolve().parent.name if path.name == "config.json" else path.stem),
                      source=str(path))  # fmt: skip
