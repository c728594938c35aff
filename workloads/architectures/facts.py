"""What is known of a model: its layers part by part, its ends, and the parameters that follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Literal

from ...features.errors import SpecError
from .kernel_list import Part, Weights
from .layers.attention import Attention
from .plan import ONE_DEVICE, ParallelPlan
from .step import MAX_TOKENS

if TYPE_CHECKING:
    from .layers.feed_forward import Experts


@dataclass(frozen=True, slots=True)
class Product:
    """A product outside the layers.

    Attributes:
        name: Its name.
        rows: Rows per sequence.
        n: Columns of its result.
        k: Columns of its input.
        per_position: Whether the rows are those of each position.
        bias: Whether it has a bias.
        norm: Columns that are normalised together before it, 0 for none.
        after: What passes over its result: `norm`, or an element-by-element kernel.
    """

    name: str
    rows: int
    n: int
    k: int
    per_position: bool = False
    bias: bool = True
    norm: int = 0
    after: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """Its matrix, its bias, and a scale and a shift for each normalised column."""
        return self.n * (self.k + self.bias) + 2 * (self.norm + self.n * self.after.count("norm"))


@dataclass(frozen=True, slots=True)
class Block:
    """Layers that are alike.

    Attributes:
        count: How many.
        parts: What each runs, one after the other.
        norms: Normalisations of the residual stream in each.
        front: Products before the first of them, as where patches of an image are merged.
        hidden: Width of their residual stream, None where it is the model's.
        positions: Positions of every sequence in them, None where they are the step's.
    """

    count: int
    parts: tuple[Part, ...]
    norms: int
    front: tuple[Product, ...] = ()
    hidden: int | None = None
    positions: int | None = None


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model.

    Attributes:
        name: Its name, usually the repository's.
        architecture: `model_type` of its configuration.
        hidden: Width of the residual stream.
        vocabulary: Rows of the embedding, 0 where there is none.
        embedding: Columns of the embedding and of a table of positions, None where they are those of the residual stream.
        blocks: Its layers.
        norm: Kind of normalisation.
        dtype: Number format of its activations.
        weights: Number format of its matrices, None where it is `dtype`.
        experts: Number format of its routed experts, None where it is `weights`.
        generates: Whether it ends in logits of the next token, and so can decode.
        tied_embeddings: Whether the vocabulary projection is the embedding.
        positions: Rows of a learned table of positions, 0 for none.
        max_length: Most positions of a sequence, None where it is not limited.
        front: Products before the layers.
        tail: Products after the layers.
        end_norms: Normalisations of the residual stream outside the layers.
        layer_table: Rows and columns of a further table of embeddings, of which layers read a part each (Gemma 3n); 0 for none.
        encoder: The encoder beside its decoder, a model of its own whose embedding is the decoder's; None where it has none.
        fixed_length: Positions of every sequence where the input fixes them, as of an image; of an encoder of text those of its
            source; else None.
        dropout: Whether training drops elements: behind the embedding, of attention's weights, and of what each part adds.
        notes: What an estimate leaves out.
        source: Where the facts come from.
    """

    name: str
    architecture: str
    hidden: int
    vocabulary: int
    blocks: tuple[Block, ...]
    norm: Literal["rmsnorm", "layernorm"]
    dtype: str
    embedding: int | None = None
    weights: str | None = None
    experts: str | None = None
    generates: bool = True
    tied_embeddings: bool = False
    positions: int = 0
    max_length: int | None = None
    front: tuple[Product, ...] = ()
    tail: tuple[Product, ...] = ()
    end_norms: int = 1
    layer_table: tuple[int, int] = (0, 0)
    encoder: ModelFacts | None = None
    fixed_length: int | None = None
    dropout: bool = False
    notes: tuple[str, ...] = ()
    source: str = ""

    @property
    def layers(self) -> int:
        """Layers, without those of an encoder beside them."""
        return sum(block.count for block in self.blocks)

    @property
    def parts(self) -> Iterator[tuple[int, Part]]:
        """Every part with how many layers have it, the encoder's too."""
        for block in (*self.blocks, *(self.encoder.blocks if self.encoder else ())):
            for part in block.parts:
                yield block.count, part

    @property
    def expert_layers(self) -> list[tuple[int, Experts]]:
        """Mixtures of experts by kind, with how many layers have each; empty where there is none."""
        return [(count, part) for count, part in self.parts if part.name == "moe"]  # type: ignore[misc]

    def encoder_alone(self) -> ModelFacts:
        """The encoder as a model of its own.

        Raises:
            SpecError: the model has no encoder beside its layers.
        """
        if self.encoder is None:
            raise SpecError(f"{self.name} has no encoder beside a decoder; leave encode out", field="encode")
        return replace(self.encoder, name=f"{self.name}, encoder", source=self.source, dropout=self.dropout)

    def with_source(self, tokens: int | None) -> ModelFacts:
        """The model with an encoder that reads so many tokens for each sequence; None: as many as it has, if any.

        Raises:
            SpecError: the model has no encoder of text, or one whose table of positions is shorter.
        """
        if tokens is None:
            return self
        if self.encoder is None or not self.encoder.vocabulary:
            raise SpecError(f"{self.name} has no encoder of text beside a decoder; leave source out", field="source")
        most = MAX_TOKENS if not self.encoder.positions else self.encoder.max_length or MAX_TOKENS
        if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= most:
            raise SpecError(
                f"source must be a whole number between 1 and the {most} tokens that the encoder of {self.name} takes, got "
                f"{tokens!r}", field="source",
            )  # fmt: skip
        blocks = tuple(
            replace(block, parts=tuple(_looking_at(part, tokens) for part in block.parts)) for block in self.blocks
        )
        note = f"for each sequence the encoder reads {tokens} tokens"
        encoder = replace(self.encoder, fixed_length=tokens)
        return replace(self, blocks=blocks, encoder=encoder, notes=(*self.notes, note))

    def check_serves(self) -> None:
        """That services can be asked about the model.

        Raises:
            SpecError: it generates no text, or reads it with an encoder, which prompts of services do not tell from answers.
        """
        if not self.generates:
            raise SpecError(
                f"{self.name} generates no text; `kernelcast estimate` says what a step costs", field="model"
            )
        if self.encoder is not None and self.encoder.fixed_length is None:
            raise SpecError(
                f"{self.name} reads text with an encoder, and services are those of decoders; `kernelcast estimate` with a "
                "source says what a step costs", field="model",
            )  # fmt: skip

    def check_plan(self, plan: ParallelPlan) -> None:
        """That a plan can split the model.

        Raises:
            SpecError: it cannot, with the size that does not divide.
        """
        if plan.pp > self.layers:
            raise SpecError(f"pp {plan.pp} is more than the {self.layers} layers of {self.name}", field="pp")
        if self.encoder is not None and plan.pp > 1:
            raise SpecError(
                f"{self.name} has an encoder beside its decoder; its layers are not split: pp 1", field="pp"
            )
        if any(block.hidden for block in self.blocks) and plan.pp > 1:
            raise SpecError(f"{self.name} has layers of several widths, which are not split: pp 1", field="pp")
        if plan.ep > 1 and not self.expert_layers:
            raise SpecError(f"{self.name} has no experts that ep {plan.ep} could share out; use ep 1", field="ep")
        for _, part in self.parts:
            part.check(plan)

    def weights_of(self, plan: ParallelPlan = ONE_DEVICE) -> Weights:
        """Parameters that the fullest rank holds: the layers of a stage, and the larger end of the model on the same rank.

        Embedding and vocabulary projection are split by their rows.
        """
        layers = self._layers(self.blocks, plan)
        if plan.pp > 1:
            # Layers are of few kinds, spread evenly over the depth.
            share = ceil(self.layers / plan.pp) / self.layers
            layers = Weights(layers.products * share, layers.experts * share, layers.others * share)
        columns = self.embedding or self.hidden
        table = self.vocabulary * columns / plan.tp
        copies = 2 if self.generates and not self.tied_embeddings and plan.pp == 1 else 1
        others = (
            copies * table
            + self.layer_table[0] * self.layer_table[1] / plan.tp
            + self.positions * columns
            + self.end_norms * self._norm_rows * self.hidden
        )
        result = layers + Weights(others=others + sum(item.parameters for item in (*self.front, *self.tail)))
        if self.encoder is not None:
            shared = self.encoder.vocabulary * self.hidden / plan.tp
            result = result + self.encoder.weights_of(plan) + Weights(others=-shared)
        return result

    @property
    def parameters(self) -> int:
        """All parameters, each once."""
        return round(self.weights_of().total)

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: of routed experts, its own alone."""
        idle = sum(
            count * part.weights(self.hidden, ONE_DEVICE).experts * (1 - part.top_k / part.count)
            for count, part in self.expert_layers
        )
        return round(self.weights_of().total - idle)

    @property
    def _norm_rows(self) -> int:
        """Rows of a norm: a scale, and a shift in a LayerNorm."""
        return 2 if self.norm == "layernorm" else 1

    def _layers(self, blocks: tuple[Block, ...], plan: ParallelPlan) -> Weights:
        total = Weights()
        for block in blocks:
            hidden = block.hidden or self.hidden
            layer = Weights(others=block.norms * self._norm_rows * hidden)
            for part in block.parts:
                layer = layer + part.weights(hidden, plan)
            total = total + layer.times(block.count) + Weights(others=sum(item.parameters for item in block.front))
        return total


def _looking_at(part: Part, tokens: int) -> Part:
    """A part, with so many positions of the encoder where it looks at them."""
    return replace(part, keys=tokens) if isinstance(part, Attention) and part.keys is None else part
