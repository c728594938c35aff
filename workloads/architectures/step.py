"""One forward step: which sequences take part with how many new tokens, and the number formats it runs in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...features.dtypes import itemsize_b, parse_dtype
from ...features.errors import SpecError, listed

MAX_TOKENS = 2**31
"""Most sequences, new tokens or cached positions accepted; products with widths of layers stay far below `MAX_DIM`."""

ACTIVATIONS = ("bf16", "fp16", "fp32")
"""Formats that layers hand on to each other."""
WEIGHT_ONLY_B = {"int4": 0.5 + 2.5 / 128, "mxfp4": 0.5 + 1 / 32}
"""Bytes per element of formats of weights alone: 4 bits with a half-precision scale and a 4-bit zero per 128 (AWQ, Lin et al.,
arXiv 2306.00978, and GPTQ as they are usually shipped), and with an 8-bit scale per 32 (OCP Microscaling Formats 1.0)."""
WEIGHTS = ("bf16", "fp16", "fp32", "fp8", "fp8_block", "nvfp4", "int8", *WEIGHT_ONLY_B)
"""Formats of weights. Where a device multiplies a quantised one, activations are quantised too; elsewhere the product unpacks
the weights it reads."""
BLOCK_SCALED = ("fp8_block", "nvfp4", "mxfp4")
"""Formats with scales of blocks that whoever quantises keeps in registers; scales of the others are found in a pass before."""
NATIVE_AS = {"mxfp4": "nvfp4"}
"""Formats that are estimated as another where hardware multiplies both."""
CACHES = ("bf16", "fp16", "fp32", "fp8", "int8")
"""Formats of the key and value cache."""
SOURCE_MISSING = "say how many tokens the encoder reads for each sequence, such as source 512"
"""What is asked for where a model has an encoder of text, whose length nothing else says."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """Sequences of one length.

    Attributes:
        count: How many.
        new_tokens: Tokens that each adds in this step: 1 when decoding.
        context: Positions of each already in the cache.
        scored: Positions of each whose next token is predicted: the last, or all where guesses are verified.
    """

    count: int
    new_tokens: int
    context: int = 0
    scored: int = 1

    def __post_init__(self) -> None:
        for name, least in (("count", 1), ("new_tokens", 1), ("context", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_TOKENS:
                message = f"{name} must be a whole number between {least} and {MAX_TOKENS}, got {value!r}"
                raise SpecError(message, field=name)
        if self.scored not in (1, self.new_tokens):
            message = f"scored must be 1 or the {self.new_tokens} new tokens, got {self.scored!r}"
            raise SpecError(message, field="scored")

    @property
    def decodes(self) -> bool:
        """Whether sequences add a token, with guesses that are verified or without, after others: a prompt has none before."""
        return self.new_tokens == self.scored and self.context > 0

    @property
    def length(self) -> int:
        """Positions of each after the step."""
        return self.context + self.new_tokens

    @property
    def tokens(self) -> int:
        """New tokens of all."""
        return self.count * self.new_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """A forward step: a prefill (or a chunk of one), a decode step, or both mixed.

    Attributes:
        groups: Sequences that take part, by length.
    """

    groups: tuple[Sequences, ...]

    def __post_init__(self) -> None:
        if not self.groups:
            raise SpecError("a step needs at least one sequence", field="step")

    @classmethod
    def prefill(cls, batch: int, tokens: int, context: int = 0) -> Step:
        """`batch` prompts, or chunks of prompts, of `tokens` new tokens after `context` cached positions."""
        return cls((Sequences(batch, tokens, context),))

    @classmethod
    def decode(cls, batch: int, context: int) -> Step:
        """One new token for each of `batch` sequences with `context` cached positions."""
        return cls((Sequences(batch, 1, context),))

    @classmethod
    def verify(cls, batch: int, guesses: int, context: int) -> Step:
        """A new token and `guesses` of those after it, all verified, for each of `batch` sequences."""
        return cls((Sequences(batch, guesses + 1, context, guesses + 1),))

    @classmethod
    def of(
        cls, *, batch: int = 1, prefill: int | None = None, decode: bool = False, context: int | None = None
    ) -> Step:
        """A step of equal sequences, as users ask for it.

        Args:
            batch: sequences.
            prefill: new tokens of each.
            decode: one new token of each, in place of `prefill`.
            context: positions of each in the cache; 0 for a prefill unless given.

        Raises:
            SpecError: neither or both of `prefill` and `decode` are given, or a number is none that a step can have.
        """
        if decode and prefill is not None:
            raise SpecError(
                "a step either prefills or decodes; in Python a `Step` of several groups mixes both", field="decode"
            )
        if decode:
            if context is None:
                raise SpecError(
                    "decoding needs the positions already in the cache, such as context 4096", field="context"
                )
            return cls.decode(batch, context)
        if prefill is None:
            raise SpecError(
                "say what runs: a prefill of so many tokens (prefill 2048), or decoding after so many (decode, context 4096)",
                field="prefill",
            )
        return cls.prefill(batch, prefill, context or 0)

    @property
    def tokens(self) -> int:
        """New tokens of all sequences."""
        return sum(group.tokens for group in self.groups)

    @property
    def sequences(self) -> int:
        """Sequences that take part."""
        return sum(group.count for group in self.groups)

    @property
    def scored(self) -> int:
        """Positions of all sequences whose next token is predicted."""
        return sum(group.count * group.scored for group in self.groups)

    @property
    def longest(self) -> int:
        """Positions of the longest sequence after the step."""
        return max(group.length for group in self.groups)

    def share(self, dp: int) -> Step:
        """What the busiest of `dp` groups of ranks runs."""
        return Step(tuple(replace(group, count=-(-group.count // dp)) for group in self.groups))

    def __iter__(self) -> Iterator[Sequences]:
        return iter(self.groups)

    def __str__(self) -> str:
        return " + ".join(
            f"{group.count} × {group.new_tokens} new token{'s' * (group.new_tokens > 1)} after {group.context}"
            for group in self.groups
        )


@dataclass(frozen=True, slots=True)
class Formats:
    """Number formats of a model that runs. Make it with `Formats.of`.

    Attributes:
        dtype: Activations, and what is never quantised: embeddings, norms, routers, the vocabulary projection.
        weights: Matrices of the layers.
        experts: Matrices of routed experts.
        kv: The key and value cache.
    """

    dtype: str
    weights: str
    experts: str
    kv: str

    @classmethod
    def of(
        cls, dtype: str, *, weights: str | None = None, experts: str | None = None, kv: str | None = None
    ) -> Formats:
        """Checked formats; `weights` and `kv` default to `dtype`, `experts` to `weights`.

        Raises:
            SpecError: one is unknown, or not one of those possible in its place.
        """
        dtype = _one_of(dtype, ACTIVATIONS, "dtype")
        weights = dtype if weights is None else _one_of(weights, WEIGHTS, "weights")
        experts = weights if experts is None else _one_of(experts, WEIGHTS, "experts")
        kv = dtype if kv is None else _one_of(kv, CACHES, "kv_dtype")
        for name, value in (("weights", weights), ("experts", experts)):
            if value in ACTIVATIONS and value != dtype:
                raise SpecError(
                    f"{name} are {value} and activations {dtype}; unquantised weights have the format of activations",
                    field=name,
                )
        return cls(dtype, weights, experts, kv)

    @property
    def weights_text(self) -> str:
        """Formats of weights in words; those of experts where they differ."""
        return f"{self.weights} weights" + (f", {self.experts} experts" if self.experts != self.weights else "")

    @property
    def itemsize_b(self) -> float:
        """Bytes of one activation."""
        return itemsize_b(self.dtype)


def weight_size_b(name: str) -> float:
    """Bytes per element of a format of weights, scales included."""
    return WEIGHT_ONLY_B[name] if name in WEIGHT_ONLY_B else itemsize_b(name)


def _one_of(name: str, possible: tuple[str, ...], field: str) -> str:
    if isinstance(name, str) and name.lower() in possible:
        return name.lower()
    try:
        dtype = parse_dtype(name, field=field)
    except SpecError as error:
        raise SpecError(f"{field} is {name!r}; it is one of {listed(possible)}", field=field) from error
    if dtype not in possible:
        raise SpecError(f"{field} is {dtype}; it is one of {listed(possible)}", field=field)
    return dtype
