"""Routed experts in the host's memory, for models that outgrow their GPUs: a step reads those that its tokens choose.

vLLM leaves the weights named by `--cpu-offload-params` in pinned memory of the host, where kernels read them over PCI Express
(its `model_executor/offloader/uva.py`): those of whole layers, until the bytes that it was given are full. The experts of such
a layer take the longer of what they take from device memory and what the bytes of the chosen ones take over PCI Express.
MoE-Lens (Yuan et al., arXiv 2504.09345) overlaps more: other kernels run meanwhile. `n` tokens that choose `k` of `e` experts
evenly read a share 1 - (1 - k / e)^n of a layer's; where some experts are chosen more often than others, it is less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...features.batch.cases import Floats
from ...features.device import Device
from ...features.errors import SpecError
from ..architectures.facts import ModelFacts
from ..architectures.plan import ParallelPlan
from ..architectures.step import Formats, Step, weight_size_b
from .speculation import UNMEASURED, SpeculativeSteps, Times
from .steps import WAITING_SHARE

HOST_ENGINE = "vllm"
"""The engine that keeps experts, and nothing else, in the host's memory."""
PARAMETERS = ("w13_weight", "w2_weight")
"""Names of its experts' weights, for `--cpu-offload-params`."""
LINK_SHARE = 0.79
"""Share of a slot's bandwidth at which a GPU reads its host's memory: 24.8 of 31.5 GB/s on an A100 SXM4 (nvbandwidth 0.8,
forums.developer.nvidia.com, thread 352186)."""


def check_host_experts(share: float, facts: ModelFacts) -> None:
    """That a share of a model's experts can be in the host's memory.

    Raises:
        SpecError: it is no share, or the model has no experts.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise SpecError(f"host_experts must be a share between 0 and 1, got {share!r}", field="host_experts")
    if share and not facts.expert_layers:
        raise SpecError(
            f"{facts.name} has no experts that the host's memory could have; leave host_experts out",
            field="host_experts",
        )


def link_b_per_s(device: Device) -> float:
    """Bandwidth at which a device reads its host's memory.

    Raises:
        SpecError: it is not known.
    """
    slot = device.fact("pcie_bandwidth_b_per_s")
    if slot is None:
        raise SpecError(
            f"how fast {device.title} reads its host's memory is not known; give pcie_bandwidth_b_per_s in a device file, or "
            "leave host_experts out", field="host_experts",
        )  # fmt: skip
    return LINK_SHARE * slot


def host_notes(share: float, size_b: float) -> list[str]:
    """What to know of an answer with a share of the experts, `size_b` bytes of each device, in the host's memory."""
    return [
        f"{100 * share:g} % of the experts are in the host's memory, {size_b / 1e9:.4g} GB for each device, and read over "
        "PCI Express, at the same rate however many devices read",
        "experts are taken to be chosen evenly; the energy of the host's memory is not counted",
        f"no service with experts in the host's memory was measured: intervals are {UNMEASURED:g} times as wide",
    ]


class HostExpertSteps:
    """Steps whose experts wait for their weights."""

    def __init__(
        self, steps: Times, facts: ModelFacts, device: Device, plan: ParallelPlan, formats: Formats, share: float
    ) -> None:
        """What steps are times of.

        Args:
            steps: with all experts in device memory.
            facts: the model.
            device: the device.
            plan: how the model is split.
            formats: number formats.
            share: experts in the host's memory, of all.

        Raises:
            SpecError: how fast the device reads its host's memory is not known.
        """
        self.steps, self.resting_w, self.share = steps, steps.resting_w, share
        # Groups whose experts are their own have a batch of their own.
        self._groups = plan.dp if plan.ep == 1 else 1
        size = weight_size_b(formats.experts) / link_b_per_s(device)
        self._whole_s = [
            (count * size * part.weights(facts.hidden, plan).experts, part.top_k / part.count)
            for count, part in facts.expert_layers
        ]
        self._waiting_w = plan.devices * WAITING_SHARE * (device.fact("tdp_w") or np.nan)

    def seconds(self, steps: Sequence[Step]) -> tuple[Floats, Floats, Floats]:
        """Time of each step with the ends of its interval, each of shape `(n,)`."""
        more = self._waits_s(steps)
        value, lower, upper = self.steps.seconds(steps)
        return value + more, lower + more, upper + more

    def parts(self, steps: Sequence[Step]) -> Mapping[str, Floats]:
        """Seconds of each part, each of shape `(n,)`; waiting is part of `moe`."""
        parts = self.steps.parts(steps)
        return {**parts, "moe": parts["moe"] + self._waits_s(steps)}

    def energy_j(self, steps: Sequence[Step]) -> Floats:
        """Joules of all devices, shape `(n,)`; NaN where unknown."""
        return self.steps.energy_j(steps) + self._waiting_w * self._waits_s(steps)

    def _waits_s(self, steps: Sequence[Step]) -> Floats:
        """What experts take beyond what they take from device memory, shape `(n,)`."""
        return np.maximum(self.reads_s(steps) - self.share * self.steps.parts(steps)["moe"], 0.0)

    def reads_s(self, steps: Sequence[Step]) -> Floats:
        """What the link takes to deliver the experts of steps, shape `(n,)`: no step is faster."""
        tokens = np.array([step.share(self._groups).tokens for step in steps], dtype=np.float64)
        reads = [whole_s * (1 - (1 - chosen) ** tokens) for whole_s, chosen in self._whole_s]
        return np.asarray(self.share * np.sum(reads, axis=0))


def link_share(times: Times, steps: Sequence[Step], guesses: int = 0) -> float:
    """Least share of the times of steps that the host's link takes; 0 without experts in the host's memory.

    Args:
        times: of a service's steps.
        steps: its steps; decoding ones verify `guesses`.
        guesses: tokens guessed for each sequence.
    """
    inner = times.target if isinstance(times, SpeculativeSteps) else times
    if not isinstance(inner, HostExpertSteps):
        return 0.0
    verified = [
        Step.verify(step.sequences, guesses, step.longest) if guesses and all(group.decodes for group in step) else step
        for step in steps
    ]
    return float((inner.reads_s(verified) / times.seconds(steps)[0]).min())
