"""Multi-head latent attention: keys and values of all heads come from one latent vector per position, which is cached.

DeepSeek-V2 (arXiv 2405.04434, section 2.1). A prompt expands the latents into keys and values of every head; decoding absorbs
that product into the queries and the result, and attends to the latents themselves. One family has the whole part, with its
projections, as engines were measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....features.dtypes import itemsize_b
from ..kernel_list import KernelList, StandIn, Weights
from ..plan import ParallelPlan, check_divides
from ..step import Formats, Sequences

_INDEX = StandIn("scores of the indexer are estimated as attention of as many operations to keys as large", 2.0)
_CHOICE = StandIn("the choice of the best scores is estimated as a softmax over them", 2.0)


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
        """The whole part for each prompt, and once for all sequences that decode, at their mean length.

        Guesses that are verified count as sequences of their own: with absorbed products attention of all heads reads a latent
        once but multiplies it for every query, which is most of its time.
        """
        decoding = [group for group in kernels.step if group.new_tokens == group.scored]
        for group in kernels.step:
            if group.new_tokens > group.scored:
                self._attend(kernels, hidden, "prefill", group)
        if decoding:
            count = sum(group.tokens for group in decoding)
            positions = sum(group.tokens * group.length for group in decoding)
            self._attend(kernels, hidden, "decode", Sequences(count, 1, max(0, round(positions / count) - 1)))
        kernels.all_reduce("output", hidden)

    def _attend(self, kernels: KernelList, hidden: int, variant: str, group: Sequences) -> None:
        kernels.add_part(
            variant, "latent_attention", kernels.formats.weights, variant=variant, batch=group.count,
            heads=self.heads // kernels.plan.tp, q_len=group.new_tokens, kv_len=group.length, hidden=hidden,
            query_rank=self.query_rank, kv_rank=self.kv_rank, nope_dim=self.nope_dim, rope_dim=self.rope_dim,
            value_dim=self.value_dim,
        )  # fmt: skip

    def cache_b(self, length: int, formats: Formats, plan: ParallelPlan) -> float:
        """Latents of a sequence; every rank of `tp` has them all."""
        del plan
        return length * self._cached * itemsize_b(formats.kv)

    def width(self, hidden: int, plan: ParallelPlan) -> float:
        """Queries, keys and values of all heads, the latents and the result."""
        del hidden
        heads = self.heads // plan.tp
        return heads * (2 * self._key_dim + 2 * self.value_dim) + self.query_rank + self._cached


@dataclass(frozen=True, slots=True)
class IndexedLatentAttention(LatentAttention):
    """Latent attention to the positions that an indexer scores best (DeepSeek-V3.2, arXiv 2512.02556, section 2.1).

    Attributes:
        index_heads: Query heads of the indexer, which have one key head.
        index_dim: Size of its heads.
        chosen: Most positions that a query attends to.
    """

    index_heads: int = 1
    index_dim: int = 1
    chosen: int = 1

    def weights(self, hidden: int, plan: ParallelPlan) -> Weights:
        """Parameters of a rank; the indexer is on each."""
        queries = (self.query_rank or hidden) * self.index_heads * self.index_dim
        indexer = Weights(queries + hidden * (self.index_dim + self.index_heads), others=2 * self.index_dim)
        return LatentAttention.weights(self, hidden, plan) + indexer

    def _attend(self, kernels: KernelList, hidden: int, variant: str, group: Sequences) -> None:
        """Prompts longer than what is chosen attend position by position, as decoding does (FlashMLA's sparse kernels)."""
        with kernels.repeated(1, "indexer"):
            kernels.product("query", self.index_heads * self.index_dim, self.query_rank or hidden, rows=group.tokens)
            kernels.product("key_weight", self.index_dim + self.index_heads, hidden, rows=group.tokens)
            kernels.add(
                variant, "attention", kernels.formats.dtype, kv_dtype=kernels.formats.kv, batch=group.count,
                heads=self.index_heads, kv_heads=1, q_len=group.new_tokens, kv_len=group.length,
                head_dim=max(1, self.index_dim // 2), stands_for=_INDEX,
            )  # fmt: skip
            kernels.add("choice", "softmax", "fp32", rows=group.tokens, cols=group.length, stands_for=_CHOICE)
        if group.length > self.chosen:
            # Every earlier position is chosen by the first of them.
            whole = min(group.new_tokens, max(0, self.chosen - group.context))
            seen = whole * (group.context + (whole + 1) / 2) + (group.new_tokens - whole) * self.chosen
            group, variant = Sequences(group.tokens, 1, round(seen / group.new_tokens) - 1), "decode"
        LatentAttention._attend(self, kernels, hidden, variant, group)

    def cache_b(self, length: int, formats: Formats, plan: ParallelPlan) -> float:
        """The latents, and a key of the indexer for each position."""
        index_b = length * self.index_dim * itemsize_b(formats.kv)
        return LatentAttention.cache_b(self, length, formats, plan) + index_b
