"""What comes from memory: a kernel measured again and again finds its operands in the caches, one among others does not.

Between two runs of a layer a model reads the weights of all the others. Where those of the whole model outgrow the caches, no
layer finds its own there, and its kernels take at least the time in which memory delivers them. Of a program that was recorded
operator by operator, how much it touches between two touches of each tensor is known, and on a CPU what the caches hold no more
then is fetched besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, log, log2

import numpy as np

from ..features.batch.cases import Cases, Floats
from ..features.cost.bounds import Counts, counts
from ..features.device import Device
from ..features.errors import SpecError
from ..features.kernel import KernelSpec
from ..models.family_model.device_transfer import STREAM_SHARES
from ..models.predict.prediction import Interval, Prediction, Predictor

_BEYOND_CACHES = 4
"""How many times the last cache a stream is long that is to show what memory delivers."""

_COLUMNS = 1024

_SHORTEST = 19
"""Sums of shorter vectors, as a power of two of bytes, take as long as their calls."""


def streamed(
    specs: Sequence[KernelSpec], runs: Sequence[int], predictions: Sequence[Prediction], device: Device,
    read_b: Floats | None = None, rate_b_per_s: Interval | None = None,
) -> list[Prediction]:  # fmt: skip
    """Predictions of single kernels as parts of a model whose every run of a kernel has weights of its own.

    Args:
        specs: The kernels of the model.
        runs: How often each runs.
        predictions: What one run of each costs by itself.
        device: Where they run.
        read_b: Their `weights_b`, where that is known already; shape `(n,)`.
        rate_b_per_s: What memory delivers, see `cpu_stream`; None: a share of the data sheet's bandwidth, as GPUs' streams do.
    """
    read_b = weights_b(specs, device) if read_b is None else read_b
    if float(read_b @ np.array(runs, dtype=np.float64)) <= device.last_level_cache_b:
        return list(predictions)
    times_s = read_b / device.required("memory_bandwidth_b_per_s")
    if rate_b_per_s is None:
        shares: tuple[float, ...] = STREAM_SHARES
    else:
        ends = (rate_b_per_s.lower, rate_b_per_s.value, rate_b_per_s.upper)
        shares = tuple(end / device.required("memory_bandwidth_b_per_s") for end in ends)
    return [
        _with_floor(prediction, time_s, shares)
        if time_s > prediction.breakdown["dram"] or (time_s and rate_b_per_s is not None) else prediction
        for prediction, time_s in zip(predictions, times_s.tolist(), strict=True)
    ]  # fmt: skip


def cpu_stream(predictor: Predictor, device: Device, threads: int | None, coverage: float = 0.9) -> Interval | None:
    """Bytes a second that memory delivers to threads of a CPU, as long sums of two vectors were measured there.

    A few cores cannot ask for all that memory has, and a virtual machine's share of it is on no data sheet. None on a GPU and
    on a CPU that was not measured.
    """
    if device.kind != "cpu":
        return None
    rows = ceil(_BEYOND_CACHES * device.last_level_cache_b / (3 * 4 * _COLUMNS))
    spec = KernelSpec.of("elementwise", "fp32", variant="add", rows=rows, cols=_COLUMNS, threads=threads)
    answer = answer_on(predictor, spec, device, coverage)
    if answer is None or answer.regime not in ("seen", "adapted"):
        return None
    read_b = 3.0 * 4 * rows * _COLUMNS
    time = answer.latency_s
    return Interval(read_b / time.value, read_b / time.upper, read_b / time.lower)


@dataclass(frozen=True, slots=True)
class CacheReach:
    """How far back a CPU's caches hold what a program touched.

    Attributes:
        rate_b_per_s: What memory delivers.
        distances_b: Bytes touched since a tensor was, rising, shape `(n,)`.
        shares: Share of the tensor that then comes from memory, shape `(n,)`.
    """

    rate_b_per_s: Interval
    distances_b: Floats
    shares: Floats

    def fetched_b(self, reuse: Iterable[tuple[float, float]], touched_b: float) -> float:
        """Bytes that an operator fetches from memory and would not, were it run again and again.

        Args:
            reuse: bytes that were touched between two touches of a tensor, and the tensor's.
            touched_b: all bytes that the operator touches, which are what lies between two touches then.
        """
        alone = self._share(touched_b)
        return sum(size_b * max(0.0, self._share(since_b) - alone) for since_b, size_b in reuse)

    def _share(self, since_b: float) -> float:
        return float(np.interp(log(max(since_b, 1.0)), np.log(self.distances_b), self.shares))

    def with_fetches(self, prediction: Prediction, bytes_b: float) -> Prediction:
        """A kernel's prediction with bytes that it fetches from memory besides; it has no power, as all kernels of CPUs.

        Little of it runs beside the rest: a product of one row took 0.37 to 0.49 ms more with 4.2 MB of weights in a Zen 3's
        memory than with these in its caches, and at 10 GB/s they take 0.42.
        """
        if not bytes_b:
            return prediction
        rate = self.rate_b_per_s
        time = Interval(bytes_b / rate.value, bytes_b / rate.upper, bytes_b / rate.lower)
        breakdown = {**prediction.breakdown, "dram": prediction.breakdown.get("dram", 0.0) + time.value}
        bound = max(breakdown, key=breakdown.__getitem__)
        return replace(prediction, latency_s=prediction.latency_s + time, breakdown=breakdown, bound=bound)


def cache_reach(predictor: Predictor, device: Device, threads: int | None, coverage: float = 0.9) -> CacheReach | None:
    """How far the caches of a CPU reach, as sums of two vectors of all lengths were measured there: one that is taken again and
    again touches its own length between two touches. None on a GPU and on a CPU that was not measured.
    """
    rate = cpu_stream(predictor, device, threads, coverage)
    if rate is None:
        return None
    longest = ceil(log2(_BEYOND_CACHES * device.last_level_cache_b))
    rows = [2**size // (3 * 4 * _COLUMNS) for size in range(_SHORTEST, longest + 1)]
    specs = [
        KernelSpec.of("elementwise", "fp32", variant="add", rows=count, cols=_COLUMNS, threads=threads)
        for count in rows
    ]
    answers = predictor.predict(specs, [device.name] * len(specs), coverage=coverage)
    lengths_b = 3.0 * 4 * _COLUMNS * np.array(rows)
    per_byte = np.array([answer.latency_s.value for answer in answers]) / lengths_b
    # Short vectors take long for their calls, and none comes faster than a longer one.
    per_byte = np.minimum.accumulate(per_byte[::-1])[::-1]
    fastest = float(per_byte[0])
    gap = 1.0 / rate.value - fastest
    shares = np.clip((per_byte - fastest) / gap, 0.0, 1.0) if gap > 0 else np.zeros_like(per_byte)
    return CacheReach(rate, lengths_b, shares)


def answer_on(predictor: Predictor, spec: KernelSpec, device: Device, coverage: float = 0.9) -> Prediction | None:
    """What one kernel costs on a device; None where the model does not know its family."""
    try:
        (answer,) = predictor.predict([spec], [device.name], coverage=coverage)
    except SpecError as error:
        if error.field != "family":
            raise
        return None
    return answer


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


def _with_floor(prediction: Prediction, time_s: float, shares: tuple[float, ...]) -> Prediction:
    """A prediction that takes no less than `time_s` at the shares of memory's peak that streams reach; power stays."""
    before = prediction.latency_s
    longest, usual, shortest = (time_s / share for share in shares)
    latency = Interval(max(before.value, usual), max(before.lower, shortest), max(before.upper, longest))
    energy = prediction.energy_j
    if energy is not None:
        ends = ("value", "lower", "upper")
        energy = Interval(*(getattr(energy, end) * getattr(latency, end) / getattr(before, end) for end in ends))
    breakdown = {**prediction.breakdown, "dram": max(time_s, prediction.breakdown["dram"])}
    return replace(
        prediction,
        latency_s=latency,
        energy_j=energy,
        breakdown=breakdown,
        bound=max(breakdown, key=breakdown.__getitem__),
    )
