"""Attention of heads with a key and value cache: grouped queries, windows, encoders, cross-attention, relative positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....features.dtypes import itemsize_b
from ....features.errors import SpecError
from ..kernel_list import MOVED, ROPE, KernelList, StandIn, Weights
from ..plan import ParallelPlan, check_divides
from ..step import SOURCE_MISSING, Formats, Sequences, Step

_BIASES = StandIn("biases of scores by relative position are estimated as a gather that attention then reads", MOVED)
_BIASES_AGAIN = StandIn(
    "biases of scores that an earlier layer gathered are estimated by what attention reads", MOVED, 0.5
)
_AXES = StandIn("sums of biases of two axes are estimated as a pass over what they are added to", MOVED)
_GATHER = StandIn("the choice of scores by relative position is estimated as a copy of them", MOVED)


@dataclass(frozen=True, slots=True)
class Attention:
    """Multi-head attention; queries in groups share a key head.

    Attributes:
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Size of one head.
        window: Sliding window in positions, around each where all see each other; 0 for none.
        causal: Whether a position sees only itself and earlier ones, as in a decoder with a cache.
        qkv_bias: Whether the projections of queries, keys and values have a bias.
        output_bias: Whether the output projection has one.
        norm_kind: Normalisation of each query and key head; empty for none.
        rotary: Whether positions are rotations of queries and keys.
        gated: Whether a sigmoid gate as wide as the queries multiplies the result (Qwen3-Next).
        sinks: Whether each head has a learned sink (gpt-oss).
        keys: Positions of the encoder that queries look at, None where nobody has said how many; 0: their own sequence.
        inputs: Columns of what is projected, 0 for the width of the residual stream (Zamba2 puts the embedding beside it).
        biases: Rows of a table of biases by relative position that are added to the scores (T5); 0: an earlier layer has it;
            None: there are none.
        owns_keys: Whether keys and values are its own, and not those of an earlier layer (Gemma 3n).
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    causal: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    norm_kind: str = ""
    rotary: bool = True
    gated: bool = False
    sinks: bool = False
    keys: int | None = 0
    inputs: int = 0
    biases: int | None = None
    owns_keys: bool = True

    @property
    def name(self) -> str:
        """Its part of a kernel's name."""
        return "attention" if self.keys == 0 else "cross_attention"

    def _length(self, length: int) -> int:
        """Positions that queries look at: the encoder's, or those of their own sequence."""
        if self.keys is None:
            raise SpecError(SOURCE_MISSING, field="source")
        return self.keys or length

    def check(self, plan: ParallelPlan) -> None:
        """That the ranks of `tp` divide the heads, and divide the key heads or are a multiple of them.

        Raises:
            SpecError: they do not.
        """
        check_divides(plan.tp, self.heads, "attention heads")
        if self.kv_heads % plan.tp and plan.tp % self.kv_heads:
            raise SpecError(
                f"tp {plan.tp} neither divides the model's {self.kv_heads} key and value heads nor is a multiple of them",
                field="tp",
            )

    def _kv_heads(self, plan: ParallelPlan) -> int:
        """Key heads of a rank; ranks beyond their number keep copies."""
        return max(1, self.kv_heads // plan.tp)

    def _query_width(self, plan: ParallelPlan) -> int:
        return self.heads // plan.tp * self.head_dim

    def _key_width(self, plan: ParallelPlan) -> int:
        return self._kv_heads(plan) * self.head_dim

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank: projections, and biases, norms and sinks beside them."""
        query, key = self._query_width(plan), self._key_width(plan)
        biases = self.qkv_bias * (query + 2 * key) + self.output_bias * hidden
        others = biases + bool(self.norm_kind) * 2 * self.head_dim
        others += (self.sinks + (self.biases or 0)) * self.heads // plan.tp
        products = (self.inputs or hidden) * (query * (1 + self.gated) + 2 * key) + query * hidden
        return Weights(products=products, others=others)

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """Projections, positions, the cache, attention of each group of sequences, the output projection."""
        plan = kernels.plan
        heads, kv_heads = self.heads // plan.tp, self._kv_heads(plan)
        query, key = self._query_width(plan), self._key_width(plan)
        queries = query * (1 + self.gated)
        if self.keys != 0:
            kernels.product("query", queries, hidden, bias=self.qkv_bias)
            if new := sum(group.count for group in kernels.step if not group.context):
                kernels.product("key_value", 2 * key, hidden, rows=new * self._length(0), bias=self.qkv_bias)
        elif kernels.eager and self.kv_heads == self.heads and self.qkv_bias and not self.causal:
            # Encoders of PyTorch project queries, keys and values one by one.
            for name in ("query", "key", "value"):
                kernels.product(name, query, hidden, bias=True)
        elif not self.owns_keys:
            kernels.product("query", queries, self.inputs or hidden, bias=self.qkv_bias)
        else:
            kernels.product("qkv", queries + 2 * key, self.inputs or hidden, bias=self.qkv_bias)
        if self.norm_kind:
            kernels.norm("qk_norm", self.norm_kind, kernels.tokens * (heads + kv_heads), self.head_dim)
        if self.rotary:
            kernels.elementwise("rope", "mulu", query + key, stands_for=ROPE)
        if self.causal and not self.keys and self.owns_keys and not kernels.training:
            kernels.copy("cache_write", 2 * key)
        for group in kernels.step:
            self._attend(kernels, group, heads, kv_heads)
        if self.gated:
            kernels.elementwise("gate", "mul", query)
        kernels.product("output", hidden, query, bias=self.output_bias)
        kernels.all_reduce("output", hidden)

    def _attend(self, kernels: KernelList, group: Sequences, heads: int, kv_heads: int) -> None:
        queries = group.new_tokens
        length = self._length(group.length)
        causal = self.causal and not self.keys
        if self.biases is not None:
            name, stands_for = ("gather_biases", _BIASES) if self.biases else ("biases", _BIASES_AGAIN)
            kernels.copy(name, min(length, self.window or length), rows=heads * queries, stands_for=stands_for)
        if not kernels.fused_attention:
            self._attend_unfused(kernels, group, heads, length)
            return
        kernels.add(
            "decode" if queries == 1 else "prefill", "attention", kernels.formats.dtype, kv_dtype=kernels.formats.kv,
            variant="" if causal or queries == 1 else "full", batch=group.count, heads=heads, kv_heads=kv_heads, q_len=queries,
            kv_len=length, head_dim=self.head_dim, window=self.window if self.window < length else 0,
        )  # fmt: skip

    def _attend_unfused(self, kernels: KernelList, group: Sequences, heads: int, length: int) -> None:
        """As PyTorch runs `matmul`, `softmax` and `matmul`: four-dimensional operands are copied first.

        Source: `reshape` in PyTorch's aten/src/ATen/native/LinearAlgebra.cpp, and attention in transformers' models.
        """
        batch, queries, head_dim = group.count * heads, group.new_tokens, self.head_dim
        for name, positions in (("query", queries), ("key", length), ("value", length)):
            kernels.elementwise(f"copy_{name}", "mulu", head_dim, rows=batch * positions)
        kernels.batched("scores", batch, queries, length, head_dim)
        kernels.elementwise("scale", "divu", length, rows=batch * queries)
        kernels.elementwise("mask", "mulu" if self.causal else "addu", length, rows=batch * queries)
        kernels.add("softmax", "softmax", kernels.formats.dtype, rows=batch * queries, cols=length)
        kernels.drop(length, rows=batch * queries)
        kernels.batched("context", batch, queries, head_dim, length)
        kernels.elementwise("merge_heads", "mulu", heads * head_dim, rows=group.tokens)

    def cache_b(self, length: int, formats: Formats, plan: ParallelPlan) -> float:
        """Keys and values of a sequence, no more positions than the window."""
        if not self.causal or not self.owns_keys:
            return 0.0
        positions = self._length(min(length, self.window or length))
        return 2 * positions * self._key_width(plan) * itemsize_b(formats.kv)

    def width(self, hidden: int, plan: ParallelPlan) -> float:
        """Queries, keys, values and result."""
        del hidden
        return self._query_width(plan) * (2 + self.gated) + 2 * self._key_width(plan)


@dataclass(frozen=True, slots=True)
class WindowAttention(Attention):
    """Attention within square windows of an image: every window is a sequence (Swin, arXiv 2103.14030, section 3.2).

    Attributes:
        windows: Windows of an image.
        area: Positions of a window.
        shifted: Whether windows are moved by half a window, which takes two copies more.
    """

    windows: int = 1
    area: int = 1
    shifted: bool = False

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """The copies that take windows out of images and put them back, and attention in all of them."""
        with kernels.running(Step.prefill(kernels.step.sequences * self.windows, self.area)):
            with kernels.repeated(4 if self.shifted else 2, "windows"):
                kernels.copy("copy", hidden)
            Attention.list_kernels(self, kernels, hidden)


@dataclass(frozen=True, slots=True)
class MergedKeys(Attention):
    """Attention to positions of an image that a convolution merges, squares of them to one (SegFormer, arXiv 2105.15203);
    `keys` says how many are left.

    Attributes:
        side: Positions of a side of what becomes one.
    """

    side: int = 1

    name = "attention"

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank, the convolution and its norm whole beside those of attention."""
        merge = Weights(hidden**2 * self.side**2, others=3 * hidden) if self.side > 1 else Weights()
        return Attention.weights(self, hidden, plan) + merge

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """The convolution as the product it is, and attention."""
        if self.side > 1:
            rows = kernels.step.sequences * self._length(0)
            kernels.product("merge", hidden, hidden * self.side**2, rows=rows, bias=True)
            kernels.norm("merge_norm", "layernorm", rows, hidden)
        Attention.list_kernels(self, kernels, hidden)


@dataclass(frozen=True, slots=True)
class ContinuousBiases(WindowAttention):
    """The same with biases that a network of two products makes of coordinates, and scores of normalised queries and keys
    (Swin V2, arXiv 2111.09883, sections 3.2 and 3.3).

    Attributes:
        coordinates: Relative positions within a window.
        inner: Channels of the network.
    """

    coordinates: int = 1
    inner: int = 512

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank: the network beside those of attention, a scale of each head, no biases of keys."""
        heads = self.heads // plan.tp
        others = self.inner * (2 + 1 + heads) + heads - self.qkv_bias * self._key_width(plan)
        return Attention.weights(self, hidden, plan) + Weights(others=others)

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """The biases of all relative positions, their choice, and attention in windows."""
        heads = self.heads // kernels.plan.tp
        with kernels.repeated(1, "biases"):
            kernels.product("up", self.inner, 2, rows=self.coordinates, quantised=False, bias=True)
            kernels.elementwise("activation", "relu", self.inner, rows=self.coordinates)
            kernels.product("down", heads, self.inner, rows=self.coordinates, quantised=False)
            kernels.copy("gather", self.area, rows=heads * self.area, stands_for=_BIASES)
            kernels.elementwise("sigmoid", "sigmoid", self.area, rows=heads * self.area)
        rows = kernels.step.sequences * self.windows * self.area * 2 * heads
        kernels.norm("normalise", "rmsnorm", rows, self.head_dim)
        WindowAttention.list_kernels(self, kernels, hidden)


@dataclass(frozen=True, slots=True)
class AxisBiases(WindowAttention):
    """The same with biases that queries and embeddings of both axes of the image make (SAM, transformers'
    `SamVisionAttention`); a single window is the whole image.
    """

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank: embeddings of relative positions of both axes beside those of attention."""
        rows = 2 * (2 * round(self.area**0.5) - 1)
        return Attention.weights(self, hidden, plan) + Weights(others=rows * self.head_dim)

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """Windows of an image, or all of it at once."""
        (Attention if self.windows == 1 else WindowAttention).list_kernels(self, kernels, hidden)

    def _attend(self, kernels: KernelList, group: Sequences, heads: int, kv_heads: int) -> None:
        side = round(self.area**0.5)
        rows = group.count * heads * group.new_tokens
        kernels.batched("axes", side, rows // side, side, self.head_dim, times=2)
        kernels.elementwise("biases", "addu", group.length, rows=rows, stands_for=_AXES)
        Attention._attend(self, kernels, group, heads, kv_heads)


@dataclass(frozen=True, slots=True)
class GatedBiases(Attention):
    """Attention with biases by relative position that each position and head gates (WavLM, arXiv 2110.13900, section 3.1)."""

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank: a product of eight columns for a head, a number of each head, and those of attention."""
        return Attention.weights(self, hidden, plan) + Weights(others=8 * (self.head_dim + 1) + self.heads // plan.tp)

    def _attend(self, kernels: KernelList, group: Sequences, heads: int, kv_heads: int) -> None:
        rows = group.count * heads * group.new_tokens
        kernels.product("bias_gates", 8, self.head_dim, rows=rows, quantised=False, bias=True)
        kernels.elementwise("gate_biases", "mulu", group.length, rows=rows)
        Attention._attend(self, kernels, group, heads, kv_heads)


@dataclass(frozen=True, slots=True)
class GlobalWindow(Attention):
    """Attention within a window and to the sums of all blocks of a sequence (LongT5, arXiv 2112.07916, section 3.1.2).

    Attributes:
        block: Positions that are summed.
    """

    block: int = 16

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank: the norm of sums and their table of biases beside those of attention."""
        others = hidden + (self.biases or 0) * self.heads // plan.tp
        return Attention.weights(self, hidden, plan) + Weights(others=others)

    def _attend(self, kernels: KernelList, group: Sequences, heads: int, kv_heads: int) -> None:
        blocks = max(1, group.length // self.block)
        width = heads * self.head_dim
        kernels.copy("sum_blocks", width, rows=group.tokens)
        kernels.product("global_key_value", 2 * width, self.inputs or width, rows=group.count * blocks)
        Attention._attend(replace(self, window=self.window + blocks), kernels, group, heads, kv_heads)


@dataclass(frozen=True, slots=True)
class DisentangledAttention(Attention):
    """Attention with scores of content by position too (DeBERTa, arXiv 2006.03654, section 3.1), operator by operator as in
    transformers, which has no fused kernel of it.

    Attributes:
        rows: Relative positions that have an embedding.
        terms: Scores beside those of content by content: `c2p`, `p2c` or both.
        projects: Whether the embeddings have projections of their own.
        table: Whether the embeddings, with their norm, are counted in this layer.
    """

    rows: int = 0
    terms: tuple[str, ...] = ()
    projects: bool = False
    table: bool = False

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank, embeddings of relative positions in the first layer."""
        query = self._query_width(plan)
        projections = len(self.terms) if self.projects else 0
        table = (self.rows + 2) * hidden if self.table else 0
        return Attention.weights(self, hidden, plan) + Weights(
            projections * query * hidden, others=projections * query + table
        )

    def _attend(self, kernels: KernelList, group: Sequences, heads: int, kv_heads: int) -> None:
        del kv_heads
        batch, length, width = group.count * heads, group.length, heads * self.head_dim
        for name in self.terms:
            with kernels.repeated(1, name):
                kernels.product("positions", width, self.heads * self.head_dim, rows=self.rows, bias=True)
                kernels.copy("repeat", self.head_dim, rows=batch * self.rows)
                kernels.batched("scores", batch, length, self.rows, self.head_dim)
                kernels.copy("gather", length, rows=batch * length, stands_for=_GATHER)
                kernels.elementwise("scale", "divu", length, rows=batch * length)
                kernels.elementwise("sum", "add", length, rows=batch * length)
        self._attend_unfused(kernels, group, heads, length)

    def width(self, hidden: int, plan: ParallelPlan) -> float:
        """Beside queries, keys and values the scores by relative position, and as many by content."""
        return Attention.width(self, hidden, plan) + 2 * (1 + len(self.terms)) * self.heads // plan.tp * self.rows
