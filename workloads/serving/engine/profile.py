"""What an engine adds to the kernels of its steps: a handful of numbers per engine, fitted to measured steps.

A decode step is one CUDA graph and takes

    t = decode_s + decode_factor·(products, attention, experts + collective_share·collectives + small_share·other kernels)

In a graph of short kernels, norms and element-by-element kernels are fused into their neighbours or start before those end, and
an all-reduce is fused with the norm that follows: a share of their time remains. A step with tokens of prompts (a prefill, a
chunk of one, or prompts and decoding mixed) takes

    t = prompt_s + max(prompt_factor·(GPU + (expert_factor - 1)·experts), host)
    host = Σ over layers of the time in which the host launches one

where GPU is the sum of all kernels and collectives: experts of many tokens are known less well than products. Up to
`captured_tokens` tokens, pieces of the layers are graphs too, and the host launches one by one only what is not captured:
linear attention and state spaces. Above, it launches every layer. So it does for a decode step of more sequences than the
largest graph has; those of smaller ones are padded to the next graph's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ....features.batch.cases import Floats
from ....features.errors import SpecError, listed
from ...architectures.facts import ModelFacts

PROFILES = Path(__file__).with_name("profiles.yaml")

ENGINES: Mapping[str, str] = {
    "vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm", "tensorrt-llm": "trtllm", "tensorrt_llm": "trtllm",
    "other": "other", "pytorch": "other", "deepspeed": "other", "llama.cpp": "other",
}  # fmt: skip
"""Engines by any of their names; `other` has no graphs, and an interval that says how little is known."""

NUMBERS = (
    "decode_s", "decode_factor", "collective_share", "small_share", "prompt_s", "prompt_factor", "layer_host_s",
    "moe_layer_host_s", "linear_layer_host_s", "decode_spread", "prompt_spread", "expert_factor",
)  # fmt: skip
"""Fields of a profile that are numbers of at least 0."""
_UNCAPTURED = ("linear_attention", "state_space")


@dataclass(frozen=True, slots=True)
class LayerCounts:
    """Layers of a model by what the host launches in them.

    Attributes:
        dense: Without experts.
        moe: With experts.
        linear: Of these, with linear attention or a state space.
    """

    dense: int
    moe: int
    linear: int

    @classmethod
    def of(cls, facts: ModelFacts) -> LayerCounts:
        """Those of a model."""
        parts = list(facts.parts)
        moe = sum(count for count, part in parts if part.name == "moe")
        linear = sum(count for count, part in parts if part.name in _UNCAPTURED)
        return cls(max(0, facts.layers - moe), moe, linear)


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Steps as a profile sees them, in columns of shape `(n,)`.

    Attributes:
        main_s: Sum of products, attention and experts.
        small_s: Sum of all other kernels.
        collectives_s: Sum of the collectives.
        tokens: New tokens of all sequences.
        sequences: Sequences that take part.
        prompt: Whether tokens of prompts take part.
        experts_s: The experts' part of `main_s`.
        dense: Layers without experts, as the others of `LayerCounts`.
        moe: Layers with experts.
        linear: Layers with linear attention or a state space.
    """

    main_s: Floats
    small_s: Floats
    collectives_s: Floats
    tokens: Floats
    sequences: Floats
    prompt: Any
    experts_s: Floats
    dense: Floats
    moe: Floats
    linear: Floats

    @classmethod
    def joined(cls, parts: Sequence[StepColumns]) -> StepColumns:
        """Steps after one another."""
        return cls(*(np.concatenate([getattr(part, item.name) for part in parts]) for item in fields(cls)))

    @property
    def gpu_s(self) -> Floats:
        """Sum of all kernels and collectives."""
        return self.main_s + self.small_s + self.collectives_s

    def take(self, rows: Any) -> StepColumns:
        """The steps of some rows."""
        return StepColumns(*(getattr(self, item.name)[rows] for item in fields(self)))


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """What an engine adds to the kernels of its steps; the formula is the module's.

    Attributes:
        engine: Its name.
        version: The version that was measured; empty where none was.
        impl: What its products, attention and experts are, an implementation of the kernels' model; empty: the usual one.
        decode_s: Seconds of a decode step beyond its graph.
        decode_factor: Time of a graph over the sum of its kernels.
        collective_share: Share of the time of collectives that remains in a graph.
        small_share: Share of the time of other kernels than products, attention and experts that remains in a graph.
        prompt_s: Seconds of a step with prompts beyond its layers.
        prompt_factor: Time on the GPU over the sum of the kernels of such a step.
        layer_host_s: Seconds in which the host launches a layer without experts.
        moe_layer_host_s: … a layer with experts.
        linear_layer_host_s: … linear attention or a state space alone.
        captured_tokens: Most tokens of a step whose layers are captured in pieces; 0: none are.
        batches: Sequences of the decode graphs, ascending.
        decode_spread: 90 % of ln errors of decode steps of models and plans left out are within it.
        prompt_spread: … of steps with prompts.
        source: What it was fitted to, or where its numbers come from.
        expert_factor: Time of experts in a step with prompts over that of their kernels, beyond `prompt_factor`.
    """

    engine: str
    version: str
    impl: str
    decode_s: float
    decode_factor: float
    collective_share: float
    small_share: float
    prompt_s: float
    prompt_factor: float
    layer_host_s: float
    moe_layer_host_s: float
    linear_layer_host_s: float
    captured_tokens: int
    batches: tuple[int, ...]
    decode_spread: float
    prompt_spread: float
    source: str = ""
    expert_factor: float = 1.0

    def padded(self, sequences: int) -> int:
        """Sequences of the smallest graph that holds so many; as many where none does."""
        place = bisect_left(self.batches, sequences)
        return self.batches[place] if place < len(self.batches) else sequences

    def captured(self, steps: StepColumns) -> Any:
        """Whether a step is one graph, shape `(n,)`."""
        return ~steps.prompt & (steps.sequences <= (self.batches[-1] if self.batches else 0))

    def gpu_s(self, steps: StepColumns) -> Floats:
        """Time on the GPU, shape `(n,)`."""
        shares = (self.collective_share, self.small_share)
        collectives, small = (np.where(self.captured(steps), share, 1.0) for share in shares)
        factor = np.where(steps.prompt, self.prompt_factor, self.decode_factor)
        experts_s = np.where(steps.prompt, self.expert_factor - 1, 0.0) * steps.experts_s
        return np.asarray(
            factor * (steps.main_s + experts_s + collectives * steps.collectives_s + small * steps.small_s)
        )

    def host_s(self, steps: StepColumns) -> Floats:
        """Time in which the host launches the layers of steps, shape `(n,)`; 0 for graphs."""
        eager = self.layer_host_s * steps.dense + self.moe_layer_host_s * steps.moe
        pieces = np.minimum(self.linear_layer_host_s * steps.linear, eager)
        launched = np.where(steps.prompt & (steps.tokens <= self.captured_tokens), pieces, eager)
        return np.where(self.captured(steps), 0.0, launched)

    def seconds(self, steps: StepColumns) -> Floats:
        """Times of steps, shape `(n,)`."""
        constant = np.where(steps.prompt, self.prompt_s, self.decode_s)
        return np.asarray(constant + np.maximum(self.gpu_s(steps), self.host_s(steps)))

    def spread(self, prompt: Any) -> Floats:
        """Log half-width of the 90 % interval that the engine's share needs, shape `(n,)`."""
        return np.where(prompt, self.prompt_spread, self.decode_spread)


