"""Times of the steps of a service: its engine's, with experts of quantised weights no slower than memory lets them be.

And what an engine runs on a device; where it does not, the error names the nearest that it does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...features.batch.cases import Floats
from ...features.batch.category import impl_version
from ...features.device import Device
from ...features.errors import SpecError, listed
from ...models.predict.predictor import ArtifactPredictor
from ..architectures.estimate import formats_of
from ..architectures.memory import memory
from ..architectures.plan import ParallelPlan
from ..architectures.step import NATIVE_AS, WEIGHT_ONLY_B, Formats, Step, weight_size_b
from .engine.collectives import most_ranks
from .engine.profile import shipped_profile
from .host_experts import HostExpertSteps
from .request import VENDORS, ServingRequest, scheduler_name
from .speculation import SpeculativeSteps, Times, draft_formats, draft_plan
from .steps import KernelEstimates, StepTimes

ENGINE_CACHES: Mapping[str, tuple[str, ...]] = {"vllm": ("fp8",), "sglang": ("fp8",), "trtllm": ("fp8", "int8")}
"""Formats of a cache beside that of activations, by engine (`--kv-cache-dtype` of vLLM and SGLang; int8 is of TensorRT-LLM's
compiled engines, before 1.0)."""
IDLE_SHARE = 0.176
"""Power of a GPU that has nothing to run, as a share of its limit, where it is not measured: 123 of 700 W, kernelcast's own
measurement of an H200 (`features/devices/nvidia-h200-sxm-141gb.yaml`)."""

CONVERSION: Mapping[str, float] = {"vllm-v0": 3.2, "trtllm": 1.8}
"""Clocks of a multiprocessor per cached number in fp8 that attention of an engine reads, by scheduler, where the device cannot
convert the format: fitted to LLM-Inference-Bench's Llama-3-8B on A100, where it takes 0.26 s of a step with 200,000 positions.
vLLM before 0.8 reads them once for every query head, of which there are four a key."""

LARGER_GRAPHS = (192, 256, 384, 512, 768, 1024, 2048)
"""Graphs of decode steps beyond an engine's default ones: services capture up to the sequences they run (InferenceX sets
`cuda_graph_config.max_batch_size` and `--cuda-graph-max-bs` to its concurrency)."""


class ServiceSteps:
    """Times, parts and energies of steps.

    Experts are predicted in their format and, where the device multiplies that format, unquantised too. A decode step reads the
    experts that its tokens choose, so that quantised ones take no more than their share of the bytes; a step with prompts takes
    no more than unquantised ones. Rows of quantised experts are few, and of other shapes: fp8 experts of Mixtral on an H100
    would take twice as long as unquantised ones, those of gpt-oss on a B200 twice what services show.
    """

    def __init__(
        self, times: StepTimes, unquantised: StepTimes | None, share: float, resting_w: float, conversion_s: float = 0.0
    ) -> None:  # fmt: skip
        """What steps are times of.

        Args:
            times: of the engine.
            unquantised: the same with unquantised experts; None: experts are taken as they are.
            share: bytes of a quantised weight over those of an unquantised one.
            resting_w: watts of a device that has nothing to run; NaN where unknown.
            conversion_s: seconds per cached position that a decode step converts in software (`CONVERSION`).
        """
        self.times, self.unquantised, self.share, self.resting_w = times, unquantised, share, resting_w
        self.conversion_s = conversion_s

    def seconds(self, steps: Sequence[Step]) -> tuple[Floats, Floats, Floats]:
        """Time of each step with the ends of its interval, each of shape `(n,)`."""
        value, lower, upper = self.times.seconds(steps)
        rest = self._rest(steps, value)
        return value * rest, lower * rest, upper * rest

    def parts(self, steps: Sequence[Step]) -> Mapping[str, Floats]:
        """Seconds of each part, as `StepTimes.parts`."""
        parts = dict(self.times.parts(steps))
        return parts | {
            "moe": parts["moe"] - self._excess_s(steps), "attention": parts["attention"] + self._conversions_s(steps)
        }  # fmt: skip

    def energy_j(self, steps: Sequence[Step]) -> Floats:
        """Joules of all devices, shape `(n,)`; NaN where unknown."""
        return self.times.energy_j(steps) * self._rest(steps, self.times.seconds(steps)[0])

    def _rest(self, steps: Sequence[Step], seconds: Floats) -> Floats:
        """Times over those of the engine's kernels, shape `(n,)`."""
        return 1 + (self._conversions_s(steps) - self._excess_s(steps)) / seconds

    def _conversions_s(self, steps: Sequence[Step]) -> Floats:
        """What decoding sequences take to convert what is cached, shape `(n,)`."""
        positions = [
            sum(group.count * group.context for group in step if group.new_tokens == group.scored) for step in steps
        ]
        return self.conversion_s * np.array(positions, dtype=np.float64)

    def _excess_s(self, steps: Sequence[Step]) -> Floats:
        """What experts are predicted to take beyond what they can, shape `(n,)`."""
        if self.unquantised is None:
            return np.zeros(len(steps))
        most = np.where([all(group.new_tokens == group.scored for group in step) for step in steps], self.share, 1.0)
        return np.maximum(0.0, self.times.parts(steps)["moe"] - most * self.unquantised.parts(steps)["moe"])


