"""A small multilayer perceptron in PyTorch, on standardised features."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..regressor import Graph, Problem, fit_rows


@dataclass(frozen=True, slots=True)
class MLP:
    """Three hidden layers with SiLU, trained with AdamW and a one-cycle rate on the Huber loss of the log ratio.

    The Huber loss (Huber, 1964) keeps a few noisy rows from ruling the fit.
    """

    name: str = "mlp"
    on_analytic: bool = False
    width: int = 64
    depth: int = 3
    epochs: int = 60
    least_steps: int = 1_000
    most_steps: int = 5_000
    rate: float = 3e-3
    weight_decay: float = 1e-3

    def fit(self, problem: Problem) -> list[Graph]:
        """One graph per target. Needs the `train` extra."""
        return [Graph((target,), self._fit_one(problem, target)) for target in problem.targets]

    def _fit_one(self, problem: Problem, target: str) -> bytes:
        import torch

        from ..onnx_graphs import dense_network

        x, y, weight = fit_rows(problem, target)
        known = np.maximum((~np.isnan(x)).sum(axis=0), 1)
        mean = np.nansum(x, axis=0) / known
        filled = np.where(np.isnan(x), mean, x)
        scale = np.maximum(filled.std(axis=0), 1e-3)
        inputs = torch.tensor(np.clip((filled - mean) / scale, -4, 4), dtype=torch.float32)
        centre, spread = float(y.mean()), max(float(y.std()), 1e-6)
        labels = torch.tensor((y - centre) / spread, dtype=torch.float32)
        threads = torch.get_num_threads()
        # Layers this small only lose by being split among threads.
        torch.set_num_threads(1)
        try:
            layers = self._train(torch, inputs, labels, torch.tensor(weight, dtype=torch.float32), problem.seed)
        finally:
            torch.set_num_threads(threads)
        last_weight, last_bias = layers[-1]
        layers[-1] = (last_weight * spread, last_bias * spread + centre)
        return dense_network(layers, mean=mean, scale=scale)

    def _train(self, torch: Any, x: Any, y: Any, weight: Any, seed: int) -> list[tuple[Any, Any]]:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        sizes = [x.shape[1], *[self.width] * self.depth, 1]
        linears = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        modules: list[Any] = []
        for linear in linears:
            modules += [linear, torch.nn.SiLU()]
        network = torch.nn.Sequential(*modules[:-1])
        batch = min(256 if len(x) < 10_000 else 1024, len(x))
        steps = min(max(self.epochs * len(x) // batch, self.least_steps), self.most_steps)
        optimiser = torch.optim.AdamW(network.parameters(), lr=self.rate, weight_decay=self.weight_decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, self.rate, total_steps=steps)
        for _ in range(steps):
            rows = torch.randint(0, len(x), (batch,), generator=generator)
            loss = torch.nn.functional.huber_loss(network(x[rows])[:, 0], y[rows], delta=0.5, reduction="none")
            optimiser.zero_grad()
            (loss * weight[rows]).mean().backward()
            optimiser.step()
            schedule.step()
        return [(linear.weight.detach().numpy(), linear.bias.detach().numpy()) for linear in linears]


REGRESSOR = MLP()
