"""Training of the group network in PyTorch: one thread, the relative error of the whole program's time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....features.batch.cases import Floats
from .analytic_base import MOST_LOG_FACTOR, AnalyticBase
from .group_network import CLIP, INPUTS, log_factors
from .ragged_batch import RaggedBatch, arrays_of


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long and how fast the network learns.

    Attributes:
        epochs: Passes over the programs.
        batch: Programs of a step.
        rate: Largest learning rate.
        weight_decay: Of AdamW.
        loss_width: Log error up to which errors count by their square.
        dropout: Share of numbers left out at random,
        noise: and deviation of what is added to standardised inputs: both prevent a network from learning its few programs
            by heart.
    """

    epochs: int = 40
    batch: int = 48
    rate: float = 4e-3
    weight_decay: float = 0.02
    loss_width: float = 0.1
    dropout: float = 0.1
    noise: float = 0.05


class TorchBackend:
    """`group_network.Backend` in PyTorch; makes a weight when it is first asked for."""

    def __init__(
        self,
        torch: Any,
        scales: Mapping[str, tuple[Floats, Floats]],
        seed: int,
        dropout: float = 0.0,
        noise: float = 0.0,
    ) -> None:
        self._torch = torch
        self._dropout, self._noise = dropout, noise
        self._chance = torch.Generator().manual_seed(seed)
        self.weights: dict[str, Any] = {}
        self._scales = {
            name: tuple(torch.tensor(column, dtype=torch.float32) for column in pair) for name, pair in scales.items()
        }

    def _weight(self, name: str, shape: tuple[int, ...], size: float) -> Any:
        if name not in self.weights:
            initial = self._torch.randn(*shape, generator=self._chance) * size if size else self._torch.zeros(*shape)
            self.weights[name] = initial.requires_grad_(True)
        return self.weights[name]

    def linear(self, x: Any, name: str, n_in: int, n_out: int, *, zero: bool = False) -> Any:
        """See `group_network.Backend.linear`."""
        size = 0.0 if zero else (2.0 / (3.0 * n_in)) ** 0.5
        weight = self._weight(f"{name}.weight", (n_out, n_in), size)
        return self._torch.nn.functional.linear(x, weight, self._weight(f"{name}.bias", (n_out,), 0.0))

    def embed(self, codes: Any, column: int, name: str, size: int, width: int) -> Any:
        """See `group_network.Backend.embed`."""
        return self._torch.nn.functional.embedding(codes[:, column], self._weight(f"{name}.rows", (size, width), 0.3))

    def scaled(self, x: Any, name: str) -> Any:
        """See `group_network.Backend.scaled`."""
        mean, scale = self._scales[name]
        scaled = ((x - mean) / scale).clamp(-CLIP, CLIP)
        if self._noise:
            scaled = scaled + self._torch.randn(scaled.shape, generator=self._chance) * self._noise
        return scaled

    def relu(self, x: Any) -> Any:
        """See `group_network.Backend.relu`."""
        return self._torch.relu(x)

    def add(self, x: Any, y: Any) -> Any:
        """See `group_network.Backend.add`."""
        return x + y

    def concat(self, parts: Sequence[Any]) -> Any:
        """See `group_network.Backend.concat`."""
        return self._torch.cat(list(parts), dim=1)

    def drop(self, x: Any) -> Any:
        """See `group_network.Backend.drop`."""
        if not self._dropout:
            return x
        remaining = self._torch.rand(x.shape, generator=self._chance) >= self._dropout
        return x * remaining / (1.0 - self._dropout)

    def take(self, x: Any, index: Any) -> Any:
        """See `group_network.Backend.take`."""
        return x[index]

    def total(self, x: Any, owner: Any, n: int) -> Any:
        """Sum of the rows of each of `n` owners."""
        return self._torch.zeros(n, x.shape[1]).index_add(0, owner, x)

    def mean(self, x: Any, owner: Any, owners: Any) -> Any:
        """See `group_network.Backend.mean`."""
        counts = self.total(self._torch.ones(len(x), 1), owner, len(owners))
        return self.total(x, owner, len(owners)) / counts.clamp(min=1.0)


@dataclass(frozen=True, slots=True)
class TrainedNetwork:
    """A trained network.

    Attributes:
        weights: Its weights by name.
        scales: Mean and scale of each input.
        base: The analytic times that its factors are on.
    """

    weights: Mapping[str, Any]
    scales: Mapping[str, tuple[Floats, Floats]]
    base: AnalyticBase