def steps_of(predictor: ArtifactPredictor, request: ServingRequest, kernels: KernelEstimates | None = None) -> Times:
    """Times of the steps of a question, with guesses where it speculates, and experts where they are.

    Raises:
        SpecError: the plan cannot split the model.
    """
    target: Times = service_steps(predictor, request, kernels)
    if request.host_experts:
        device = predictor.devices.get(request.device)
        target = HostExpertSteps(target, request.facts, device, request.plan, request.formats, request.host_experts)
    if (speculation := request.speculation) is None:
        return target
    draft: Times | None = None
    if speculation.draft is not None:
        small, plan = speculation.draft, draft_plan(request.plan)
        formats = draft_formats(small, request.formats)
        question = replace(request, facts=small, plan=plan, formats=formats, speculation=None, host_experts=0.0)
        draft = service_steps(predictor, question, kernels)
    return SpeculativeSteps(target, draft, speculation.tokens)


def service_steps(
    predictor: ArtifactPredictor, request: ServingRequest, kernels: KernelEstimates | None = None
) -> ServiceSteps:
    """Times of the steps of a question without guesses.

    Kernels are those of `newest_vllm`, whatever the engine: of TensorRT-LLM's own, quantised products of few rows on a B200
    take twice as long as its measured steps. `kernels` keeps their estimates for other engines.

    Raises:
        SpecError: the plan cannot split the model.
    """
    profile = shipped_profile(request.engine, request.engine_version)
    larger = tuple(size for size in LARGER_GRAPHS if profile.batches and size > profile.batches[-1])
    if profile.impl:
        # The factors of prompts are of the kernels of the profile's implementation.
        profile = replace(profile, prompt_factor=1.0, expert_factor=1.0)
    library = newest_vllm(predictor, request.device)
    profile = replace(profile, batches=(*profile.batches, *larger))

    def times(formats: Formats) -> StepTimes:
        return StepTimes(
            predictor,
            request.facts,
            request.device,
            request.plan,
            formats,
            request.engine,
            request.engine_version,
            profile,
            kernels,
            library,
            unpacks=True,
        )

    formats, device = request.formats, predictor.devices.get(request.device)
    unquantised = None
    if request.facts.expert_layers and formats.experts != formats.dtype and multiplies(device, formats.experts):
        unquantised = times(replace(formats, experts=formats.dtype))
    share = weight_size_b(formats.experts) / weight_size_b(formats.dtype)
    return ServiceSteps(times(formats), unquantised, share, _resting_w(device), _conversion_s(request, device))


def newest_vllm(predictor: ArtifactPredictor, device: str) -> str:
    """The newest vLLM whose products were measured on the device; empty, for its usual library, where none was.

    PyTorch's products, of which an H100 and an H200 have many rows, leave out what engines do around quantised ones: in fp8
    of 4 rows they take half as long.
    """
    labels = (label.split() for label in predictor.family("gemm").model.schema.groups)
    names = {impl for name, impl, _ in labels if name == device and impl.startswith("vllm-")}
    return max(names, key=impl_version, default="")


def _conversion_s(request: ServingRequest, device: Device) -> float:
    """Seconds per cached position that a decode step converts in software; 0 where the device converts the format."""
    clocks = CONVERSION.get(scheduler_name(request.engine, request.engine_version), 0.0)
    units, clock = device.fact("compute_units"), device.fact("boost_clock_hz")
    if request.formats.kv != "fp8" or not clocks or device.vendor != "nvidia" or multiplies(device, "fp8"):
        return 0.0
    if units is None or clock is None:
        return 0.0
    numbers = memory(request.facts, Step.decode(1, 2), request.formats, request.plan, device).cache_per_token_b
    return clocks * numbers / (units * clock)


def multiplies(device: Device, dtype: str) -> bool:
    """Whether a device's matrix units multiply a format, and not only another in its place."""
    name = NATIVE_AS.get(dtype, dtype)
    if name in WEIGHT_ONLY_B:
        return False
    try:
        return device.peak_flops_per_s(name, "matrix")[1] == name
    except SpecError:
        return False


def _resting_w(device: Device) -> float:
    measured, limit = device.measured.get("power_idle_w"), device.fact("tdp_w")
    if measured is not None:
        return measured.value
    return float("nan") if limit is None else IDLE_SHARE * limit


