"""Times of an engine's steps: kernels of the step under a plan, collectives, and what the engine adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...features.batch.cases import Floats
from ...models.predict.predictor import ArtifactPredictor
from ..architectures.estimate import estimate_steps
from ..architectures.facts import ModelFacts
from ..architectures.plan import ParallelPlan
from ..architectures.step import Formats, Step

PARTS = ("gemm", "attention", "moe", "collectives", "rest", "host")


@dataclass(frozen=True, slots=True)
class _Cost:
    parts_s: Floats
    low: float
    high: float
    energy_j: float


class StepTimes:
    """Times of steps of one model on one device under one plan, in one engine; every step is computed once."""

    def __init__(
        self, predictor: ArtifactPredictor, facts: ModelFacts, device: str, plan: ParallelPlan, formats: Formats | None = None,
        engine: str = "vllm", engine_version: str | None = None, profile: object | None = None,
    ) -> None:  # fmt: skip
        self.predictor, self.facts, self.device, self.plan, self.formats = predictor, facts, device, plan, formats
        self.engine, self.engine_version, self.profile = engine, engine_version, profile
        self._costs: dict[Step, _Cost] = {}

    def seconds(self, steps: Sequence[Step]) -> tuple[Floats, Floats, Floats]:
        """Time of each step in seconds with the ends of its 90 % interval, each of shape `(n,)`."""
        costs = self._of(steps)
        value = np.array([cost.parts_s.sum() for cost in costs])
        return value, value * [cost.low for cost in costs], value * [cost.high for cost in costs]

    def parts(self, steps: Sequence[Step]) -> Mapping[str, Floats]:
        """Seconds of each of `PARTS`, shape `(n,)`, which add up to the time of the step."""
        table = np.array([cost.parts_s for cost in self._of(steps)]).reshape(-1, len(PARTS))
        return dict(zip(PARTS, table.T, strict=True))

    def energy_j(self, steps: Sequence[Step]) -> Floats:
        """Joules of all devices of the plan, shape `(n,)`; NaN where unknown."""
        return np.array([cost.energy_j for cost in self._of(steps)])

    def _of(self, steps: Sequence[Step]) -> list[_Cost]:
        new = [step for step in dict.fromkeys(steps) if step not in self._costs]
        for start in range(0, len(new), 100):
            some = new[start : start + 100]
            for item in estimate_steps(self.predictor, self.facts, some, self.device, plan=self.plan, formats=self.formats):
                parts_s = dict.fromkeys(PARTS, 0.0)
                for part in item.whole.families:
                    parts_s[part.family if part.family in PARTS else "rest"] += part.latency_s
                latency, energy = item.whole.latency_s, item.whole.energy_j
                self._costs[item.step] = _Cost(
                    np.array(list(parts_s.values())), latency.lower / latency.value, latency.upper / latency.value,
                    np.nan if energy is None else energy.value * self.plan.stage_ranks,
                )  # fmt: skip
        return [self._costs[step] for step in steps]
