"""Multi-head latent attention: keys and values of all heads come from one latent vector per position, which is cached.

DeepSeek-V2 (arXiv 2405.04434, section 2.1). A prompt expands the latents into keys and values of every head; decoding absorbs
that product into the queries and the result, and attends to the latents themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....features.dtypes import itemsize_b
from ..kernel_list import ROPE, KernelList, StandIn, Weights
from ..plan import ParallelPlan, check_divides
from ..step import Formats, Sequences

_FACTOR = 2.0
"""Whole attention parts of DeepSeek-V3 listed as here, beside public timings of aiconfigurator on an H100, an H200 and a B300:
the median ratio is 0.9 to 1.2 for TensorRT-LLM 1.3 and 0.6 to 0.8 for vLLM 0.24, 80 % of the ratios are within 0.45 and 1.8."""

_PROMPT = StandIn("latent attention of a prompt is estimated as heads of the mean size of its keys and values", _FACTOR)
_DECODE = StandIn(
    "latent attention when decoding is estimated as grouped attention that reads as many bytes for as many operations",
    _FACTOR,
)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Latent attention.

    Attributes:
        heads: Query heads.
        query_rank: Size of the queries' latent; 0: queries are projected from the residual stream.
        kv_rank: Size of the latent of keys and values.
        nope_dim: Part of a head's key without position.
        rope_dim: Part of a key with rotary position, shared by all heads.
        value_dim: Size of a head's value.
    """

    heads: int
    query_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    name = "attention"

    @property
    def _key_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def _cached(self) -> int:
        """Elements per position in the cache."""
        return self.kv_rank + self.rope_dim

    def check(self, plan: ParallelPlan) -> None:
        """That the ranks of `tp` divide the heads.

        Raises:
            SpecError: they do not.
        """
        check_divides(plan.tp, self.heads, "attention heads")

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank: projections into the latents are on each, those out of them split by heads."""
        heads = self.heads // plan.tp
        queries = heads * self._key_dim
        query = hidden * self.query_rank + self.query_rank * queries if self.query_rank else hidden * queries
        keys = hidden * self._cached + self.kv_rank * heads * (self.nope_dim + self.value_dim)
        return Weights(
            products=query + keys + heads * self.value_dim * hidden, others=self.query_rank + self.kv_rank
        )  # fmt: skip

    def list_kernels(self, kernels: KernelList, hidden: int) -> None:
        """Projections into and out of the latents, positions, the cache, and attention of each group of sequences."""
        heads, tokens = self.heads // kernels.plan.tp, kernels.tokens
        queries = heads * self._key_dim
        if self.query_rank:
            kernels.product("latents", self.query_rank + self._cached, hidden)
            kernels.norm("query_norm", "rmsnorm", tokens, self.query_rank)
            kernels.product("query", queries, self.query_rank)
        else:
            kernels.product("latents", queries + self._cached, hidden)
        kernels.norm("kv_norm", "rmsnorm", tokens, self.kv_rank)
        kernels.elementwise("rope", "mulu", (heads + 1) * self.rope_dim, stands_for=ROPE)
        kernels.copy("cache_write", self._cached)
        for group in kernels.step:
            (self._decode if group.new_tokens == 1 else self._prompt)(kernels, group, heads)
        kernels.product("output", hidden, heads * self.value_dim)
        kernels.all_reduce("output", hidden)

    def _prompt(self, kernels: KernelList, group: Sequences, heads: int) -> None:
        """A product with keys of one size and one with values of another: 2 · (key + value) operations per pair and head."""
        kernels.product(
            "expand", heads * (self.nope_dim + self.value_dim), self.kv_rank, rows=group.count * group.length
        )
        kernels.add(
            "prefill", "attention", kernels.formats.dtype, stands_for=_PROMPT, batch=group.count, heads=heads, kv_heads=heads,
            q_len=group.new_tokens, kv_len=group.length, head_dim=(self._key_dim + self.value_dim) // 2,
        )  # fmt: skip

    def _decode(self, kernels: KernelList, group: Sequences, heads: int) -> None:
        """One key head of half the cached elements is read twice; more query heads make up for the operations.

        Latent attention does 2 · (2 · kv_rank + rope_dim) operations per pair and head, grouped attention 4 · head_dim.
        """
        kernels.batched("absorb", heads, group.tokens, self.kv_rank, self.nope_dim)
        head_dim = self._cached // 2
        kernels.add(
            "decode", "attention", kernels.formats.dtype, kv_dtype=kernels.formats.kv, stands_for=_DECODE, batch=group.count,
            heads=max(1, round(heads * (self.kv_rank + self.rope_dim / 2) / head_dim)), kv_heads=1, q_len=1,
            kv_len=group.length, head_dim=head_dim,
        )  # fmt: skip
        kernels.batched("expand_values", heads, group.tokens, self.value_dim, self.kv_rank)

    def cache_b(self, length: int, formats: Formats, plan: ParallelPlan) -> float:
        """Latents of a sequence; every rank of `tp` has them all."""
        del plan
        return length * self._cached * itemsize_b(formats.kv)

    def width(self, hidden: int, plan: ParallelPlan) -> float:
        """Queries, keys and values of all heads, the latents and the result."""
        del hidden
        heads = self.heads // plan.tp
        return heads * (2 * self._key_dim + 2 * self.value_dim) + self.query_rank + self._cached
