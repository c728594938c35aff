"""Where time could be won: a change to what runs, with the seconds it saves and their interval.

Errors of two runs on one device hang together as those of the kernels of one run do (`whole_model`), and a kernel that both run
is off by the same. The difference D = Σ n_i·v_i - Σ m_j·u_j is a sum whose second part has negative weights, and its half-width
follows from the same correlations:

    h² = Σ_ij rho_ij · w_i · w_j,   w_i = n_i · (upper_i - lower_i) / 2 in seconds, negative in the second run
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..models.predict.prediction import Interval
from .whole_model import ERROR_CORRELATION, ErrorModel, Part

HOST_CALL_S = {"gpu": Interval(22e-6, 9e-6, 30e-6), "cpu": Interval(1.5e-6, 0.75e-6, 3e-6)}
"""What the host takes for one operator of eager PyTorch, beside its kernel. GPU: fitted to 26 small programs beside an H200
(benchmarks/torch_programs.py), where a launch alone takes 5.3 µs and a call in a model under the profiler 28 (docs/h200.md);
the lower end is a faster host's. CPU: modules and autograd, beyond the call itself that is
in the kernel's time, fitted to nine programs of tiny tensors on a Xeon of 2.3 GHz."""

IDLE_SHARE = Interval(0.17, 0.1, 0.26)
"""What a GPU draws between the kernels of a program, as a share of its power limit: an H200, whose clocks stay up, 0.17
(measured: 121 W, of steps that keep it busy for 4 % of the time). At rest data-centre GPUs draw 6 to 17 %
(`models/family_model/intervals.py`), between the steps of a service 26 % (docs/decisions/008-whole-models.md)."""


@dataclass(frozen=True, slots=True)
class Saving:
    """A change, and what it saves of the time of a step.

    Attributes:
        kind: Its short name: `weights`, `batch`, `launches`, `compiled` or `products`.
        change: What changes, in words.
        saved_s: Seconds saved of a step, for the same work; the lower end is negative where it may cost time.
        share: Those over the time of the step.
    """

    kind: str
    change: str
    saved_s: Interval
    share: float


def saved_time(before: Sequence[Part], after: Sequence[Part], work: float = 1.0) -> Interval:
    """Seconds that `before` takes longer than `after`.

    Args:
        before: parts of a run.
        after: parts of another on the same device.
        work: how many times `before` does the work of `after`, over which that is divided up; half for a batch twice as large.
    """
    parts = (*before, *after)
    signs = np.array([1.0] * len(before) + [-work] * len(after))
    model = ErrorModel.of(
        [part.kernel for part in parts], [part.prediction.regime for part in parts], ERROR_CORRELATION
    )
    counts = signs * np.array([part.kernel.count for part in parts], dtype=np.float64)
    intervals = [part.prediction.latency_s for part in parts]
    value = float(counts @ np.array([interval.value for interval in intervals]))
    # No end lies beyond what both runs can take.
    least, most = (
        float(np.where(counts > 0, counts, 0) @ np.array([getattr(item, near) for item in intervals]))
        + float(np.where(counts < 0, counts, 0) @ np.array([getattr(item, far) for item in intervals]))
        for near, far in (("lower", "upper"), ("upper", "lower"))
    )
    half = float(np.sqrt(model.variance(counts * np.array([(item.upper - item.lower) / 2 for item in intervals]))))
    return Interval(value, max(value - half, least), min(value + half, most))


def worthwhile(savings: Sequence[Saving], least_share: float = 0.01) -> tuple[Saving, ...]:
    """Those that save something to speak of, the largest first."""
    return tuple(
        sorted((item for item in savings if item.share >= least_share), key=lambda item: item.share, reverse=True)
    )
