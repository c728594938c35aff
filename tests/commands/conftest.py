"""The command line in this process: arguments in, exit code and both streams out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from kernelcast import cli
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import BOUNDS, work
from kernelcast.features.device import Catalogue
from kernelcast.features.errors import SpecError
from kernelcast.models.predict import predictor
from kernelcast.models.predict.prediction import Predictions, TargetColumns


@dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one sentence of a user's error."""
        assert self.code == 2, self
        assert self.out == ""
        assert "Traceback" not in self.err
        _, messages, message = self.err.rpartition("error: ")
        assert messages, self
        return message.strip()


class FakePredictor:
    """Twice the lower bound, ± 20 %, power 100 W; was not trained on conv2d."""

    def __init__(self, devices: Catalogue) -> None:
        self.devices = devices

    def predict(self, specs: Any, devices: Any, *, coverage: float = 0.9) -> list[Any]:
        by_family: dict[str, list[int]] = {}
        for i, spec in enumerate(specs):
            by_family.setdefault(spec.family, []).append(i)
        answers: dict[int, Any] = {}
        for rows in by_family.values():
            cases = Cases.from_specs([specs[i] for i in rows], [devices[i] for i in rows])
            predicted = replace(
                self.predict_cases(cases, coverage=coverage), in_domain=np.ones(len(rows), dtype=np.bool_)
            )
            answers.update(zip(rows, predicted.rows(), strict=True))
        return [answers[i] for i in range(len(specs))]

    def in_long_loops(self) -> FakePredictor:
        return self

    def impls(self, family: str) -> tuple[str, ...]:
        return ("torch", "iree")

    def predict_cases(self, cases: Cases, *, coverage: float = 0.9) -> Predictions:
        if cases.family.name == "conv2d":
            raise SpecError("the model was not trained on conv2d; it knows: gemm", field="family")
        n = len(cases)
        paper = work(cases, self.devices)
        latency = 2 * paper.lower_bound_s
        power = np.where(cases.dtype == "fp64", np.nan, 100.0)
        targets = {"latency_s": latency, "power_w": power, "energy_j": latency * power}
        return Predictions(
            targets={name: TargetColumns(value, 0.8 * value, 1.2 * value) for name, value in targets.items()},
            coverage=coverage,
            method=["fake"] * n,
            in_domain=np.arange(n) % 2 == 0,
            notes=[()] * n,
            bound=paper.binding(),
            breakdown={name: paper.bounds_s[name] for name in BOUNDS},
            regimes=["seen"] * n,
            timings=["device"] * n,
        )


@pytest.fixture
def run(capsys, monkeypatch, tmp_path) -> Callable[..., Done]:
    """Runs a command with a home of its own."""
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path / "home"))

    def run(*args: object) -> Done:
        code = cli.main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


@pytest.fixture
def fake(monkeypatch) -> None:
    """Any model directory gives the fake predictor."""
    from kernelcast.commands.predict import predict_table

    for module in (predictor, predict_table):
        monkeypatch.setattr(module, "load_predictor", lambda path, devices=None: FakePredictor(devices))
