"""What is known of a model: its layers part by part, its ends, and the parameters that follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Literal

from ...features.errors import SpecError
from .kernel_list import Part, Weights
from .plan import ONE_DEVICE, ParallelPlan

if TYPE_CHECKING:
    from .layers.feed_forward import Experts


@dataclass(frozen=True, slots=True)
class Block:
    """Layers that are alike.

    Attributes:
        count: How many.
        parts: What each runs, one after the other.
        norms: Normalisations of the residual stream in each.
    """

    count: int
    parts: tuple[Part, ...]
    norms: int


@dataclass(frozen=True, slots=True)
class Product:
    """A product outside the layers.

    Attributes:
        name: Its name.
        rows: Rows per sequence.
        n: Columns of its result.
        k: Columns of its input.
    """

    name: str
    rows: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class Encoder:
    """An encoder beside a decoder, or the part of a model before its layers.

    Attributes:
        positions: Positions it works on, whatever the input.
        front: Products before its layers.
        blocks: Its layers.
        notes: What an estimate of it leaves out, or takes as something else.
    """

    positions: int
    front: tuple[Product, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model.

    Attributes:
        name: Its name, usually the repository's.
        architecture: `model_type` of its configuration.
        hidden: Width of the residual stream.
        vocabulary: Rows of the embedding, 0 where there is none.
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
        encoder: Its encoder, None where it has none.
        fixed_length: Positions of every sequence where the input fixes them, as of an image; else None.
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
    weights: str | None = None
    experts: str | None = None
    generates: bool = True
    tied_embeddings: bool = False
    positions: int = 0
    max_length: int | None = None
    front: tuple[Product, ...] = ()
    tail: tuple[Product, ...] = ()
    encoder: Encoder | None = None
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
        """The encoder as a model of its own, every input of which has the encoder's positions.

        Raises:
            SpecError: the model has no encoder beside its layers.
        """
        if self.encoder is None:
            raise SpecError(f"{self.name} has no encoder beside a decoder; leave encode out", field="encode")
        return ModelFacts(
            name=f"{self.name}, encoder", architecture=self.architecture, hidden=self.hidden, vocabulary=0,
            blocks=self.encoder.blocks, norm=self.norm, dtype=self.dtype, weights=self.weights, generates=False,
            positions=self.encoder.positions, fixed_length=self.encoder.positions, front=self.encoder.front,
            notes=self.encoder.notes, source=self.source,
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
        table = self.vocabulary * self.hidden / plan.tp
        copies = 2 if self.generates and not self.tied_embeddings and plan.pp == 1 else 1
        others = copies * table + (self.positions + self._norm_rows) * self.hidden
        outside = sum(item.n * (item.k + 1) for item in (*self.front, *self.tail))
        result = layers + Weights(others=others + outside)
        if self.encoder is not None:
            front = sum(item.n * (item.k + 1) for item in self.encoder.front)
            ends = (self.encoder.positions + self._norm_rows) * self.hidden
            result = result + self._layers(self.encoder.blocks, plan) + Weights(others=front + ends)
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
            layer = Weights(others=block.norms * self._norm_rows * self.hidden)
            for part in block.parts:
                layer = layer + part.weights(self.hidden, plan)
            total = total + layer.times(block.count)
        return total
