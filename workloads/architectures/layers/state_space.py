"""Mixers that keep a state of fixed size in place of a cache: Mamba-2, the gated delta rule, Mamba, short convolutions."""

from __future__ import annotations

from dataclasses import dataclass

from ....features.dtypes import itemsize_b
from ..kernel_list import KernelList, StandIn, Weights
from ..plan import ParallelPlan, check_divides
from ..step import Formats

_MAMBA_HEAD = 64
"""Channels of the heads that Mamba's channels are taken together to; Mamba-2's usual head."""
_SELECTIVE = StandIn("the scan of Mamba is estimated as twice that of Mamba-2 with a state as small", 2.0, 2.0)
"""Mamba-2's scan is 2 to 8 times as fast, the more the larger the state (Dao and Gu, arXiv 2405.21060, abstract and section
9.3)."""
_SELECTIVE_STEP = StandIn("a step of Mamba's state is estimated as one of Mamba-2 with a state as small", 1.5)


def _list_convolution(kernels: KernelList, channels: int, positions: int) -> list[tuple[bool, int, int]]:
    """The short convolution of all prompts, and of all sequences that decode; of each whether it is a step, batch and length.

    Engines run prompts of different lengths in one call: here they all have the mean length.
    """
    calls = []
    for step in (False, True):
        groups = [group for group in kernels.step if (group.new_tokens == 1) == step]
        if not groups:
            continue
        batch = sum(group.count for group in groups)
        q_len = round(sum(group.tokens for group in groups) / batch)
        if channels:
            kernels.add(
                "convolution", "causal_conv1d", kernels.formats.dtype, variant="step" if step else "", batch=batch, q_len=q_len,
                channels=channels, width=positions,
            )  # fmt: skip
        calls.append((step, batch, q_len))
    return calls


