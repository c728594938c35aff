"""Memory of a model on one device: weights, what is kept per sequence or for training, activations, and what of it fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, floor

from ...features.device import Device
from ...features.errors import SpecError
from ..units import num_bytes
from .facts import Block, ModelFacts
from .kernel_list import LOGITS_ITEM_B
from .plan import MAX_RANKS, ONE_DEVICE, ParallelPlan
from .step import Formats, Step, weight_size_b

USABLE_SHARE = 0.9
"""Share of a device's memory that an engine takes; vLLM's `gpu_memory_utilization` defaults to it. The rest is for the context,
the libraries and their workspaces, which are not listed."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What the fullest device of a plan holds.

    Attributes:
        weights_b: Weights, scales of block formats included.
        cache_per_token_b: What one more position of the longest sequence adds.
        cache_per_sequence_b: What the longest sequence of the step keeps after it: keys and values, latents, states.
        cache_b: What all sequences of the step keep.
        activations_b: Activations at the widest place of the step, with fused attention; of a training step those that the
            gradients need.
        device_b: The device's memory, None where it is not public.
        groups: Groups of ranks with sequences of their own.
        gradients_b: Gradients of the weights, 0 where nothing is trained.
        optimizer_b: State of AdamW: two moments in fp32, and the weights in fp32 where they are in half precision.
        host_b: Weights of the device that are in the host's memory instead.
        activations_per_sequence_b: Activations of one sequence of the step.
    """

    weights_b: float
    cache_per_token_b: float
    cache_per_sequence_b: float
    cache_b: float
    activations_b: float
    device_b: float | None
    groups: int
    gradients_b: float = 0.0
    optimizer_b: float = 0.0
    host_b: float = 0.0
    activations_per_sequence_b: float = 0.0

    @property
    def total_b(self) -> float:
        """All of it."""
        return self.weights_b + self.cache_b + self.activations_b + self.gradients_b + self.optimizer_b

    @property
    def parts_b(self) -> Mapping[str, float]:
        """Bytes by what they are, without what is not there."""
        sizes_b = {
            "weights": self.weights_b, "gradients": self.gradients_b, "optimizer_state": self.optimizer_b,
            "cache": self.cache_b, "activations": self.activations_b,
        }  # fmt: skip
        return {name: size_b for name, size_b in sizes_b.items() if size_b}

    @property
    def parts_text(self) -> str:
        """The same in words."""
        titles = {"optimizer_state": "optimiser state"}
        return ", ".join(f"{titles.get(name, name)} {num_bytes(size_b)}" for name, size_b in self.parts_b.items())

    @property
    def usable_b(self) -> float | None:
        """What an engine takes of the device (`USABLE_SHARE`)."""
        return None if self.device_b is None else USABLE_SHARE * self.device_b

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None where the device's memory is not public."""
        return None if self.usable_b is None else self.total_b <= self.usable_b

    @property
    def sequences(self) -> int | None:
        """Sequences as long as the longest that fit into such a step on the plan's devices, beside the weights.

        None where the device's memory is not public, or a sequence keeps nothing.
        """
        if self.usable_b is None or not self.cache_per_sequence_b:
            return None
        each_b = self.cache_per_sequence_b + self.activations_per_sequence_b
        return max(0, floor((self.usable_b - self.weights_b) / each_b)) * self.groups


def memory(
    facts: ModelFacts, step: Step, formats: Formats, plan: ParallelPlan = ONE_DEVICE, device: Device | None = None, *,
    training: bool = False, recompute: bool = False, host_experts: float = 0.0,
) -> Memory:  # fmt: skip
    """Memory on the fullest device of a plan when a step runs; `device` may be None, which says nothing of what fits.

    `training` is for a step with gradients and AdamW in the formats of Rajbhandari et al., ZeRO, 2020, section 3.1: 16 bytes
    for each parameter, whatever its format; `recompute` for one in which layers keep their inputs alone. `host_experts` is the
    share of routed experts that the host's memory has instead.
    """
    if training:
        return _training_memory(facts, step, formats, plan, device, recompute)
    share = step.share(plan.dp)
    rows = share.scored
    activations_b = formats.itemsize_b * max(
        _front_elements(facts, share),
        *(
            tokens * (2 * hidden + max(part.width(hidden, plan) for part in block.parts))
            for block, hidden, tokens in _spans(facts, share)
        ),
    )
    if facts.generates:
        activations_b += rows * facts.vocabulary / plan.tp * (formats.itemsize_b + LOGITS_ITEM_B)
    per_sequence = [_cache_b(facts, group.length, formats, plan) for group in share]
    longest = share.longest
    weights = facts.weights_of(plan)
    host_b = host_experts * weights.experts * weight_size_b(formats.experts)
    return Memory(
        weights_b=weights.size_b(formats) - host_b,
        cache_per_token_b=_cache_b(facts, longest, formats, plan) - _cache_b(facts, longest - 1, formats, plan),
        cache_per_sequence_b=max(per_sequence),
        cache_b=sum(group.count * size_b for group, size_b in zip(share, per_sequence, strict=True)),
        activations_b=activations_b,
        device_b=None if device is None else device.fact("memory_b"),
        groups=plan.dp,
        host_b=host_b,
        activations_per_sequence_b=activations_b / max(1, share.sequences),
    )


