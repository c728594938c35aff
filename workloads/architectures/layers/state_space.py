"""Mixers that keep a state of fixed size in place of a cache: Mamba-2 and the gated delta rule.

No kernel family describes their scans. A prompt is cut into chunks, whose products are listed as products (Mamba-2: Dao and Gu,
arXiv 2405.21060, section 6; gated delta rule: Yang et al., arXiv 2412.06464, section 3.3, with the chunks of
flash-linear-attention). Decoding reads and writes the state, listed as a copy of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....features.dtypes import itemsize_b
from ..kernel_list import KernelList, StandIn, Weights
from ..plan import ParallelPlan, check_divides
from ..step import Formats, Sequences

_FACTOR = 3.0
"""What stands in here, over public timings of aiconfigurator for the gated delta rule on an H100, an H200 and a B300: the
median ratio is 0.8 to 2.2 for chunks, 0.5 to 1.4 for states and 0.3 to 0.4 for convolutions, most within 0.33 and 3."""

_CONVOLUTION = StandIn("the short convolution is estimated by what it reads and writes", _FACTOR)
_CHUNK = StandIn("the scan of a prompt is estimated as the products of its chunks", _FACTOR)
_STATE = StandIn("a scan that decodes is estimated as a copy of its state", _FACTOR)

DELTA_CHUNK = 64
"""Positions of a chunk in flash-linear-attention's gated delta rule (`fla/ops/gated_delta_rule/chunk.py`)."""


def _list_convolution(kernels: KernelList, channels: int, positions: int) -> None:
    """Over a prompt, rows in and out; when decoding, the last positions of each channel too."""
    if decoding := sum(group.count for group in kernels.step if group.new_tokens == 1):
        kernels.copy("convolution", channels * positions, rows=decoding, stands_for=_CONVOLUTION)
    if prompts := sum(group.tokens for group in kernels.step if group.new_tokens > 1):
        kernels.copy("convolution", channels, rows=prompts, stands_for=_CONVOLUTION)


