"""Weights of a whole model come from memory: a kernel measured again and again finds its own in the caches, a layer does not.

Between two runs of a layer a model reads the weights of all the others. Where those of the whole model outgrow the caches, no
layer finds its own there, and its kernels take at least the time in which memory delivers them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..features.batch.cases import Cases, Floats
from ..features.cost.bounds import Counts, counts
from ..features.device import Device
from ..features.kernel import KernelSpec
from ..models.family_model.device_transfer import STREAM_SHARES
from ..models.predict.prediction import Interval, Prediction


def streamed(
    specs: Sequence[KernelSpec], runs: Sequence[int], predictions: Sequence[Prediction], device: Device,
    read_b: Floats | None = None,
) -> list[Prediction]:  # fmt: skip
    """Predictions of single kernels as parts of a model whose every run of a kernel has weights of its own.

    Args:
        specs: The kernels of the model.
        runs: How often each runs.
        predictions: What one run of each costs by itself.
        device: Where they run.
        read_b: Their `weights_b`, where that is known already; shape `(n,)`.
    """
    read_b = weights_b(specs, device) if read_b is None else read_b
    if float(read_b @ np.array(runs, dtype=np.float64)) <= device.last_level_cache_b:
        return list(predictions)
    times_s = read_b / device.required("memory_bandwidth_b_per_s")
    return [
        _with_floor(prediction, time_s) if time_s > prediction.breakdown["dram"] else prediction
        for prediction, time_s in zip(predictions, times_s.tolist(), strict=True)
    ]


def weights_b(specs: Sequence[KernelSpec], device: Device) -> Floats:
    """Bytes of each kernel's weights, or of the keys and values that decoding reads, shape `(n,)`; 0 where it has neither."""
    sizes_b = np.zeros(len(specs))
    with_weights = [i for i, spec in enumerate(specs) if _has_weights(spec)]
    for family in dict.fromkeys(specs[i].family for i in with_weights):
        rows = [i for i in with_weights if specs[i].family == family]
        counted = Counts.of_rows(counts(Cases.from_specs([specs[i] for i in rows], [device.name] * len(rows))))
        # Of experts no token goes to, nothing is read.
        sizes_b[rows] = np.minimum(counted.operand_b[1], counted.bytes)
    return sizes_b


def _has_weights(spec: KernelSpec) -> bool:
    """Whether all operands but the first are read once a run; of batched products they are activations, often just written."""
    if spec.family == "gemm":
        return dict(spec.dims)["batch"] == 1
    return spec.family in ("conv2d", "moe", "latent_attention") or (
        spec.family == "attention" and spec.variant == "decode"
    )


def _with_floor(prediction: Prediction, time_s: float) -> Prediction:
    """A prediction that takes no less than `time_s` at the share of memory's peak that streams reach; power stays."""
    before = prediction.latency_s
    longest, usual, shortest = (time_s / share for share in STREAM_SHARES)
    latency = Interval(max(before.value, usual), max(before.lower, shortest), max(before.upper, longest))
    energy = prediction.energy_j
    if energy is not None:
        ends = ("value", "lower", "upper")
        energy = Interval(*(getattr(energy, end) * getattr(latency, end) / getattr(before, end) for end in ends))
    breakdown = {**prediction.breakdown, "dram": time_s}
    return replace(
        prediction,
        latency_s=latency,
        energy_j=energy,
        breakdown=breakdown,
        bound=max(breakdown, key=breakdown.__getitem__),
    )