def engine_name(name: str) -> str:
    """An engine's name, from any of its names.

    Raises:
        SpecError: no such engine is known.
    """
    key = ENGINES.get(str(name).strip().lower())
    if key is None:
        raise SpecError(
            f"no engine {name!r} is known; it is one of {listed(dict.fromkeys(ENGINES.values()))}", field="engine"
        )
    return key


@cache
def shipped_profiles() -> tuple[EngineProfile, ...]:
    """The profiles that ship, several versions of an engine in ascending order."""
    return tuple(read_profile_items(PROFILES))


def shipped_profile(engine: str, version: str | None = None) -> EngineProfile:
    """The profile of an engine, of the version nearest to one given.

    Raises:
        SpecError: no such engine is known, or the version has no number.
    """
    name = engine_name(engine)
    of_engine = [item for item in shipped_profiles() if item.engine == name]
    if not version:
        return of_engine[-1]
    if not has_number(version):
        raise SpecError(
            f"engine_version is {version!r}; it is a release, such as {of_engine[-1].version}", field="engine_version"
        )
    wanted = _numbers(version)
    return min(of_engine, key=lambda item: [abs(a - b) for a, b in zip(_numbers(item.version), wanted, strict=True)])


def has_number(version: str) -> bool:
    """Whether a version is a release's, and no word such as `nightly`."""
    return any(char.isdigit() for char in version)


