"""What a planner chooses among: devices, splits of the model, formats and engines, and why some are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ....features.device import Catalogue, Device
from ....features.errors import SpecError
from ...architectures.estimate import formats_of
from ...architectures.plan import ParallelPlan
from ...architectures.step import Formats
from ..engine.collectives import INTERCONNECTS, MOST_DEVICES
from ..host_experts import HOST_ENGINE, link_b_per_s
from ..service_steps import check_engine, check_formats, multiplies
from ..speculation import Speculation
from .question import PlanQuestion

MAX_STAGES = 8
"""Most stages of a pipeline: more than any node has devices for."""
QUANTISED = "fp8"
"""The format that is tried beside a model's own where a device multiplies it; others are tried where they are asked for."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What one replica is: a device, a split, formats and an engine.

    Attributes:
        device: Catalogue name.
        plan: How the model is split.
        formats: Number formats.
        engine: Engine.
        speculation: How it guesses tokens; None: it does not.
        host_experts: Share of the routed experts that is in the host's memory.
    """

    device: str
    plan: ParallelPlan
    formats: Formats
    engine: str
    speculation: Speculation | None = None
    host_experts: float = 0.0

    def __str__(self) -> str:
        guesses = "" if self.speculation is None else f", {self.speculation}"
        experts = f", {100 * self.host_experts:g} % of experts on the host" if self.host_experts else ""
        what = f"{self.plan.devices} × {self.device}, {self.plan}, {self.formats.weights_text}, {self.engine}"
        return what + guesses + experts


@dataclass(slots=True)
class Refusal:
    """Plans that are refused for one kind of reason.

    Attributes:
        count: How many.
        nearest: The reason of the one that was nearest to being possible.
        distance: How far that one was, in the kind's own measure; less is nearer.
    """

    count: int
    nearest: str
    distance: float


@dataclass(slots=True)
class Refusals:
    """Plans that are refused, by kind of reason.

    `engine`, `formats`, `divide`, `links`, `memory` and `kernels` are of plans that do not run, `ttft`, `tpot`, `load` and
    `power` of those that run otherwise than wanted.
    """

    kinds: dict[str, Refusal] = field(default_factory=dict)

    def add(self, kind: str, reason: str, distance: float = 0.0, count: int = 1) -> None:
        """Count plans, and keep the reason of the nearest."""
        known = self.kinds.get(kind)
        if known is None:
            self.kinds[kind] = Refusal(count, reason, distance)
            return
        known.count += count
        if distance < known.distance:
            known.nearest, known.distance = reason, distance

    @property
    def count(self) -> int:
        """All of them."""
        return sum(item.count for item in self.kinds.values())


def settings(question: PlanQuestion, catalogue: Catalogue, refusals: Refusals) -> Iterator[Setting]:
    """What one replica may be; what cannot be is counted in `refusals`.

    Raises:
        SpecError: a format is unknown.
    """
    for name in question.devices:
        plans = list(_plans(question, name))
        device = catalogue.get(name)
        formats = formats_to_try(question, device)
        kinds = []
        for engine in question.engines:
            try:
                check_engine(engine, device)
            except SpecError as error:
                refusals.add("engine", str(error), count=len(plans) * len(formats))
                continue
            if question.host_experts and engine != HOST_ENGINE:
                reason = f"{engine} keeps no experts in the host's memory; {HOST_ENGINE} does"
                refusals.add("engine", reason, count=len(plans) * len(formats))
                continue
            for item in formats:
                if item.kv == "int8":
                    # Of TensorRT-LLM's older engines alone, and a plan is for the newest.
                    reason = f"the newest {engine} keeps no int8 cache; use {item.dtype} or fp8"
                    refusals.add("formats", reason, count=len(plans))
                    continue
                try:
                    check_formats(engine, item, device)
                except SpecError as error:
                    refusals.add("formats", str(error), count=len(plans))
                else:
                    kinds.append((item, engine))
        each = len(kinds)
        try:
            if question.host_experts:
                link_b_per_s(device)
        except SpecError as error:
            refusals.add("links", str(error), count=len(plans) * each)
            continue
        for plan in plans:
            try:
                question.facts.check_plan(plan)
            except SpecError as error:
                refusals.add("divide", str(error), plan.devices, each)
                continue
            if (why := unlinked(device, plan)) is not None:
                refusals.add("links", why, plan.devices, each)
                continue
            share = question.host_experts
            yield from (Setting(name, plan, item, engine, None, share) for item, engine in kinds)
            if (guesses := question.speculation) is None:
                continue
            try:
                guesses.check(question.facts, plan, question.input_tokens + question.output_tokens)
            except SpecError as error:
                refusals.add("divide", str(error), plan.devices, each)
                continue
            yield from (Setting(name, plan, item, engine, guesses, share) for item, engine in kinds)


def _plans(question: PlanQuestion, device: str) -> Iterator[ParallelPlan]:
    """Splits of one replica over as many devices as there are, by powers of two and divisors of their number.

    Experts are split by the ranks, or shared out over them with attention split or in data parallel groups. Such groups of a
    model without experts are replicas.
    """
    gpus = question.at_most(device)
    most = min(gpus, 2 * MOST_DEVICES)
    sizes = [size for size in range(1, most + 1) if size & (size - 1) == 0 or gpus % size == 0]
    for stages in (size for size in sizes if size <= MAX_STAGES):
        for ranks in sizes:
            devices = stages * ranks
            # Without a load all devices are used, as many in every plan.
            if devices > gpus or (question.concurrency is None and question.rate is None and gpus % devices):
                continue
            yield ParallelPlan(tp=ranks, pp=stages)
            if question.facts.expert_layers and ranks > 1:
                yield ParallelPlan(tp=ranks, pp=stages, ep=ranks)
                yield ParallelPlan(dp=ranks, pp=stages, ep=ranks)


def formats_to_try(question: PlanQuestion, device: Device) -> list[Formats]:
    """Formats that are compared on a device."""
    facts = question.facts
    names: list[str | None] = list(question.weights)
    if not names:
        names = [None]
        if facts.weights is None and facts.experts is None and multiplies(device, QUANTISED):
            names.append(QUANTISED)
    return [formats_of(facts, dtype=question.dtype, weights=name, kv=question.kv_dtype) for name in names]


def unlinked(device: Device, plan: ParallelPlan) -> str | None:
    """Why devices of a plan cannot reach each other; None where they can."""
    if plan.devices == 1:
        return None
    for kind, fact in INTERCONNECTS.items():
        if device.fact(fact) is not None:
            most = int(device.fact("fabric_devices") or MOST_DEVICES) if kind == "fabric" else MOST_DEVICES
            if plan.devices <= most:
                return None
            return f"{plan.devices} devices of {device.name} ({plan}) are more than the {most} that one machine links"
    return (
        f"how fast devices of {device.name} are linked is not known, so that it serves alone; give "
        f"{' or '.join(INTERCONNECTS.values())} in a device file"
    )
