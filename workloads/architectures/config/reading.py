"""The facts of a model from its configuration: the architecture's reader, or an error that says which there are."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from ....features.errors import SpecError, check_text, listed
from ..facts import ModelFacts
from .decoders import (
    TRAITS,
    Traits,
    read_decoder,
    read_deepseek,
    read_gemma3n,
    read_mllama,
)
from .encoders import (
    read_bart,
    read_bert,
    read_deberta,
    read_distilbert,
    read_modernbert,
    read_t5,
    read_wav2vec2,
    read_whisper,
)
from .fields import Config
from .gpt import (
    read_bloom,
    read_dbrx,
    read_falcon,
    read_gpt2,
    read_gpt_neo,
    read_gpt_neox,
    read_gptj,
    read_mpt,
    read_opt,
    read_starcoder2,
    read_xglm,
)
from .hybrids import (
    read_bamba,
    read_falcon_h1,
    read_jamba,
    read_kimi_linear,
    read_lfm2,
    read_mamba,
    read_mamba2,
    read_minimax,
    read_nemotron_h,
    read_xlstm,
    read_zamba2,
)
from .images import read_convnext, read_sam, read_segformer, read_swin, read_vit

MAX_CONFIG_B = 2**22
"""Largest configuration read; real ones are some kilobytes."""

READERS: Mapping[str, Callable[[Config, str], ModelFacts]] = {
    **{name: partial(read_decoder, traits=traits) for name, traits in TRAITS.items()},
    **{
        name: partial(read_deepseek, traits=Traits())
        for name in ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2")
    },
    **{
        name: partial(read_decoder, traits=TRAITS[like])
        for name, like in (
            ("glm4v_text", "glm4"),
            ("glm4v_moe_text", "glm4_moe"),
            ("qwen2_vl_text", "qwen2"),
            ("qwen2_5_vl_text", "qwen2"),
            ("qwen3_vl_text", "qwen3"),
            ("qwen3_vl_moe_text", "qwen3_moe"),
        )
    },
    **{name: partial(read_bart, unused=2) for name in ("bart", "m2m_100", "plbart")},
    **dict.fromkeys(("blenderbot", "blenderbot-small", "pegasus"), read_bart),
    **{
        name: partial(read_bert, unused=2)
        for name in ("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl")
    },
    **dict.fromkeys(("hubert", "unispeech", "unispeech-sat", "wav2vec2", "wavlm"), read_wav2vec2),
    **dict.fromkeys(("clip_vision_model", "dinov2", "vit", "vit_mae", "vit_msn"), read_vit),
    "albert": partial(read_bert, factored=True),
    "bamba": read_bamba,
    "bert": read_bert,
    "biogpt": read_opt,
    "bloom": read_bloom,
    "codegen": read_gptj,
    "convnext": read_convnext,
    "dbrx": read_dbrx,
    "deberta": read_deberta,
    "deberta-v2": read_deberta,
    "deit": partial(read_vit, tokens=2),
    "dinov2_with_registers": partial(read_vit, tokens=5),
    "distilbert": read_distilbert,
    "electra": partial(read_bert, factored=True, pooler=False),
    "ernie": read_bert,
    "falcon": read_falcon,
    "falcon_h1": read_falcon_h1,
    "falcon_mamba": read_mamba,
    "gemma3n_text": read_gemma3n,
    "gpt2": read_gpt2,
    "gpt_bigcode": read_gpt2,
    "gpt_neo": read_gpt_neo,
    "gpt_neox": read_gpt_neox,
    "gptj": read_gptj,
    "granitemoehybrid": read_bamba,
    "jamba": read_jamba,
    "kimi_linear": read_kimi_linear,
    "lfm2": read_lfm2,
    "lfm2_moe": read_lfm2,
    "longt5": read_t5,
    "mamba": read_mamba,
    "mamba2": read_mamba2,
    "marian": partial(read_bart, end_norms=0),
    "mbart": partial(read_bart, unused=2, end_norms=2),
    "megatron-bert": read_bert,
    "minimax": read_minimax,
    "minimax_text_01": read_minimax,
    "mllama_text_model": read_mllama,
    "modernbert": read_modernbert,
    "mpnet": partial(read_bert, unused=2, types=0),
    "mpt": read_mpt,
    "mt5": read_t5,
    "nemotron_h": read_nemotron_h,
    "openai-gpt": read_gpt2,
    "opt": read_opt,
    "phi": partial(read_gpt_neox, activation="gelu_new", norms=1),
    "sam_vision_model": read_sam,
    "segformer": read_segformer,
    "siglip_vision_model": partial(read_vit, tokens=0),
    "starcoder2": read_starcoder2,
    "swin": read_swin,
    "swinv2": read_swin,
    "t5": read_t5,
    "umt5": partial(read_t5, tables=True),
    "whisper": read_whisper,
    "xglm": read_xglm,
    "xlstm": read_xlstm,
    "zamba2": read_zamba2,
}
"""By `model_type`."""

_OF_IMAGES = {
    "aya_vision": "cohere2", "blip-2": "opt", "cohere2_vision": "cohere2", "deepseek_vl": "llama", "fuyu": "persimmon",
    "gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "glm4v": "glm4v_text", "glm4v_moe": "glm4v_moe_text",
    "got_ocr2": "qwen2", "idefics2": "mistral", "idefics3": "llama", "instructblip": "llama", "internvl": "qwen2",
    "janus": "llama", "kimi_vl": "deepseek_v3", "lfm2_vl": "lfm2", "llama4": "llama4_text", "llava": "llama",
    "llava_next": "llama", "llava_next_video": "llama", "llava_onevision": "qwen2", "mistral3": "mistral",
    "mllama": "mllama_text_model", "paligemma": "gemma", "qwen2_5_vl": "qwen2_5_vl_text", "qwen2_vl": "qwen2_vl_text",
    "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text", "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text", "smolvlm": "llama", "video_llava": "llama", "vipllava": "llama",
}  # fmt: skip
_OF_SOUND = {"granite_speech": "granite", "qwen2_audio": "qwen2", "voxtral": "llama"}
_INNER = {**_OF_IMAGES, **_OF_SOUND}
"""Models of text and images or sound whose text part is read, by `model_type`, with what that part is where it does not say."""
_VISION = {"clip": "clip_vision_model", "sam": "sam_vision_model", "siglip": "siglip_vision_model"}
"""Models that compare images with text or draw masks, of which the image part is read."""
_NESTED = {
    **dict.fromkeys(_OF_IMAGES, ("text_config", "text", "images are left out")),
    **dict.fromkeys(_OF_SOUND, ("text_config", "text", "sound is left out")),
    **dict.fromkeys(_VISION, ("vision_config", "image", "the text part is left out")),
    "sam": ("vision_config", "image", "what reads points and draws masks is left out"),
}
"""Field of the part that is read, what it is, and what of the model is left out."""
_SIZES_OF_OTHERS = {"mllama": ("vision_config",)}
"""Fields of the outer configuration that say what the part that is read looks at."""
_FLAT = ("qwen2_vl", "qwen2_5_vl")
"""Those of which earlier files have the fields of the text part among the others."""
KNOWN = sorted({*READERS, *_NESTED})
"""Every `model_type` that is read."""

_WHY_NOT = {
    "detr": "its backbone is a ResNet, of whose layers none is described; nearest: vit",
    "rwkv": "its channels go through a text position by position, and no kernel like that was measured; nearest: mamba2",
}
"""Of other architectures that are often asked for, what is missing and what comes nearest."""

_ALWAYS_THERE = frozenset({
    "hidden_size", "num_hidden_layers", "n_embd", "n_layer", "d_model", "n_layers", "dim", "encoder_layers", "decoder_layers",
    "num_layers", "embed_dim", "depths", "hidden_sizes", "max_position_embeddings", "n_positions", "max_target_positions",
    "max_source_positions",
})  # fmt: skip
"""Fields that have no default at the top of a file: public ones have them, and else any JSON would be a model."""

_DROPOUTS = ("hidden_dropout_prob", "resid_pdrop", "hidden_dropout", "residual_dropout", "dropout", "dropout_rate")
"""Fields that say which share of the residual stream training drops; a model has one of them."""
_DROP = frozenset({
    "bart", "bert", "biogpt", "blenderbot", "blenderbot-small", "camembert", "data2vec-text", "deberta", "deberta-v2",
    "distilbert", "electra", "ernie", "gpt2", "gpt_bigcode", "hubert", "longt5", "m2m_100", "marian", "mbart", "megatron-bert",
    "mpnet", "mt5", "openai-gpt", "opt", "pegasus", "plbart", "roberta", "roberta-prelayernorm", "t5", "umt5", "unispeech",
    "unispeech-sat", "wav2vec2", "wavlm", "xglm", "xlm-roberta", "xlm-roberta-xl",
})  # fmt: skip
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
        raise config.wrong("model_type", f"the architecture, one of {listed(KNOWN)}")
    facts = _read_part(config, kind, name) if kind in _NESTED else _read(config, kind, name, left_out=_ALWAYS_THERE)
    return replace(facts, source=source, dropout=_drops(config, kind))


@cache
def _class_defaults() -> Mapping[str, Mapping[str, Any]]:
    """By `model_type`, what fields are that a configuration leaves out."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = Path(__file__).with_name("class_defaults.yaml").read_text(encoding="utf-8")
    return MappingProxyType(yaml.load(text, loader))  # noqa: S506


