"""Linear attention whose state decays, without a short convolution: lightning attention of MiniMax-01, mLSTM of xLSTM."""

from __future__ import annotations

from dataclasses import dataclass

from ....features.dtypes import itemsize_b
from ..kernel_list import KernelList, StandIn, Weights
from ..plan import ParallelPlan, check_divides
from ..step import Formats
from .state_space import list_recurrence

_DECAYING = StandIn(
    "linear attention with a decay of each head is estimated as Mamba-2's scan with keys of each head", 2.0
)
_DECAYING_STEP = StandIn(
    "a step of linear attention with a decay of each head is estimated as one of Mamba-2 with keys of each head", 1.5
)


@dataclass(frozen=True, slots=True)
class DecayingAttention:
    """Sums of values by keys that decay with every position, a state for each head, read by queries and gated.

    Attributes:
        heads: Heads, each with a state of [key_dim, value_dim].
        key_dim: Size of a query and of a key.
        value_dim: Size of a value.
        gates: Numbers that decide for each position and head what is kept and what is added (xLSTM, arXiv 2405.04517, section
            2.3); 0: heads decay by a constant each (MiniMax-01, arXiv 2501.08313, section 2.2.1).
        bias: Whether projections have biases.
        state_dtype: Number format of the state.
    """

    heads: int
    key_dim: int
    value_dim: int
    gates: int = 0
    bias: bool = False
    state_dtype: str = "fp32"

    name = "linear_attention"

    def _widths(self, plan: ParallelPlan) -> tuple[int, int, int]:
        """Heads of a rank, channels of their keys and of their values."""
        heads = self.heads // plan.tp
        return heads, heads * self.key_dim, heads * self.value_dim

    def check(self, plan: ParallelPlan) -> None:
        """That the ranks of `tp` divide the heads.

        Raises:
            SpecError: they do not.
        """
        check_divides(plan.tp, self.heads, "heads of linear attention")

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank: projections, gates with biases, the norm of the result."""
        heads, key, value = self._widths(plan)
        biases = self.bias * (2 * key + 2 * value + hidden)
        return Weights(
            products=hidden * (2 * key + 3 * value), others=value + self.gates * heads * (hidden + 1) + biases
        )

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """Projections, the sums of each group of sequences, the gated norm, the output projection."""
        heads, key, value = self._widths(kernels.plan)
        kernels.product("qkv", 2 * key + value, hidden, bias=self.bias)
        if self.gates:
            kernels.product("gates", self.gates * heads, hidden, quantised=False, bias=True)
            kernels.elementwise("gate_activation", "sigmoid", self.gates * heads)
        else:
            kernels.elementwise("activation", "silu", 2 * key + value)
        list_recurrence(
            kernels, "sums", "mamba2", channels=0, positions=0, state_dtype=self.state_dtype, heads=heads, key_heads=heads,
            key_dim=self.key_dim, value_dim=self.value_dim, stands_for=(_DECAYING, _DECAYING_STEP),
        )  # fmt: skip
        # xLSTM normalises heads, MiniMax all channels of a position.
        rows, cols = (heads, self.value_dim) if self.gates else (1, value)
        kernels.norm("norm", "rmsnorm", kernels.tokens * rows, cols)
        kernels.product("output_gate", value, hidden, bias=self.bias)
        kernels.elementwise("gate", "mul", value)
        kernels.product("output", hidden, value, bias=self.bias)
        kernels.all_reduce("output", hidden)

    def cache_b(self, length: int, formats: Formats, plan: ParallelPlan) -> float:
        """The state, and what normalises it where positions have gates, whatever the length."""
        del length, formats
        _, key, value = self._widths(plan)
        return (value * self.key_dim + bool(self.gates) * key) * itemsize_b(self.state_dtype)

    def width(self, hidden: int, plan: ParallelPlan) -> float:
        """Queries, keys, values, the gate and the result."""
        del hidden
        _, key, value = self._widths(plan)
        return 2 * key + 3 * value