def train_network(
    programs: RaggedBatch,
    base: AnalyticBase,
    log_latency: Floats,
    weight: Floats,
    schedule: Schedule,
    seed: int,
) -> TrainedNetwork:
    """The network fitted to measured programs.

    Args:
        programs: `n` programs.
        base: their analytic times.
        log_latency: logarithms of measured seconds, shape `(n, n_settings)`, NaN where nothing was measured.
        weight: how much each row counts, likewise.
        schedule: how long and how fast.
        seed: of everything random.
    """
    import torch

    torch.set_num_threads(1)
    bases = base.of(programs)
    scales = {
        name: scale_of_columns(column) for name, column in arrays_of(("context", "groups", "ops"), programs).items()
    }
    backend = TorchBackend(torch, scales, seed, schedule.dropout, schedule.noise)
    chance = np.random.default_rng(seed)
    n, n_settings = log_latency.shape
    first_group = np.searchsorted(programs.group_program, np.arange(n + 1))
    batch = min(schedule.batch, n)
    per_epoch = max(n // batch, 1)
    steps = schedule.epochs * per_epoch
    order = np.arange(n)
    optimiser: Any = None
    rates: Any = None
    for step in range(steps):
        at = step % per_epoch
        if at == 0:
            order = chance.permutation(n)
        rows = order[at * batch : (at + 1) * batch]
        some = programs.take(rows)
        places = np.concatenate([np.arange(first_group[row], first_group[row + 1]) for row in rows])
        group_base, whole_base = bases.groups[places], bases.whole[rows]
        answer = _log_latency(torch, backend, some, group_base, whole_base, n_settings)
        wanted = torch.tensor(log_latency[rows], dtype=torch.float32)
        known = ~torch.isnan(wanted)
        counts = torch.tensor(weight[rows], dtype=torch.float32)[known]
        errors = torch.nn.functional.smooth_l1_loss(
            answer[known], wanted[known], beta=schedule.loss_width, reduction="none"
        )
        loss = (errors * counts).sum() / counts.sum()
        if optimiser is None:
            # Weights are made by the first answer.
            optimiser = torch.optim.AdamW(
                backend.weights.values(), lr=schedule.rate, weight_decay=schedule.weight_decay, fused=True
            )
            rates = torch.optim.lr_scheduler.OneCycleLR(optimiser, schedule.rate, total_steps=steps + 1, pct_start=0.15)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        torch.nn.utils.clip_grad_norm_(backend.weights.values(), 1.0)
        optimiser.step()
        rates.step()
    weights = {name: value.detach().numpy().copy() for name, value in backend.weights.items()}
    return TrainedNetwork(weights, scales, base)


def answers(trained: TrainedNetwork, programs: RaggedBatch) -> Floats:
    """Logarithms of seconds for programs, shape `(n, n_settings)`, by PyTorch."""
    import torch

    bases = trained.base.of(programs)
    backend = TorchBackend(torch, trained.scales, 0)
    backend.weights = {name: torch.tensor(value) for name, value in trained.weights.items()}
    n, n_settings = bases.whole.shape
    first_group = np.searchsorted(programs.group_program, np.arange(n + 1))
    answers = []
    with torch.no_grad():
        for start in range(0, n, 64):
            rows = np.arange(start, min(start + 64, n))
            groups = bases.groups[first_group[rows[0]] : first_group[rows[-1] + 1]]
            answers.append(
                _log_latency(torch, backend, programs.take(rows), groups, bases.whole[rows], n_settings).numpy()
            )
    return np.concatenate(answers).astype(np.float64)


def scale_of_columns(values: Floats) -> tuple[Floats, Floats]:
    """Mean and deviation of columns; one that hardly varies is left as it is."""
    mean, deviation = values.mean(axis=0), values.std(axis=0)
    return mean, np.where(deviation > 1e-3, deviation, 1.0)


def _log_latency(
    torch: Any,
    backend: TorchBackend,
    programs: RaggedBatch,
    group_base: Floats,
    whole_base: Floats,
    n_settings: int,
) -> Any:
    inputs = {name: torch.from_numpy(value) for name, value in arrays_of(INPUTS, programs).items()}
    groups, whole = log_factors(backend, inputs, n_settings)

    def seconds(factors: Any, base: Floats) -> Any:
        # In microseconds: seconds this small would lose their gradient to rounding.
        return torch.tensor(base * 1e6, dtype=torch.float32) * factors.clamp(-MOST_LOG_FACTOR, MOST_LOG_FACTOR).exp()

    in_all = backend.total(seconds(groups, group_base), inputs["group_program"], len(programs)) + seconds(
        whole, whole_base
    )
    return in_all.log() - float(np.log(1e6))