def _read(config: Config, kind: str, name: str, *, left_out: frozenset[str] = frozenset()) -> ModelFacts:
    """The facts of a configuration of a kind, with its class's defaults but for the fields left out."""
    if kind not in READERS:
        nearest = difflib.get_close_matches(kind, KNOWN, n=1, cutoff=0.5)
        hint = f", as {_WHY_NOT[kind]}" if kind in _WHY_NOT else f"; nearest: {nearest[0]}" if nearest else ""
        raise SpecError(
            f"{config.origin}: no architecture {kind!r} is read{hint}; read are {listed(KNOWN)}. A list of kernels of your "
            "own goes to `kernelcast predict model`, a model in PyTorch to `kernelcast estimate FILE.py:FUNCTION`",
            field="model_type",
        )  # fmt: skip
    defaults = {key: value for key, value in _class_defaults().get(kind, {}).items() if key not in left_out}
    known = Config({**config.values, "model_type": kind}, config.origin, defaults)
    facts = READERS[kind](known, name)
    if not known.assumed:
        return facts
    fields = ", ".join(f"{key} {value}" for key, value in known.assumed.items())
    return replace(facts, notes=(*facts.notes, f"the configuration leaves out, and {kind} has by default: {fields}"))


def _drops(config: Config, kind: str) -> bool:
    shares = {field: config.values[field] for field in _DROPOUTS if config.values.get(field) is not None}
    for field, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise config.wrong(field, "a share from 0 to 1")
    return any(shares.values()) if shares else kind in _DROP


def _read_part(config: Config, kind: str, name: str) -> ModelFacts:
    """The text part of a model of text and images, or the image part of one that compares them."""
    field, part, others = _NESTED[kind]
    inner = config.nested(field)
    if inner is None and kind in _FLAT and "hidden_size" in config:
        inner = config
    if inner is None:
        raise config.wrong(field, f"the configuration of its {part} part")
    default = _INNER.get(kind) or _VISION[kind]
    inner_kind = default if inner is config else inner.word("model_type", default)
    # What the outer configuration says holds for the part too, unless that says otherwise.
    outer = {
        key: config.values[key]
        for key in (
            "quantization_config",
            "torch_dtype",
            "dtype",
            "tie_word_embeddings",
            *_SIZES_OF_OTHERS.get(kind, ()),
        )
        if key in config
    }
    facts = _read(Config({**outer, **inner.values}, inner.origin), inner_kind, name)
    return replace(facts, notes=(*facts.notes, f"only the {part} part of the model is read; {others}"))


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
