"""Times of an engine's steps: kernels under a plan, collectives, and what the engine adds (`engine/profile.py`).

A step is brought to the form in which the engine runs it before its kernels are listed: decoding sequences become one group of
the graph's size that reads as many keys and values together, and positions already cached are rounded to one of 32 sizes per
doubling. Steps of one form share their kernels, so that many steps cost a few milliseconds per form, whatever their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...features.batch.cases import Floats
from ...features.device import Device
from ...models.predict.power_law import PowerSetting
from ...models.predict.predictor import ArtifactPredictor
from ..architectures.estimate import Estimate, estimate_steps, formats_of
from ..architectures.facts import ModelFacts
from ..architectures.forward import stage_sends
from ..architectures.plan import ParallelPlan
from ..architectures.step import Formats, Sequences, Step
from .engine.collectives import collectives_seconds
from .engine.profile import EngineProfile, LayerCounts, StepColumns, engine_name, shipped_profile

GPU_PARTS = ("gemm", "attention", "moe", "collectives", "rest")
PARTS = (*GPU_PARTS, "host")

_PER_DOUBLING = 32
_CHUNK = 100
"""Steps whose kernels are predicted together: bounds memory."""
WAITING_SHARE = 0.26
"""Power of a GPU that waits for its host or for other GPUs between an engine's kernels, over its limit: clocks stay high."""
SUSTAINED = 1.2
"""Power of kernels that follow each other for minutes in an engine, over that in long loops. Both numbers are fitted to 344
powers of services on A100 and H100 (171 of LLM-Inference-Bench and Splitwise, 173 of ML.ENERGY 2.0 as joules a token by tokens
a second), each source weighing the same; fits without a source gave the same, and erred by 8.7 / 6.4 % (mean / median) on what
was left out, with the kernels of an earlier model. With those of today 1.1 would err less on ML.ENERGY, more on Splitwise."""


@dataclass(frozen=True, slots=True)
class _Cost:
    """What the devices do in a step: seconds of `GPU_PARTS`, log half-widths down and up, joules of all devices."""

    parts_s: tuple[float, ...]
    down: float
    up: float
    energy_j: float


def limit_w(device: Device, setting: PowerSetting | None) -> float:
    """The power limit in force on a device in watts; infinite where none is public."""
    own_w = device.fact("tdp_w") or np.inf
    return own_w if setting is None or setting.power_limit_w is None else setting.power_limit_w


def waiting_w(device: Device, setting: PowerSetting | None) -> float:
    """Watts of a device that waits for its host or for others; 0 where its limit is not public."""
    return min(WAITING_SHARE * (device.fact("tdp_w") or 0.0), limit_w(device, setting))