_ROOMY = ("fp8", "int8", "int4", "fp16", "bf16")
"""Formats of weights that are named in place of one that does not run, best first."""


def check_engine(engine: str, device: Device) -> None:
    """That an engine runs on a device.

    Raises:
        SpecError: it does not, with those that do.
    """
    if engine in VENDORS and device.kind == "cpu":
        raise SpecError(f"{device.name} is a cpu; services of {engine} are predicted on GPUs", field="device")
    if device.vendor not in VENDORS.get(engine, (device.vendor,)):
        others = [name for name, vendors in VENDORS.items() if device.vendor in vendors]
        raise SpecError(
            f"{engine} does not run on devices of {device.vendor} such as {device.name}; "
            f"{listed(others) if others else 'pytorch'} {'do' if len(others) > 1 else 'does'}", field="engine",
        )  # fmt: skip


def check_formats(engine: str, formats: Formats, device: Device) -> None:
    """That an engine has kernels of number formats on a device.

    NVIDIA's devices without units for bf16 run fp16 alone; vLLM and SGLang unpack fp8 and 4-bit floats on all others (their
    Marlin kernels), TensorRT-LLM on none, and on AMD's devices a format needs units of its own.

    Raises:
        SpecError: it has none, with the nearest that it has.
    """
    if engine not in VENDORS or device.vendor not in ("nvidia", "amd"):
        return
    if formats.dtype == "bf16" and not multiplies(device, "bf16"):
        raise SpecError(
            f"{device.title} computes no bf16, which {engine} needs units for; use dtype fp16", field="dtype"
        )
    caches = ENGINE_CACHES.get(engine, (formats.kv,))
    if formats.kv not in (formats.dtype, *caches):
        raise SpecError(
            f"{engine} keeps no {formats.kv} cache beside {formats.dtype} activations; use {listed((formats.dtype, *caches))}",
            field="kv_dtype",
        )  # fmt: skip
    for weights in (formats.weights, formats.experts):
        if not _has_weights(engine, weights, device):
            near = [name for name in _ROOMY if _has_weights(engine, name, device) and multiplies(device, "bf16")]
            raise SpecError(
                f"{engine} has no products of {weights} weights on {device.title}; "
                f"use {listed(near or ['int8', 'int4', 'fp16'])}", field="weights",
            )  # fmt: skip


def _has_weights(engine: str, weights: str, device: Device) -> bool:
    if weights not in ("fp8", "fp8_block", "nvfp4", "mxfp4"):
        return True
    # Units for fp8 multiply blocks of it, whose scales are applied after.
    if multiplies(device, weights.removesuffix("_block")):
        return True
    if device.vendor == "amd" or not multiplies(device, "bf16"):
        return False
    return engine != "trtllm" or weights == "mxfp4"


def no_room(request: ServingRequest, device: Device, step: Step, weights_b: float, whole_b: float) -> SpecError:
    """The error of a model whose weights leave no room for a cache, with the nearest plan and format that do.

    Args:
        request: the question.
        device: its device.
        step: the largest step of its engine, whose activations stay beside the weights.
        weights_b: weights on the fullest device.
        whole_b: what the engine takes of the device.
    """
    facts, formats, plan = request.facts, request.formats, request.plan
    share, speculation = request.host_experts, request.speculation

    def fits(split: ParallelPlan, kinds: Formats) -> bool:
        try:
            facts.check_plan(split)
            check_formats(request.engine, kinds, device)
        except SpecError:
            return False
        holds = memory(facts, step, kinds, split, device, host_experts=share)
        if speculation is not None:
            holds = speculation.with_draft(holds, step, kinds, split)
        return holds.weights_b + holds.activations_b < whole_b

    most = max(1, most_ranks(device) // plan.dp)
    splits = [replace(plan, tp=tp) for tp in (1, 2, 4, 8) if plan.tp < tp <= most and plan.dp * tp % plan.ep == 0]
    splits += [replace(splits[-1] if splits else plan, pp=pp) for pp in (2, 4, 8, 16) if pp > plan.pp]
    near = [f"{item}" for item in splits if fits(item, formats)][:1]
    for name in ("fp8", "int4"):
        kinds = formats_of(facts, dtype=formats.dtype, weights=name, kv=formats.kv)
        if weight_size_b(name) < weight_size_b(formats.weights) and fits(plan, kinds):
            near.append(f"weights in {name}")
            break
    if facts.expert_layers and share < 1 and request.engine == "vllm":
        near.append("more experts on the host (host_experts)")
    hint = f"use {' or '.join(near)}" if near else "no split of 16 stages and no format holds it: use larger devices"
    return SpecError(
        f"{facts.name} with weights {formats.weights} takes {weights_b / 1e9:.4g} GB of each {device.title} under {plan}, of "
        f"{whole_b / 1e9:.4g} GB that {request.engine} uses; {hint}", field="memory",
    )  # fmt: skip
