"""A residual network on periodic embeddings of the features, in PyTorch: the strongest learner on large tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

import numpy as np

from ...features.batch.cases import Floats
from ..regressor import Graph, Problem, Regressor, fit_rows

_CLIP = 4.0
"""Standardised features stay within ± this: far outside the training range a network would extrapolate without limit."""

_EVAL_ROWS = 4_000
"""Rows, about, by which columns that repeat an earlier one are recognised."""


@dataclass(frozen=True, slots=True)
class Periodic(Regressor):
    """Every number becomes a few learned sines and cosines of itself, then a small dense layer of its own, before residual
    layers see it (PLR embeddings: Gorishniy et al., "On embeddings for numerical features in tabular deep learning",
    NeurIPS 2022).

    A plain network is too smooth for what libraries do at a tile's or a vector's edge; with embeddings it can step, and
    between steps it still interpolates, which trees cannot. Trained with AdamW and a one-cycle rate on the smooth L1 loss,
    which but for small errors is nearly the relative error.

    Attributes:
        name: On the command line and in artifacts.
        width: Of the residual layers.
        depth: Number of residual layers.
        frequencies: Sines and cosines of each number.
        embedding: Width of the layer of each number.
        spread: Deviation of the initial frequencies.
        batch: Rows of a step.
        epochs: Passes over the rows,
        further_epochs: or, from an earlier fit to most of them on, so many,
        least_steps: but at least so many steps,
        most_epochs: and at most so many passes.
        rate: Largest learning rate.
        further_rate: The same from an earlier fit on.
        weight_decay: Of AdamW.
        loss_width: Log error up to which errors count by their square.
    """

    name: str = "periodic"
    width: int = 160
    depth: int = 4
    frequencies: int = 8
    embedding: int = 4
    spread: float = 0.7
    batch: int = 256
    epochs: int = 15
    further_epochs: int = 5
    least_steps: int = 2_500
    most_epochs: int = 120
    rate: float = 5e-3
    further_rate: float = 1.5e-3
    weight_decay: float = 0.02
    loss_width: float = 0.05

    def fit(self, problem: Problem) -> list[Graph]:
        """One graph per target. Needs the `train` extra."""
        earlier = {target: graph.state for graph in problem.earlier for target in graph.targets}
        return [self._fit_one(problem, target, earlier.get(target)) for target in problem.targets]

    def _fit_one(self, problem: Problem, target: str, earlier: _State | None) -> Graph:
        import torch

        from ..engine.onnx_writer import periodic_network

        x, y, weight = fit_rows(problem, target)
        state = earlier or _State.of(x, y)
        with _one_thread(torch):
            rows, labels, counts = (
                torch.tensor(column, dtype=torch.float32)
                for column in (state.inputs(x), (y - state.centre) / state.size, weight)
            )
            weights = self._train(torch, rows, labels, counts, state, problem.seed)
        onnx = periodic_network(
            weights | {"out_weight": weights["out_weight"] * state.size,
                       "out_bias": weights["out_bias"] * state.size + state.centre},
            columns=[*state.numeric, *state.words], n_numeric=len(state.numeric), mean=state.mean, scale=state.scale,
            clip=_CLIP, n_features=x.shape[1],
        )  # fmt: skip
        return Graph((target,), onnx, state=replace(state, weights=weights))

    def _train(self, torch: Any, x: Any, y: Any, weight: Any, start: _State, seed: int) -> dict[str, Any]:
        # Its own generator: fits run side by side, and the common one would hand its numbers out by chance.
        chance = torch.Generator().manual_seed(seed)
        n_numeric = len(start.numeric)
        parameters = (
            {name: torch.tensor(value, requires_grad=True) for name, value in start.weights.items()}
            if start.weights else self._parameters(torch, x.shape[1], n_numeric, chance)
        )  # fmt: skip
        epochs, rate = (self.further_epochs, self.further_rate) if start.weights else (self.epochs, self.rate)
        batch = min(self.batch, len(x))
        per_epoch = max(len(x) // batch, 1)
        epochs = min(max(epochs, math.ceil(self.least_steps / per_epoch)), self.most_epochs)
        steps = epochs * per_epoch
        optimiser = torch.optim.AdamW(parameters.values(), lr=rate, weight_decay=self.weight_decay, fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps + 1, pct_start=0.1)
        loss_of = torch.nn.functional.smooth_l1_loss
        order = torch.randperm(len(x), generator=chance)
        for step in range(steps):
            at = step % per_epoch
            if at == 0:
                order = torch.randperm(len(x), generator=chance)
            rows = order[at * batch : (at + 1) * batch]
            loss = loss_of(
                self._answer(torch, parameters, x[rows], n_numeric), y[rows], beta=self.loss_width, reduction="none"
            )
            optimiser.zero_grad()
            (loss * weight[rows]).mean().backward()
            optimiser.step()
            schedule.step()
        return {name: value.detach().numpy().copy() for name, value in parameters.items()}

    def _parameters(self, torch: Any, n_inputs: int, n_numeric: int, chance: Any) -> dict[str, Any]:
        waves, small, width = self.frequencies, self.embedding, self.width

        def normal(*shape: int, size: float) -> Any:
            return torch.randn(*shape, generator=chance) * size

        parameters = {
            "frequency": normal(n_numeric, 1, waves, size=2 * math.pi * self.spread),
            "embed_weight": normal(n_numeric, 2 * waves, small, size=(2 * waves) ** -0.5),
            "embed_bias": torch.zeros(n_numeric, 1, small),
        }
        for i, n in enumerate([n_inputs + n_numeric * small, *[width] * (self.depth - 1)]):
            # The spread PyTorch's own linear layers start with: uniform within 1 / sqrt(inputs), as a normal.
            parameters |= {
                f"layer{i}_weight": normal(width, n, size=(3 * n) ** -0.5),
                f"layer{i}_bias": torch.zeros(width),
            }
        parameters |= {"out_weight": normal(1, width, size=(3 * width) ** -0.5), "out_bias": torch.zeros(1)}
        return {name: value.requires_grad_(True) for name, value in parameters.items()}

    def _answer(self, torch: Any, p: dict[str, Any], x: Any, n_numeric: int) -> Any:
        phase = x[:, :n_numeric].t()[:, :, None] * p["frequency"]
        waves = torch.cat([phase.sin(), phase.cos()], dim=-1)
        embedded = torch.relu(torch.baddbmm(p["embed_bias"], waves, p["embed_weight"])).permute(1, 0, 2).flatten(1)
        hidden = torch.cat([x, embedded], dim=1)
        for i in range(self.depth):
            answer = torch.relu(torch.nn.functional.linear(hidden, p[f"layer{i}_weight"], p[f"layer{i}_bias"]))
            hidden = answer if i == 0 else hidden + answer
        return torch.nn.functional.linear(hidden, p["out_weight"], p["out_bias"])[:, 0]


@dataclass(frozen=True, slots=True)
class _State:
    """How a network reads features and labels, and what it has learned.

    Attributes:
        numeric: Columns of numbers.
        words: Columns that are 0 or 1.
        mean: Of each column, shape `(n_columns,)`; 0 for words.
        scale: Likewise; 1 for words.
        centre: Median of the labels.
        size: Their deviation.
        weights: Parameters by name; empty before any training.
    """

    numeric: list[int]
    words: list[int]
    mean: Floats
    scale: Floats
    centre: float
    size: float
    weights: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, x: Any, y: Floats) -> _State:
        """The state before training on features of shape `(n, n_features)` and labels of shape `(n,)`."""
        numeric, words = _columns(x)
        chosen = x[:, [*numeric, *words]].astype(np.float64)
        mean = np.nanmean(chosen, axis=0)
        scale = np.maximum(np.where(np.isnan(chosen), mean, chosen).std(axis=0), 1e-3)
        mean[len(numeric) :], scale[len(numeric) :] = 0.0, 1.0
        return cls(numeric, words, mean, scale, float(np.median(y)), max(float(y.std()), 1e-6))

    def inputs(self, x: Any) -> Any:
        """Standardised columns of features, shape `(n, n_columns)`; missing is the mean."""
        chosen = x[:, [*self.numeric, *self.words]].astype(np.float64)
        return np.clip(np.nan_to_num((chosen - self.mean) / self.scale), -_CLIP, _CLIP)


_lock = Lock()
_running: list[int] = []


@contextmanager
def _one_thread(torch: Any) -> Iterator[None]:
    """Torch on one thread while any network is trained: layers this small only lose by being split.

    The setting is the whole process's, and networks are trained side by side: the first sets it, the last restores it.
    """
    with _lock:
        _running.append(torch.get_num_threads())
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            if len(_running) == 1:
                torch.set_num_threads(_running[0])
                _running.clear()
            else:
                # The first one's number is the one to come back to.
                _running.pop()


def _columns(x: Any) -> tuple[list[int], list[int]]:
    """Columns of numbers and of words (0 or 1) that say something: not constant, and not what an earlier one says."""
    seen: set[bytes] = set()
    numeric: list[int] = []
    words: list[int] = []
    sample = x[:: max(len(x) // _EVAL_ROWS, 1)]
    for j in range(x.shape[1]):
        column = x[:, j]
        known = column[~np.isnan(column)]
        if not len(known) or known.max() - known.min() < 1e-6:
            continue
        key = np.round(sample[:, j], 4).tobytes()
        if key not in seen:
            seen.add(key)
            (words if np.isin(known, (0.0, 1.0)).all() else numeric).append(j)
    return numeric or words[:1], words if numeric else words[1:]


REGRESSOR = Periodic()
