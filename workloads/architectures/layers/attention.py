"""Attention of heads with a key and value cache: grouped queries, sliding windows, encoders, cross-attention."""

from __future__ import annotations

from dataclasses import dataclass

from ....features.dtypes import itemsize_b
from ....features.errors import SpecError
from ..kernel_list import ROPE, KernelList, Weights
from ..plan import ParallelPlan, check_divides
from ..step import Formats, Sequences


@dataclass(frozen=True, slots=True)
class Attention:
    """Multi-head attention; queries in groups share a key head.

    Attributes:
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Size of one head.
        window: Sliding window in positions, 0 for none.
        causal: Whether a position sees only itself and earlier ones, as in a decoder with a cache.
        qkv_bias: Whether the projections of queries, keys and values have a bias.
        output_bias: Whether the output projection has one.
        norm_kind: Normalisation of each query and key head; empty for none.
        rotary: Whether positions are rotations of queries and keys.
        gated: Whether a sigmoid gate as wide as the queries multiplies the result (Qwen3-Next).
        sinks: Whether each head has a learned sink (gpt-oss).
        keys: Positions of the encoder that queries look at; 0: their own sequence.
        inputs: Columns of what is projected, 0 for the width of the residual stream (Zamba2 puts the embedding beside it).
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
    keys: int = 0
    inputs: int = 0

    @property
    def name(self) -> str:
        """Its part of a kernel's name."""
        return "cross_attention" if self.keys else "attention"

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
        others = biases + bool(self.norm_kind) * 2 * self.head_dim + self.sinks * self.heads // plan.tp
        products = (self.inputs or hidden) * (query * (1 + self.gated) + 2 * key) + query * hidden
        return Weights(products=products, others=others)

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """Projections, positions, the cache, attention of each group of sequences, the output projection."""
        plan = kernels.plan
        heads, kv_heads = self.heads // plan.tp, self._kv_heads(plan)
        query, key = self._query_width(plan), self._key_width(plan)
        queries = query * (1 + self.gated)
        if self.keys:
            kernels.product("query", queries, hidden, bias=self.qkv_bias)
            if new := sum(group.count for group in kernels.step if not group.context):
                kernels.product("key_value", 2 * key, hidden, rows=new * self.keys, bias=self.qkv_bias)
        elif kernels.eager and self.kv_heads == self.heads and self.qkv_bias and not self.causal:
            # Encoders of PyTorch project queries, keys and values one by one.
            for name in ("query", "key", "value"):
                kernels.product(name, query, hidden, bias=True)
        else:
            kernels.product("qkv", queries + 2 * key, self.inputs or hidden, bias=self.qkv_bias)
        if self.norm_kind:
            kernels.norm("qk_norm", self.norm_kind, kernels.tokens * (heads + kv_heads), self.head_dim)
        if self.rotary:
            kernels.elementwise("rope", "mulu", query + key, stands_for=ROPE)
        if self.causal and not self.keys and not kernels.training:
            kernels.copy("cache_write", 2 * key)
        for group in kernels.step:
            self._attend(kernels, group, heads, kv_heads)
        if self.gated:
            kernels.elementwise("gate", "mul", query)
        kernels.product("output", hidden, query, bias=self.output_bias)
        kernels.all_reduce("output", hidden)

    def _attend(self, kernels: KernelList, group: Sequences, heads: int, kv_heads: int) -> None:
        queries = group.new_tokens
        length = self.keys or group.length
        causal = self.causal and not self.keys
        if not kernels.fused_attention:
            self._attend_unfused(kernels, group, heads, length)
            return
        kernels.add(
            "decode" if queries == 1 else "prefill", "attention", kernels.formats.dtype, kv_dtype=kernels.formats.kv,
            variant="" if causal or queries == 1 else "full", batch=group.count, heads=heads, kv_heads=kv_heads, q_len=queries,
            kv_len=length, head_dim=self.head_dim, window=self.window if causal and self.window < length else 0,
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
        if self.keys:
            positions = self.keys
        elif not self.causal:
            return 0.0
        else:
            positions = min(length, self.window or length)
        return 2 * positions * self._key_width(plan) * itemsize_b(formats.kv)

    def width(self, hidden: int, plan: ParallelPlan) -> float:
        """Queries, keys, values and result."""
        del hidden
        return self._query_width(plan) * (2 + self.gated) + 2 * self._key_width(plan)
