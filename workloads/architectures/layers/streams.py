"""Residual streams beside each other, of which a layer computes one and predicts the others (Gemma 3n)."""

from __future__ import annotations

from dataclasses import dataclass

from ..kernel_list import MOVED, KernelList, StandIn, Weights
from ..plan import ParallelPlan
from ..step import Formats

_MIXED = StandIn("sums of residual streams are estimated by what they read and write", MOVED)


@dataclass(frozen=True, slots=True)
class Streams:
    """AltUp (arXiv 2301.13310): before a layer all streams are predicted of each other, behind it all are corrected.

    Attributes:
        count: Streams; a router of one norm and one product gives each position its coefficients.
    """

    count: int

    name = "streams"

    def check(self, plan: ParallelPlan) -> None:
        """Nothing is split."""

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of each rank: the router, coefficients of prediction and of correction, a scale of each channel."""
        del plan
        return Weights(others=hidden * (self.count + 2) + self.count**3 + self.count**2)

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """The router, its coefficients and the sums, for prediction and for correction."""
        for name, coefficients in (("prediction", self.count**2), ("correction", self.count)):
            with kernels.repeated(1, name):
                kernels.norm("norm", "rmsnorm", kernels.tokens, hidden)
                kernels.product("router", self.count, hidden, quantised=False)
                kernels.elementwise("activation", "tanh", self.count)
                kernels.product("coefficients", coefficients, self.count, quantised=False)
                kernels.elementwise("sum", "add", self.count * hidden, stands_for=_MIXED)

    def cache_b(self, length: int, formats: Formats, plan: ParallelPlan) -> float:
        """Nothing is kept."""
        del length, formats, plan
        return 0.0

    def width(self, hidden: int, plan: ParallelPlan) -> float:
        """All streams, and what is predicted of them."""
        del plan
        return 2 * self.count * hidden
