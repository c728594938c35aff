"""Feed-forward parts: a dense network, a mixture of experts with its router and shared ones, products, convolutions."""

from __future__ import annotations

from dataclasses import dataclass

from ..kernel_list import MOVED, KernelList, Part, StandIn, Weights
from ..plan import ParallelPlan, check_divides
from ..step import Formats

_EAGER_ACTIVATIONS = {
    # 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))): transformers' `NewGELUActivation`, operator by operator. x³ is two
    # multiplications (PyTorch's aten/src/ATen/native/cuda/PowKernel.cu).
    "gelu_new": ("mulu", "mulu", "mulu", "add", "mulu", "tanh", "addu", "mul"),
}
_AS_PRODUCT = StandIn("a convolution of groups of channels is estimated as the products it amounts to", 2.0)
_DEPTHWISE = StandIn("a convolution of each channel alone is estimated by the bytes it moves", 2.0)
_MIXED = StandIn("sums of residual streams are estimated by what they read and write", MOVED)
_UNGATED = StandIn("experts of two products are estimated as experts of three that are as much narrower", MOVED)


@dataclass(frozen=True, slots=True)
class Mlp:
    """A dense network: up to `inner` channels and down again.

    Attributes:
        inner: Its inner channels.
        gated: Whether a second product up gates the first.
        activation: `silu`, `gelu`, `gelu_new` or `relu`.
        bias: Whether products have biases.
        name: Its part of a kernel's name.
        convolved: Whether a convolution of each inner channel is before the activation, over nine positions (SegFormer).
    """

    inner: int
    gated: bool = True
    activation: str = "silu"
    bias: bool = False
    name: str = "mlp"
    convolved: bool = False

    def check(self, plan: ParallelPlan) -> None:
        """That the ranks of `tp` divide the inner channels.

        Raises:
            SpecError: they do not.
        """
        check_divides(plan.tp, self.inner, "channels of the feed-forward network")

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank."""
        inner, up = self.inner // plan.tp, 1 + self.gated
        others = self.bias * (up * inner + hidden) + self.convolved * 10 * inner
        return Weights(products=hidden * inner * (up + 1), others=others)

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """The product up, the activation, the product down, and the sum over ranks."""
        self.list_products(kernels, hidden)
        kernels.all_reduce("down", hidden)

    def list_products(self, kernels: KernelList, hidden: int) -> None:
        """The same without the sum over ranks."""
        inner = self.inner // kernels.plan.tp
        kernels.product("gate_up" if self.gated else "up", inner * (1 + self.gated), hidden, bias=self.bias)
        if self.convolved:
            kernels.elementwise("depthwise", "mulu", inner, stands_for=_DEPTHWISE)
        if self.gated:
            # One kernel reads both halves and writes their product: two operands in and one out.
            kernels.elementwise("activation", "mul", inner)
        elif kernels.eager and self.activation in _EAGER_ACTIVATIONS:
            for variant in _EAGER_ACTIVATIONS[self.activation]:
                kernels.elementwise("activation", variant, inner)
        else:
            kernels.elementwise("activation", "gelu" if self.activation == "gelu_new" else self.activation, inner)
        kernels.product("down", hidden, inner, bias=self.bias)

    def cache_b(self, length: int, formats: Formats, plan: ParallelPlan) -> float:
        """Nothing is kept."""
        del length, formats, plan
        return 0.0

    def width(self, hidden: int, plan: ParallelPlan) -> float:
        """Both halves of the product up, and the activation."""
        del hidden
        return self.inner // plan.tp * (2 + self.gated)


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: each token passes `top_k` of `count` experts, and the shared ones.

    Attributes:
        count: Routed experts.
        top_k: Experts of a token.
        inner: Inner channels of one.
        shared: Inner channels of all shared experts together, 0 for none.
        shared_gate: Whether a sigmoid of one product per token gates the shared ones.
        gated: Whether experts have a second product up that gates the first.
        bias: Whether experts and router have biases.
        latent: Width that tokens are projected to before routed experts and from behind them, 0 for none (Nemotron 3).
    """

    count: int
    top_k: int
    inner: int
    shared: int = 0
    shared_gate: bool = False
    gated: bool = True
    bias: bool = False
    latent: int = 0

    name = "moe"

    def check(self, plan: ParallelPlan) -> None:
        """That ranks divide the experts, or the channels of each, and the shared channels.

        Raises:
            SpecError: they do not.
        """
        check_divides(plan.ep, self.count, "experts", "ep")
        check_divides(plan.expert_tp, self.inner, "channels of an expert")
        if self.shared:
            check_divides(plan.tp, self.shared, "channels of the shared experts")

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank: its experts, its part of the shared ones, and the router, which is on each."""
        up = 1 + self.gated
        experts = self.count / plan.ep * self.inner / plan.expert_tp * (self.latent or hidden) * (up + 1)
        others: float = self.count * hidden + self.shared_gate * hidden
        if self.bias:
            others += self.count / plan.ep * (up * self.inner / plan.expert_tp + hidden) + self.count
        # Every rank has the projections into the latent and out of it.
        return Weights(hidden * (self.shared / plan.tp * (up + 1) + 2 * self.latent), experts, others)

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """The router, the experts on this rank, the shared experts, and the sum of both over ranks."""
        plan, formats = kernels.plan, kernels.formats
        tokens, width = kernels.tokens, self.latent or hidden
        kernels.product("router", self.count, hidden, quantised=False)
        kernels.add("top_k", "softmax", formats.dtype, rows=tokens, cols=self.count)
        # Experts shared out over groups of ranks get the tokens of all groups; ranks of one group have the same tokens.
        exchanged = plan.ep > 1 and plan.dp > 1
        everyones = tokens * plan.dp if exchanged else tokens
        if exchanged:
            kernels.collective("dispatch", "all_to_all", plan.ep, tokens * self.top_k * width)
        if self.latent:
            kernels.product("latent_in", width, hidden)
        inner = self.inner if self.gated else max(plan.expert_tp, round(self.inner * 2 / 3))
        kernels.add_weighted(
            "experts", "moe", formats.experts, "inter", variant=kernels.routing, tokens=everyones, hidden=width, inter=inner,
            topk=self.top_k, experts=self.count, tp=plan.expert_tp, ep=plan.ep, stands_for=None if self.gated else _UNGATED,
        )  # fmt: skip
        if exchanged:
            kernels.collective("combine", "all_to_all", plan.ep, tokens * self.top_k * width)
        if self.latent:
            kernels.product("latent_out", hidden, width)
        if self.shared:
            with kernels.repeated(1, "shared"):
                Mlp(self.shared, self.gated).list_products(kernels, hidden)
            if self.shared_gate:
                kernels.product("shared_gate", 1, hidden, quantised=False)
            kernels.elementwise("sum", "add", hidden)
        if not exchanged or self.shared:
            kernels.all_reduce("sum", hidden)

    def cache_b(self, length: int, formats: Formats, plan: ParallelPlan) -> float:
        """Nothing is kept."""
        del length, formats, plan
        return 0.0

    def width(self, hidden: int, plan: ParallelPlan) -> float:
        """The copies of a token with the inner channels of their experts, on the average rank."""
        copies = self.top_k * (plan.dp if plan.ep > 1 else 1) / plan.ep
        return copies * (2 * hidden + self.inner / plan.expert_tp * (2 + self.gated)) + 3 * self.shared / plan.tp


@dataclass(frozen=True, slots=True)
class Linear:
    """Products one after the other without an activation: an adapter of low rank, or a single projection.

    Attributes:
        sizes: Columns of each product's result; the first reads the residual stream, the others what the one before gives.
        inputs: Columns of what the first reads, 0 for the width of the residual stream.
        name: Its part of a kernel's name.
    """

    sizes: tuple[int, ...]
    inputs: int = 0
    name: str = "linear"

    def check(self, plan: ParallelPlan) -> None:
        """That the ranks of `tp` divide the columns of the last product; each rank has the others whole.

        Raises:
            SpecError: they do not.
        """
        check_divides(plan.tp, self.sizes[-1], f"columns of {self.name}")

    def _products(self, hidden: int, plan: ParallelPlan) -> list[tuple[int, int]]:
        """Columns of the result and of the input of each on a rank."""
        widths = (self.inputs or hidden, *self.sizes[:-1], self.sizes[-1] // plan.tp)
        return list(zip(widths[1:], widths, strict=False))

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank."""
        return Weights(products=sum(n * k for n, k in self._products(hidden, plan)))

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """The products, and the parts of all ranks put together."""
        for index, (n, k) in enumerate(self._products(hidden, kernels.plan)):
            kernels.product(f"product_{index + 1}", n, k)
        kernels.collective("output", "all_gather", kernels.plan.tp, kernels.tokens * self.sizes[-1] / kernels.plan.tp)

    def cache_b(self, length: int, formats: Formats, plan: ParallelPlan) -> float:
        """Nothing is kept."""
        del length, formats, plan
        return 0.0

    def width(self, hidden: int, plan: ParallelPlan) -> float:
        """The results."""
        del hidden
        return sum(self.sizes[:-1]) + self.sizes[-1] / plan.tp


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution that keeps the channels, each of which reads its group's; every rank has it whole.

    Attributes:
        taps: Positions that a result reads.
        groups: Groups of channels; 0: each channel reads itself alone.
        activation: The element-by-element kernel behind it.
        layer_scale: Whether a learned factor of each channel scales what its layer adds (ConvNeXt).
    """

    taps: int
    groups: int = 0
    activation: str = "gelu"
    layer_scale: bool = False

    name = "convolution"

    def check(self, plan: ParallelPlan) -> None:
        """Nothing is split."""

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of each rank."""
        del plan
        group = hidden // (self.groups or hidden)
        return Weights(others=hidden * (group * self.taps + 1 + self.layer_scale))

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """A product for each group, or the bytes that move, and the activation or the scale."""
        if self.groups:
            group = hidden // self.groups
            kernels.batched("product", self.groups, kernels.tokens, group, group * self.taps, stands_for=_AS_PRODUCT)
            kernels.elementwise("activation", self.activation, hidden)
        else:
            kernels.elementwise("depthwise", "mulu", hidden, stands_for=_DEPTHWISE)
        if self.layer_scale:
            kernels.elementwise("layer_scale", "mulu", hidden)

    def cache_b(self, length: int, formats: Formats, plan: ParallelPlan) -> float:
        """Nothing is kept."""
        del length, formats, plan
        return 0.0

    def width(self, hidden: int, plan: ParallelPlan) -> float:
        """The result, and the activation of it."""
        del plan
        return 2 * hidden


@dataclass(frozen=True, slots=True)
class Shared:
    """A part whose weights several layers have in common, as Zamba2's attention and network.

    Attributes:
        part: The part.
        share: Copies of its weights for each layer that runs it, below 1.
    """

    part: Part
    share: float

    @property
    def name(self) -> str:
        """Its part of a kernel's name."""
        return self.part.name

    def check(self, plan: ParallelPlan) -> None:
        """That the plan can split it.

        Raises:
            SpecError: it cannot.
        """
        self.part.check(plan)

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank, shared out over the layers."""
        return self.part.weights(hidden, plan).times(self.share)

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """Every layer runs it whole."""
        self.part.list_kernels(kernels, hidden)

    def cache_b(self, length: int, formats: Formats, plan: ParallelPlan) -> float:
        """Every layer keeps what is its own."""
        return self.part.cache_b(length, formats, plan)

    def width(self, hidden: int, plan: ParallelPlan) -> float:
        """As wide as the part."""
        return self.part.width(hidden, plan)


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