def _numbers(version: str) -> tuple[int, int, int]:
    """Major, minor and patch number; what is no number counts as 0."""
    words = ["".join(char for char in word if char.isdigit()) for word in version.split("rc")[0].split(".")[:3]]
    numbers = [int(word) if word else 0 for word in words] + [0, 0, 0]
    return numbers[0], numbers[1], numbers[2]


def read_profile(path: Path) -> EngineProfile:
    """The one profile of a file, as `kernelcast llm calibrate` writes it.

    Raises:
        SpecError: the file cannot be read, or holds anything else.
    """
    items = read_profile_items(path)
    if len(items) != 1:
        raise SpecError(f"{path} has {len(items)} profiles; one is needed", field="profile")
    return items[0]


def read_profile_items(path: Path) -> list[EngineProfile]:
    """The profiles of a YAML file.

    Raises:
        SpecError: the file cannot be read, or is no such file.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot read the profile {path}: {error}", field="profile") from error
    except yaml.YAMLError as error:
        raise SpecError(f"the profile {path} is no YAML: {str(error).splitlines()[0]}", field="profile") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("profiles"), list) or not raw["profiles"]:
        raise SpecError(
            f"{path} is no engine profile: it has no list `profiles`; `kernelcast llm calibrate` writes one",
            field="profile",
        )
    return [_checked(item, path) for item in raw["profiles"]]


def _checked(item: Any, path: Path) -> EngineProfile:
    names = [field.name for field in fields(EngineProfile)]
    # Profiles written before experts had a factor of their own have none.
    item = {"expert_factor": 1.0} | item if isinstance(item, dict) else item
    if not isinstance(item, dict) or (wrong := sorted(set(names) ^ set(item))):
        which = f": {listed(wrong)} missing or unknown" if isinstance(item, dict) else ""
        raise SpecError(f"{path}: a profile has the fields {listed(names)}{which}", field="profile")
    for name in NUMBERS:
        value = item[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e3:
            raise SpecError(f"{path}: {name} is {value!r}; it is a number of at least 0", field=name)
    captured = item["captured_tokens"]
    if isinstance(captured, bool) or not isinstance(captured, int) or captured < 0:
        raise SpecError(
            f"{path}: captured_tokens is {captured!r}; it is a whole number of at least 0", field="captured_tokens"
        )
    batches = item["batches"]
    if (
        not isinstance(batches, list)
        or any(not isinstance(size, int) or size < 1 for size in batches)
        or batches != sorted(set(batches))
    ):
        raise SpecError(f"{path}: batches is {batches!r}; it is a list of ascending whole numbers", field="batches")
    return EngineProfile(**{**item, "engine": engine_name(item["engine"]), "version": str(item["version"]),
                            "batches": tuple(batches)})  # fmt: skip


def profile_text(profiles: Sequence[EngineProfile], head: str = "") -> str:
    """Profiles as the text of a YAML file, under a comment `head`."""
    items = [
        {field.name: _plain(getattr(item, field.name)) for field in fields(EngineProfile)} for item in profiles
    ]  # fmt: skip
    return head + str(yaml.safe_dump({"profiles": items}, sort_keys=False, width=130, default_flow_style=None))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return list(value) if isinstance(value, tuple) else value