def list_recurrence(
    kernels: KernelList, name: str, rule: str, *, channels: int, positions: int, state_dtype: str, heads: int, key_heads: int,
    key_dim: int, value_dim: int, stands_for: tuple[StandIn | None, StandIn | None] = (None, None),
) -> None:  # fmt: skip
    """The short convolution of `channels`, if there are any, and the scan of all prompts, and a step of all sequences that
    decode.

    `stands_for` says what the scan and the step stand in for.
    """
    dtype = kernels.formats.dtype
    for step, batch, q_len in _list_convolution(kernels, channels, positions):
        kernels.add(
            name, "linear_attention", dtype, kv_dtype=state_dtype, variant=f"{rule}_step" if step else rule, batch=batch,
            q_len=q_len, heads=heads, key_heads=key_heads, key_dim=key_dim, value_dim=value_dim, stands_for=stands_for[step],
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
        normed: Whether the gated result is normalised.
    """

    heads: int
    head_dim: int
    state: int
    groups: int
    convolution: int
    state_dtype: str = "fp32"
    normed: bool = True

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
            others=convolved * (self.convolution + 1) + 3 * heads + self.normed * inner,
        )

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """The input projection, the convolution, the scan of each group of sequences, the gated norm, the output projection."""
        heads, inner, convolved = self._sizes(kernels.plan)
        groups = max(1, self.groups // kernels.plan.tp)
        kernels.product("input", inner + convolved + heads, hidden)
        list_recurrence(
            kernels, "scan", "mamba2", channels=convolved, positions=self.convolution, state_dtype=self.state_dtype,
            heads=heads, key_heads=groups, key_dim=self.state, value_dim=self.head_dim,
        )  # fmt: skip
        kernels.elementwise("gate", "mul", inner)
        if self.normed:
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
    """Linear attention by the gated delta rule, as in Qwen3-Next, or with a decay of each channel, as in Kimi Linear.

    Attributes:
        key_heads: Heads of queries and keys.
        value_heads: Heads of values, each with a state of [key_dim, value_dim].
        key_dim: Size of a key.
        value_dim: Size of a value.
        convolution: Positions of the short convolution.
        state_dtype: Number format of the state.
        gate_rank: Rank of the products that give each channel its gate and its decay (Kimi Linear, arXiv 2510.26692); 0: gates
            have full rank, and heads decay.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    convolution: int
    state_dtype: str = "fp32"
    gate_rank: int = 0

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
        gates = hidden * (value + heads)
        if self.gate_rank:
            gates = 2 * self.gate_rank * (hidden + value)
        return Weights(
            products=hidden * (2 * key + value + heads) + gates + value * hidden,
            others=(2 * key + value) * self.convolution + heads + (value if self.gate_rank else heads) + self.value_dim,
        )

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """Projections, the convolution, the rule for each group of sequences, the gated norm, the output projection."""
        key, value = self._widths(kernels.plan)
        heads = self.value_heads // kernels.plan.tp
        if self.gate_rank:
            kernels.product("qkv", 2 * key + value, hidden)
            kernels.product("beta", heads, hidden, quantised=False)
            kernels.product("gates_in", 2 * self.gate_rank, hidden)
            for name in ("decay", "output_gate"):
                kernels.product(name, value, self.gate_rank)
            kernels.elementwise("decay_activation", "silu", value)
        else:
            kernels.product("qkvz", 2 * key + 2 * value, hidden)
            kernels.product("beta_decay", 2 * heads, hidden, quantised=False)
        list_recurrence(
            kernels, "rule", "kda" if self.gate_rank else "gated_delta", channels=2 * key + value, positions=self.convolution,
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
        return 4 * key + (5 if self.gate_rank else 4) * value


@dataclass(frozen=True, slots=True)
class SelectiveScan:
    """A Mamba mixer: every channel has a state of its own (Gu and Dao, arXiv 2312.00752, section 3).

    Attributes:
        inner: Channels.
        state: Size of the state per channel.
        rank: Rank of the product that gives each channel its step.
        convolution: Positions of the short convolution.
        normed: Whether steps, input and output matrices are normalised, as in Jamba.
        state_dtype: Number format of the state.
    """

    inner: int
    state: int
    rank: int
    convolution: int
    normed: bool = False
    state_dtype: str = "fp32"

    name = "state_space"

    def check(self, plan: ParallelPlan) -> None:
        """That the ranks of `tp` divide the channels, in heads as the scan is estimated.

        Raises:
            SpecError: they do not.
        """
        check_divides(plan.tp, self.inner // self._head, "channels of the state space, by its heads,")

    @property
    def _head(self) -> int:
        return _MAMBA_HEAD if self.inner % _MAMBA_HEAD == 0 else 1

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank: projections, the convolution, the state's decays, a weight and a bias of each channel."""
        inner, small = self.inner // plan.tp, self.rank + 2 * self.state
        return Weights(
            products=inner * (3 * hidden + small + self.rank),
            others=inner * (self.convolution + 1 + self.state + 2) + self.normed * small,
        )

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """The input projection, the convolution and the scan, the products that steer it, the output projection."""
        inner = self.inner // kernels.plan.tp
        small = self.rank + 2 * self.state
        kernels.product("input", 2 * inner, hidden)
        list_recurrence(
            kernels, "scan", "mamba2", channels=inner, positions=self.convolution, state_dtype=self.state_dtype,
            heads=inner // self._head, key_heads=1, key_dim=self.state, value_dim=self._head,
            stands_for=(_SELECTIVE, _SELECTIVE_STEP),
        )  # fmt: skip
        kernels.product("selection", small, inner)
        kernels.all_reduce("selection", small)
        if self.normed:
            kernels.norm("selection_norm", "rmsnorm", kernels.tokens, small)
        kernels.product("time_step", inner, self.rank)
        kernels.product("output", hidden, inner)
        kernels.all_reduce("output", hidden)

    def cache_b(self, length: int, formats: Formats, plan: ParallelPlan) -> float:
        """The state and the last inputs of the convolution, whatever the length."""
        del length
        inner = self.inner // plan.tp
        return inner * (self.state * itemsize_b(self.state_dtype) + (self.convolution - 1) * formats.itemsize_b)

    def width(self, hidden: int, plan: ParallelPlan) -> float:
        """The projected and the convolved input, the steps and the result."""
        del hidden
        return 5 * self.inner // plan.tp


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """A convolution over a few positions between two gates (LFM2).

    Attributes:
        channels: Its channels.
        positions: Positions it reads.
        bias: Whether its products and itself have biases.
    """

    channels: int
    positions: int
    bias: bool = False

    name = "convolution"

    def check(self, plan: ParallelPlan) -> None:
        """That the ranks of `tp` divide the channels.

        Raises:
            SpecError: they do not.
        """
        check_divides(plan.tp, self.channels, "channels of the short convolution")

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank: three products in, the convolution, one out."""
        rank = self.channels // plan.tp
        return Weights(products=4 * hidden * rank, others=rank * self.positions + self.bias * (4 * rank + hidden))

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """The product of both gates and the input, the convolution between the gates, the output projection."""
        rank = self.channels // kernels.plan.tp
        kernels.product("input", 3 * rank, hidden, bias=self.bias)
        kernels.elementwise("input_gate", "mul", rank)
        _list_convolution(kernels, rank, self.positions)
        kernels.elementwise("output_gate", "mul", rank)
        kernels.product("output", hidden, rank, bias=self.bias)
        kernels.all_reduce("output", hidden)

    def cache_b(self, length: int, formats: Formats, plan: ParallelPlan) -> float:
        """The last inputs of the convolution, whatever the length."""
        del length
        return self.channels // plan.tp * (self.positions - 1) * formats.itemsize_b

    def width(self, hidden: int, plan: ParallelPlan) -> float:
        """Both gates, the gated input and the result."""
        del hidden
        return 5 * self.channels // plan.tp
