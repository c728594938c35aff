"""A forward step of a whole model: its kernels on one rank with counts and names, and what ranks send each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...features.device import Device
from ...features.errors import SpecError
from ..whole_model import Kernel
from .facts import Block, ModelFacts, Product
from .kernel_list import LOGITS_ITEM_B, MOVED, ROUTING, KernelList, StandIn
from .plan import ONE_DEVICE, Collective, ParallelPlan
from .step import SOURCE_MISSING, Formats, Step

_GATHER = StandIn("the gather of embeddings is estimated as a copy of its rows", MOVED)


@dataclass(frozen=True, slots=True)
class Forward:
    """A step on one rank of each stage: the stages' kernels follow each other.

    Attributes:
        kernels: What runs, with counts and names such as `layers.attention.qkv`.
        stand_ins: By a kernel's name, what it stands in for.
        collectives: What ranks send each other.
    """

    kernels: tuple[Kernel, ...]
    stand_ins: Mapping[str, StandIn]
    collectives: tuple[Collective, ...]


def forward(
    facts: ModelFacts, step: Step, formats: Formats, plan: ParallelPlan = ONE_DEVICE, *, device: Device | None = None,
    impl: str = "", threads: int | None = None, fused_attention: bool = True, routing: str = ROUTING, training: bool = False,
    unpack: bool = False,
) -> Forward:  # fmt: skip
    """What a model runs in one step.

    Args:
        facts: the model.
        step: what all devices together work on.
        formats: number formats.
        plan: how the model is split.
        device: what it runs on. On a GPU work is queued ahead, so that kernels take their time on the device alone.
        impl: what runs products, attention and experts; empty: the usual one of the device.
        threads: CPU threads; None is all, or a GPU.
        fused_attention: whether attention is one kernel; False lists its products and its softmax, as PyTorch's
            eager attention.
        routing: how evenly tokens choose experts, a variant of `moe`.
        training: whether it is the forward part of a training step: logits and their loss at every position, no cache.
        unpack: whether products unpack quantised weights even where the device multiplies their format.

    Raises:
        SpecError: the plan cannot split the model, or the model cannot run the step.
    """
    facts.check_plan(plan)
    check_step(facts, step)
    timing = "device" if device is not None and device.kind == "gpu" else ""
    kernels = KernelList(
        step, plan, formats, impl=impl, threads=threads, timing=timing, fused_attention=fused_attention,
        routing=routing, device=device, training=training, dropout=training and facts.dropout, unpack=unpack,
    )  # fmt: skip
    if facts.encoder is not None:
        _list_encoder(kernels, facts.encoder)
    _list_front(kernels, facts)
    with kernels.repeated(1, "layers"):
        for block in facts.blocks:
            _list_block(kernels, facts, block)
    kernels.collectives += stage_sends(facts, kernels.step, formats, plan)
    _list_tail(kernels, facts)
    return Forward(tuple(kernels.lines), kernels.stand_ins, tuple(kernels.collectives))


def stage_sends(facts: ModelFacts, step: Step, formats: Formats, plan: ParallelPlan) -> tuple[Collective, ...]:
    """What stages send each other in a step of a group of ranks: all in which a plan differs from one of a single stage."""
    if plan.pp == 1:
        return ()
    size_b = (plan.pp - 1) * step.tokens * facts.hidden * formats.itemsize_b
    return (Collective("stages", "send", 2, size_b, 1),)


def check_step(facts: ModelFacts, step: Step) -> None:
    """That a model can run a step.

    Raises:
        SpecError: it is longer than a learned table of positions, of another length than an input has, or decodes a model that
            generates nothing; or nobody said what an encoder of text reads.
    """
    if facts.encoder is not None and facts.encoder.fixed_length is None:
        raise SpecError(SOURCE_MISSING, field="source")
    if facts.positions and facts.max_length is not None and step.longest > facts.max_length:
        raise SpecError(
            f"a sequence of {step.longest} positions is longer than the table of {facts.max_length} of {facts.name}",
            field="step",
        )
    if not facts.generates and any(group.context for group in step):
        raise SpecError(
            f"{facts.name} is an encoder and keeps no cache; its sequences start at context 0", field="context"
        )
    for group in step:
        if facts.fixed_length is not None and group.new_tokens != facts.fixed_length:
            raise SpecError(
                f"an input of {facts.name} has {facts.fixed_length} positions, not {group.new_tokens}", field="prefill"
            )


def _list_front(kernels: KernelList, facts: ModelFacts) -> None:
    columns = facts.embedding or facts.hidden
    _list_products(kernels, facts.front)
    if facts.vocabulary:
        kernels.copy("embedding", columns, stands_for=_GATHER)
        kernels.collective("embedding", "all_reduce", kernels.plan.tp, kernels.tokens * columns)
    if facts.layer_table[0]:
        kernels.copy("layer_embeddings", facts.layer_table[1], stands_for=_GATHER)
    if facts.positions:
        kernels.elementwise("positions", "add", columns)
    if facts.vocabulary:
        kernels.drop(columns)


def _list_encoder(kernels: KernelList, encoder: ModelFacts) -> None:
    """An encoder runs for the sequences that start in this step."""
    starting = sum(group.count for group in kernels.step if not group.context)
    if not starting or encoder.fixed_length is None:
        return
    with kernels.repeated(1, "encoder"), kernels.running(Step.prefill(starting, encoder.fixed_length)):
        _list_front(kernels, encoder)
        for block in encoder.blocks:
            _list_block(kernels, encoder, block)
        _list_end_norms(kernels, encoder)


def _list_products(kernels: KernelList, products: tuple[Product, ...]) -> None:
    for item in products:
        rows = item.rows * (kernels.tokens if item.per_position else kernels.step.sequences)
        if item.norm:
            kernels.norm(f"{item.name}.norm", "layernorm", rows * item.k // item.norm, item.norm)
        kernels.product(item.name, item.n, item.k, rows=rows, quantised=False)
        for word in item.after:
            if word == "norm":
                kernels.norm(f"{item.name}.norm", "layernorm", rows, item.n)
            else:
                kernels.elementwise(f"{item.name}.{word}", word, item.n, rows=rows)


def _list_block(kernels: KernelList, facts: ModelFacts, block: Block) -> None:
    hidden = block.hidden or facts.hidden
    step = kernels.step if block.positions is None else Step.prefill(kernels.step.sequences, block.positions)
    with kernels.running(step):
        _list_products(kernels, block.front)
        for part in block.parts:
            with kernels.repeated(block.count, part.name):
                part.list_kernels(kernels, hidden)
        with kernels.repeated(block.count, "residual"):
            for _ in range(block.norms):
                kernels.norm("norm", facts.norm, kernels.tokens, hidden)
            for _ in block.parts:
                kernels.drop(hidden)
                kernels.elementwise("add", "add", hidden)


def _list_end_norms(kernels: KernelList, facts: ModelFacts) -> None:
    for _ in range(facts.end_norms):
        kernels.norm("norm", facts.norm, kernels.tokens, facts.hidden)


def _list_tail(kernels: KernelList, facts: ModelFacts) -> None:
    _list_end_norms(kernels, facts)
    _list_products(kernels, facts.tail)
    if facts.generates:
        rows, columns = (
            kernels.tokens if kernels.training else kernels.step.scored,
            -(-facts.vocabulary // kernels.plan.tp),
        )
        kernels.product("logits", columns, facts.hidden, rows=rows, quantised=False)
        name = "loss" if kernels.training else "sampling"
        kernels.collective(
            "logits", "all_gather", kernels.plan.tp, rows * columns * LOGITS_ITEM_B / kernels.formats.itemsize_b
        )  # fmt: skip
        kernels.add(name, "softmax", "fp32", rows=rows, cols=facts.vocabulary)