class KernelEstimates:
    """Estimates of steps' kernels, which engines that run the same kernels share."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], dict[Step, Estimate]] = {}

    def of(
        self, predictor: ArtifactPredictor, facts: ModelFacts, device: str, plan: ParallelPlan, formats: Formats | None,
        impl: str, unpacks: bool, steps: Sequence[Step],
    ) -> list[Estimate]:  # fmt: skip
        """Estimates of steps, each computed when it is first asked for; arguments and errors are those of `estimate_steps`.

        Of stages they have kernels and collectives; `memory` is that of a plan of one.
        """
        formats = formats_of(facts) if formats is None else formats
        # Stages run one after the other what one rank of all layers would: their kernels are the same.
        one_stage = replace(plan, pp=1)
        known = self._known.setdefault((facts, device, one_stage, formats, impl, unpacks, predictor.setting), {})
        new = [step for step in dict.fromkeys(steps) if step not in known]
        for start in range(0, len(new), _CHUNK):
            for item in estimate_steps(
                predictor, facts, new[start : start + _CHUNK], device, plan=one_stage, formats=formats, impl=impl,
                unpacks=unpacks,
            ):  # fmt: skip
                known[item.step] = item
        if plan.pp == 1:
            return [known[step] for step in steps]
        return [
            replace(known[step], plan=plan, collectives=(
                *known[step].collectives, *stage_sends(facts, step.share(plan.dp), formats, plan)
            ))
            for step in steps
        ]  # fmt: skip


class StepTimes:
    """Times of steps of one model on one device under one plan, in one engine; every form of step is computed once."""

    def __init__(
        self, predictor: ArtifactPredictor, facts: ModelFacts, device: str, plan: ParallelPlan, formats: Formats | None = None,
        engine: str = "vllm", engine_version: str | None = None, profile: EngineProfile | None = None,
        kernels: KernelEstimates | None = None, library: str | None = None, unpacks: bool = False,
    ) -> None:  # fmt: skip
        """What steps are times of.

        Args:
            predictor: a trained model.
            facts: the model.
            device: the device's name in the catalogue.
            plan: how the model is split.
            formats: number formats; None: those of the model.
            engine: the engine, `vllm`, `sglang` or `trtllm`.
            engine_version: its version; None is the newest known.
            profile: what the engine adds; None: the shipped profile of the nearest version.
            kernels: estimates that several engines share; None: its own.
            library: what runs the kernels; None: the profile's implementation.
            unpacks: see `estimate_steps`.

        Raises:
            SpecError: the engine is unknown, or the plan cannot split the model.
        """
        facts.check_plan(plan)
        self.predictor, self.facts, self.plan, self.formats = predictor, facts, plan, formats
        self.device = predictor.devices.get(device)
        self.limit_w = limit_w(self.device, predictor.setting)
        self.engine = engine_name(engine)
        self.profile = profile or shipped_profile(engine, engine_version)
        self._impl = self.profile.impl if library is None else library
        self._unpacks = unpacks
        self._layers = LayerCounts.of(facts)
        self._kernels = kernels or KernelEstimates()
        self._forms: dict[Step, Step] = {}
        self._costs: dict[Step, _Cost] = {}

    def seconds(self, steps: Sequence[Step]) -> tuple[Floats, Floats, Floats]:
        """Time of each step in seconds with the ends of its 90 % interval, each of shape `(n,)`.

        The interval holds the errors of kernels and collectives and those of the profile, taken as independent.

        Raises:
            SpecError: the model cannot run a step, or a kernel or collective cannot be predicted.
        """
        costs, columns = self._costs_of(steps), self.columns(steps)
        value, spread = self.profile.seconds(columns), self.profile.spread(columns.prompt)
        down, up = (np.array([getattr(cost, end) for cost in costs]) for end in ("down", "up"))
        # A profile was fitted on devices whose kernels are known as well as these; its spread has their errors in it.
        return value, value * np.exp(-np.maximum(spread, down)), value * np.exp(np.maximum(spread, up))

    def parts(self, steps: Sequence[Step]) -> Mapping[str, Floats]:
        """Seconds of each of `PARTS`, shape `(n,)`, which add up to the steps' times; the host's is what the GPU waits."""
        columns = self.columns(steps)
        parts_s = np.array([cost.parts_s for cost in self._costs_of(steps)]).reshape(-1, len(GPU_PARTS))
        parts, graph = dict(zip(GPU_PARTS, parts_s.T, strict=True)), self.profile.captured(columns)
        parts["collectives"] = np.where(graph, self.profile.collective_share, 1.0) * parts["collectives"]
        parts["rest"] = np.where(graph, self.profile.small_share, 1.0) * parts["rest"]
        parts["moe"] = np.where(columns.prompt, self.profile.expert_factor, 1.0) * parts["moe"]
        factor = np.where(columns.prompt, self.profile.prompt_factor, self.profile.decode_factor)
        parts = {name: factor * part for name, part in parts.items()}
        return parts | {"host": self.profile.seconds(columns) - self.profile.gpu_s(columns)}

    def energy_j(self, steps: Sequence[Step]) -> Floats:
        """Joules of all devices of the plan, shape `(n,)`: of the kernels, and of waiting; NaN where unknown."""
        costs, columns = self._costs_of(steps), self.columns(steps)
        kernels_s = np.array([sum(cost.parts_s) - cost.parts_s[GPU_PARTS.index("collectives")] for cost in costs])
        kernels_j = SUSTAINED * np.array([cost.energy_j for cost in costs])
        # While a stage works the others wait.
        waiting_s = np.maximum(self.profile.seconds(columns) - kernels_s / self.plan.pp, 0.0)
        most_j = self.plan.stage_ranks * self.limit_w * kernels_s
        own_w = self.device.fact("tdp_w") or np.nan
        waiting_j = self.plan.devices * WAITING_SHARE * own_w * waiting_s
        return np.minimum(kernels_j, most_j) + np.minimum(waiting_j, self.plan.devices * self.limit_w * waiting_s)

    def columns(self, steps: Sequence[Step]) -> StepColumns:
        """The steps as a profile sees them."""
        costs, n = self._costs_of(steps), len(steps)
        ranks = [step.share(self.plan.dp) for step in steps] if self.plan.dp > 1 else steps
        layers = self._layers
        parts_s = dict(
            zip(GPU_PARTS, np.array([cost.parts_s for cost in costs]).reshape(n, len(GPU_PARTS)).T, strict=True)
        )
        return StepColumns(
            main_s=parts_s["gemm"] + parts_s["attention"] + parts_s["moe"], small_s=parts_s["rest"],
            collectives_s=parts_s["collectives"], experts_s=parts_s["moe"],
            tokens=np.array([step.tokens for step in ranks], dtype=np.float64),
            sequences=np.array([step.sequences for step in ranks], dtype=np.float64),
            prompt=np.array([not all(group.decodes for group in step) for step in steps], dtype=np.bool_),
            dense=np.full(n, float(layers.dense)), moe=np.full(n, float(layers.moe)), linear=np.full(n, float(layers.linear)),
        )  # fmt: skip

    def _costs_of(self, steps: Sequence[Step]) -> list[_Cost]:
        forms = [self._forms.get(step) or self._forms.setdefault(step, self._form(step)) for step in steps]
        new = [form for form in dict.fromkeys(forms) if form not in self._costs]
        for item in self._kernels.of(
            self.predictor, self.facts, self.device.name, self.plan, self.formats, self._impl, self._unpacks, new
        ):  # fmt: skip
            self._costs[item.step] = self._cost(item)
        return [self._costs[form] for form in forms]

    def _cost(self, item: Estimate) -> _Cost:
        parts_s = dict.fromkeys(GPU_PARTS, 0.0)
        for part in item.whole.families:
            parts_s[part.family if part.family in GPU_PARTS else "rest"] += part.latency_s
        sent_s, spreads = collectives_seconds(self.device, self.engine, item.collectives)
        parts_s["collectives"] = float(sent_s.sum())
        latency, total_s = item.whole.latency_s, sum(parts_s.values())
        # Errors of collectives of one law go together; those of kernels are independent of them.
        sent = float(sent_s @ spreads) / total_s
        down, up = (
            float(np.hypot(half * latency.value / total_s, sent))
            for half in (np.log(latency.value / latency.lower), np.log(latency.upper / latency.value))
        )
        energy = item.whole.energy_j
        return _Cost(
            tuple(parts_s.values()), down, up, np.nan if energy is None else energy.value * self.plan.stage_ranks
        )  # fmt: skip

    def _form(self, step: Step) -> Step:
        """A step as the engine runs it, see the module."""
        decoding = [group for group in step if group.decodes]
        prompts = [replace(group, context=_rounded(group.context)) for group in step if not group.decodes]
        if not decoding:
            return Step(tuple(prompts))
        count = sum(group.count for group in decoding)
        dp = self.plan.dp
        size = count if prompts else dp * self.profile.padded(-(-count // dp))
        context = sum(group.count * group.context for group in decoding) // size
        each = max(group.new_tokens for group in decoding)
        return Step((*prompts, Sequences(size, each, _rounded(context), each)))


def _rounded(context: int) -> int:
    """Positions as the nearest multiple of a thirty-second of the power of two below them."""
    unit = max(1, 1 << max(0, context.bit_length() - 1)) // _PER_DOUBLING
    return context if unit <= 1 else round(context / unit) * unit
