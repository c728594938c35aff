"""Mixers that keep a state of fixed size in place of a cache: Mamba-2 and the gated delta rule."""

from __future__ import annotations

from dataclasses import dataclass

from ....features.dtypes import itemsize_b
from ..kernel_list import KernelList, Weights
from ..plan import ParallelPlan, check_divides
from ..step import Formats


def _list_recurrence(
    kernels: KernelList, name: str, rule: str, *, channels: int, positions: int, state_dtype: str, heads: int, key_heads: int,
    key_dim: int, value_dim: int,
) -> None:  # fmt: skip
    """The short convolution of `channels` and the scan of all prompts, and a step of all sequences that decode.

    Engines run prompts of different lengths in one call: here they all have the mean length.
    """
    dtype = kernels.formats.dtype
    for step in (False, True):
        groups = [group for group in kernels.step if (group.new_tokens == 1) == step]
        if not groups:
            continue
        batch = sum(group.count for group in groups)
        q_len = round(sum(group.tokens for group in groups) / batch)
        kernels.add(
            "convolution", "causal_conv1d", dtype, variant="step" if step else "", batch=batch, q_len=q_len, channels=channels,
            width=positions,
        )  # fmt: skip
        kernels.add(
            name, "linear_attention", dtype, kv_dtype=state_dtype, variant=f"{rule}_step" if step else rule, batch=batch,
            q_len=q_len, heads=heads, key_heads=key_heads, key_dim=key_dim, value_dim=value_dim,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class StateSpace:
    """A Mamba-2 mixer.

    Attributes:
        heads: Heads.
        head_dim: Size of one head.
        state: Size of the state per head and channel.
        groups: Groups of heads that share their input and output matrices.
        convolution: Positions of the short convolution.
        state_dtype: Number format of the state.
    """

    heads: int
    head_dim: int
    state: int
    groups: int
    convolution: int
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
        _list_recurrence(
            kernels, "scan", "mamba2", channels=convolved, positions=self.convolution, state_dtype=self.state_dtype,
            heads=heads, key_heads=groups, key_dim=self.state, value_dim=self.head_dim,
        )  # fmt: skip
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
        _list_recurrence(
            kernels, "rule", "gated_delta", channels=2 * key + value, positions=self.convolution,
            state_dtype=self.state_dtype, heads=heads, key_heads=self.key_heads // kernels.plan.tp, key_dim=self.key_dim,
            value_dim=self.value_dim,
        )  # fmt: skip
        kernels.norm("norm", "rmsnorm", kernels.tokens * heads, self.value_dim)
        kernels.elementwise("gate", "mul", value)
        kernels.product("output", hidden, value)
        kernels.all_reduce("output", hidden)

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