@dataclass(frozen=True, slots=True)
class StateSpace:
    """A Mamba-2 mixer.

    Attributes:
        heads: Heads.
        head_dim: Size of one head.
        state: Size of the state per head and channel.
        groups: Groups of heads that share their input and output matrices.
        convolution: Positions of the short convolution.
        chunk: Positions of a chunk of the scan.
        state_dtype: Number format of the state.
    """

    heads: int
    head_dim: int
    state: int
    groups: int
    convolution: int
    chunk: int = 256
    state_dtype: str = "fp32"

    name = "state_space"

    def _sizes(self, plan: ParallelPlan) -> tuple[int, int, int]:
        """Heads, inner channels and convolved channels of a rank."""
        heads = self.heads // plan.tp
        inner = heads * self.head_dim
        return heads, inner, inner + 2 * max(1, self.groups // plan.tp) * self.state

    def check(self, plan: ParallelPlan) -> None:
        """That the ranks of `tp` divide the heads.

        Raises:
            SpecError: they do not.
        """
        check_divides(plan.tp, self.heads, "state-space heads")

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank: projections, the convolution, three numbers per head and the norm."""
        heads, inner, convolved = self._sizes(plan)
        return Weights(
            products=hidden * (inner + convolved + heads) + inner * hidden,
            others=convolved * (self.convolution + 1) + 3 * heads + inner,
        )

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """The input projection, the convolution, the scan of each group of sequences, the gated norm, the output projection."""
        heads, inner, convolved = self._sizes(kernels.plan)
        groups = max(1, self.groups // kernels.plan.tp)
        kernels.product("input", inner + convolved + heads, hidden)
        _list_convolution(kernels, convolved, self.convolution)
        for group in kernels.step:
            if group.new_tokens == 1:
                kernels.copy("scan", self.head_dim * self.state, rows=group.count * heads, dtype=self.state_dtype,
                             stands_for=_STATE)  # fmt: skip
                continue
            length = min(self.chunk, group.new_tokens)
            chunks = group.count * -(-group.new_tokens // length)
            kernels.batched("scan", chunks * groups, length, length, self.state, stands_for=_CHUNK)
            kernels.batched("scan", chunks * heads, length, self.head_dim, length, stands_for=_CHUNK)
            kernels.batched("scan", chunks * heads, self.state, self.head_dim, length, stands_for=_CHUNK)
            kernels.batched("scan", chunks * heads, length, self.head_dim, self.state, stands_for=_CHUNK)
        kernels.elementwise("gate", "mul", inner)
        kernels.norm("norm", "rmsnorm", kernels.tokens, inner)
        kernels.product("output", hidden, inner)
        kernels.all_reduce("output", hidden)

    def cache_b(self, length: int, formats: Formats, plan: ParallelPlan) -> float:
        """The state and the last inputs of the convolution, whatever the length."""
        del length
        _, inner, convolved = self._sizes(plan)
        state_b = inner * self.state * itemsize_b(self.state_dtype)
        return state_b + convolved * (self.convolution - 1) * formats.itemsize_b

    def width(self, hidden: int, plan: ParallelPlan) -> float:
        """The projected input, the convolved input and the result."""
        del hidden
        _, inner, convolved = self._sizes(plan)
        return 2 * inner + 2 * convolved


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """Linear attention by the gated delta rule, as in Qwen3-Next.

    Attributes:
        key_heads: Heads of queries and keys.
        value_heads: Heads of values, each with a state of [key_dim, value_dim].
        key_dim: Size of a key.
        value_dim: Size of a value.
        convolution: Positions of the short convolution.
        state_dtype: Number format of the state.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    convolution: int
    state_dtype: str = "fp32"

    name = "linear_attention"

    def _widths(self, plan: ParallelPlan) -> tuple[int, int]:
        """Channels of the keys and of the values of a rank."""
        return self.key_heads // plan.tp * self.key_dim, self.value_heads // plan.tp * self.value_dim

    def check(self, plan: ParallelPlan) -> None:
        """That the ranks of `tp` divide both kinds of heads.

        Raises:
            SpecError: they do not.
        """
        check_divides(plan.tp, self.key_heads, "key heads of linear attention")
        check_divides(plan.tp, self.value_heads, "value heads of linear attention")

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank: projections, the convolution, two numbers per head and the norm of one head."""
        key, value = self._widths(plan)
        heads = self.value_heads // plan.tp
        return Weights(
            products=hidden * (2 * key + 2 * value + 2 * heads) + value * hidden,
            others=(2 * key + value) * self.convolution + 2 * heads + self.value_dim,
        )

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """Projections, the convolution, the rule for each group of sequences, the gated norm, the output projection."""
        key, value = self._widths(kernels.plan)
        heads = self.value_heads // kernels.plan.tp
        kernels.product("qkvz", 2 * key + 2 * value, hidden)
        kernels.product("beta_decay", 2 * heads, hidden, quantised=False)
        _list_convolution(kernels, 2 * key + value, self.convolution)
        for group in kernels.step:
            if group.new_tokens == 1:
                kernels.copy("rule", self.key_dim * self.value_dim, rows=group.count * heads, dtype=self.state_dtype,
                             stands_for=_STATE)  # fmt: skip
            else:
                self._list_chunks(kernels, group, heads)
        kernels.norm("norm", "rmsnorm", kernels.tokens * heads, self.value_dim)
        kernels.elementwise("gate", "mul", value)
        kernels.product("output", hidden, value)
        kernels.all_reduce("output", hidden)

    def _list_chunks(self, kernels: KernelList, group: Sequences, heads: int) -> None:
        """Per chunk of L positions: K·Kᵀ and Q·Kᵀ, the inverse of a triangle applied to keys and to values, and the state."""
        size = min(DELTA_CHUNK, group.new_tokens)
        batch = group.count * -(-group.new_tokens // size) * heads
        for m, n, k, times in (
            (size, size, self.key_dim, 2),
            (size, self.key_dim, size, 1),
            (size, self.value_dim, size, 2),
            (size, self.value_dim, self.key_dim, 2),
            (self.key_dim, self.value_dim, size, 1),
        ):
            kernels.batched("rule", batch, m, n, k, times=times, stands_for=_CHUNK)

    def cache_b(self, length: int, formats: Formats, plan: ParallelPlan) -> float:
        """The state and the last inputs of the convolution, whatever the length."""
        del length
        key, value = self._widths(plan)
        state_b = value * self.key_dim * itemsize_b(self.state_dtype)
        return state_b + (2 * key + value) * (self.convolution - 1) * formats.itemsize_b

    def width(self, hidden: int, plan: ParallelPlan) -> float:
        """Projected and convolved queries, keys and values, the gate and the result."""
        del hidden
        key, value = self._widths(plan)
        return 4 * key + 4 * value