_SPLITS, _SMALLER = (2, 4, 8, 16, 32, 64), ("fp8", "int4")
"""Devices and formats of weights that `ways_to_fit` tries."""


def ways_to_fit(
    facts: ModelFacts, step: Step, formats: Formats, plan: ParallelPlan, device: Device, *, training: bool = False,
    recompute: bool = False,
) -> list[str]:  # fmt: skip
    """What to change, one thing at a time, so that a step fits into a device's memory, in words."""

    def fits(formats: Formats, plan: ParallelPlan, *, recompute: bool) -> bool:
        try:
            facts.check_plan(plan)
            return bool(memory(facts, step, formats, plan, device, training=training, recompute=recompute).fits)
        except SpecError:
            return False

    splits = (replace(plan, tp=plan.tp * ranks) for ranks in _SPLITS if plan.devices * ranks <= MAX_RANKS)
    ways = [f"tp {split.tp}" for split in splits if fits(formats, split, recompute=recompute)][:1]
    if training and not recompute and fits(formats, plan, recompute=True):
        ways.append("recompute")
    if not training:
        smaller = ((name, replace(formats, weights=name, experts=name)) for name in _SMALLER)
        ways += [f"weights {name}" for name, less in smaller if fits(less, plan, recompute=recompute)][:1]
    return ways


def _training_memory(
    facts: ModelFacts, step: Step, formats: Formats, plan: ParallelPlan, device: Device | None, recompute: bool
) -> Memory:
    """In each layer inputs and normalised inputs of its parts stay beside what is in a part, and a byte for each element that
    may be dropped (Korthikanti et al., arXiv 2205.05198, section 4.1, with fused attention), and behind them logits and their
    gradient. With recomputation layers keep their inputs, and one at a time the rest.
    """
    share, weights = step.share(plan.dp), facts.weights_of(plan)
    inputs_b, of_layers_b = 0.0, []
    for block, hidden, tokens in _spans(facts, share):
        of_layer_b = sum(
            (2 * hidden + part.width(hidden, plan)) * formats.itemsize_b + facts.dropout * hidden
            for part in block.parts
        )
        of_layers_b.append((block.count, tokens * of_layer_b))
        inputs_b += block.count * tokens * hidden * formats.itemsize_b
    if recompute:
        activations_b = inputs_b / plan.pp + max(size_b for _, size_b in of_layers_b)
    else:
        activations_b = sum(count * size_b for count, size_b in of_layers_b) / plan.pp
    tokens = share.tokens
    if facts.generates:
        activations_b += tokens * facts.vocabulary / plan.tp * (formats.itemsize_b + 2 * LOGITS_ITEM_B)
    weights_b = weights.size_b(formats)
    return Memory(
        weights_b=weights_b, cache_per_token_b=0.0, cache_per_sequence_b=0.0, cache_b=0.0, activations_b=activations_b,
        device_b=None if device is None else device.fact("memory_b"), groups=plan.dp, gradients_b=weights_b,
        optimizer_b=weights.total * (8 if formats.dtype == "fp32" else 12),
    )  # fmt: skip


def _stacks(facts: ModelFacts, share: Step) -> Iterator[tuple[ModelFacts, Step]]:
    """What runs in a step: the model, and its encoder for the sequences that start."""
    yield facts, share
    starting = sum(group.count for group in share if not group.context)
    if facts.encoder is not None and facts.encoder.fixed_length is not None and starting:
        yield facts.encoder, Step.prefill(starting, facts.encoder.fixed_length)


def _spans(facts: ModelFacts, share: Step) -> Iterator[tuple[Block, int, int]]:
    """Every block that runs in a step with its width and the tokens that it works on."""
    for stack, step in _stacks(facts, share):
        for block in stack.blocks:
            tokens = step.tokens if block.positions is None else step.sequences * block.positions
            yield block, block.hidden or facts.hidden, tokens


def _front_elements(facts: ModelFacts, share: Step) -> float:
    """Elements of the largest result of a product before the layers, and of what passes over it."""
    elements = (
        (step.tokens if item.per_position else step.sequences) * item.rows * item.n
        for stack, step in _stacks(facts, share)
        for item in stack.front
    )
    return 2.0 * max(elements, default=0)


def _cache_b(facts: ModelFacts, length: int, formats: Formats, plan: ParallelPlan) -> float:
    """Bytes of one sequence on a rank of the fullest stage."""
    layers_b = sum(
        block.count * part.cache_b(length, formats, plan) for block in facts.blocks for part in block.parts
    )  # fmt: skip
    return layers_b * ceil(facts.layers / plan.pp) / facts.layers
