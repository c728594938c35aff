"""Made-up measurements that follow a law, and small models of them, so that a gate is tried in a second."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.family_model.artifact import save_artifact
from kernelcast.models.training.labelled_cases import LabelledCases
from kernelcast.models.training.training import train

T4, P4, CPU = "nvidia-t4", "nvidia-p4", "amd-epyc-9005-vm-2c"

Rows = Callable[..., LabelledCases]


def made_up(
    n: int = 120,
    *,
    family: str = "gemm",
    device: str = T4,
    dtypes: tuple[str, ...] = ("fp32", "fp16"),
    factor: float = 1.0,
    noise: float = 0.05,
    seed: int = 0,
) -> LabelledCases:
    """`n` cases: a launch cost plus a smooth multiple of the bound, times `factor` (a change of software), times noise."""
    rng = np.random.default_rng(seed)
    names = {"gemm": ("m", "n", "k"), "softmax": ("rows", "cols")}[family]
    specs = [
        KernelSpec.of(
            family, dtypes[i % len(dtypes)], impl="torch", **{name: int(2 ** rng.uniform(5, 12)) for name in names}
        )
        for i in range(n)
    ]
    cases = Cases.from_specs(specs, [device] * n)
    bound = work(cases, catalogue()).lower_bound_s
    latency = factor * (5e-6 + 3.0 * bound) * np.exp(rng.normal(0, noise, n))
    return LabelledCases(cases, latency, np.full(n, np.nan))


@pytest.fixture(scope="session")
def rows() -> Rows:
    return made_up


@pytest.fixture(scope="session")
def save() -> Callable[..., Path]:
    return saved


def saved(folder: Path, tables: list[LabelledCases], regressor: str = "analytic") -> Path:
    save_artifact(train(tables, regressor=regressor), folder)
    return folder


@pytest.fixture(scope="session")
def champion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Knows gemm and softmax on a T4, both measured at half the speed of today."""
    folder = tmp_path_factory.mktemp("champion") / "model"
    return saved(folder, [made_up(factor=2.0, seed=1), made_up(family="softmax", factor=2.0, seed=1)])


@pytest.fixture(scope="session")
def better(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Knows the same of today's speed."""
    folder = tmp_path_factory.mktemp("better") / "model"
    return saved(folder, [made_up(seed=2), made_up(family="softmax", seed=2)])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KERNELCAST_REGISTRY_URI", raising=False)
    return tmp_path / "home"
