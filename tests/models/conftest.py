"""Made-up measurements that follow a law, and small learners, so that models are trained in a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.family_model.artifact import Artifact, save_artifact
from kernelcast.models.predict.predictor import ArtifactPredictor, load_predictor
from kernelcast.models.regressors.blend import Blend
from kernelcast.models.regressors.periodic import Periodic
from kernelcast.models.regressors.roofline import Roofline
from kernelcast.models.regressors.xgboost import QUICK, XGBoost
from kernelcast.models.training import interval_calibration, training
from kernelcast.models.training.labelled_cases import LabelledCases

A100, H100, T4, P4 = "nvidia-a100-sxm-80gb", "nvidia-h100-sxm-80gb", "nvidia-t4", "nvidia-p4"

_NETWORK = Periodic(width=24, depth=2, epochs=1, least_steps=100, batch=64)
_TREES = ((10**9, 16, 60, 0.15),)
_BOOSTED = XGBoost(sizes=_TREES, other_sizes=_TREES)
_QUICK = replace(QUICK, sizes=_TREES)

SMALL: dict[str, Any] = {
    "roofline": Roofline(),
    "analytic": Roofline("analytic", on_analytic=True),
    "xgboost": _BOOSTED,
    "periodic": _NETWORK,
    "blend": Blend(boosted=_BOOSTED, network=_NETWORK, quick=replace(_QUICK, on_analytic=True)),
}


def _made_up(
    n: int = 400,
    *,
    family: str = "gemm",
    devices: Sequence[str] = (A100, T4),
    impls: Sequence[str] = ("vllm-0.22.0", "vllm-0.24.0"),
    power: float = 1.0,
    noise: float = 0.05,
    seed: int = 0,
    largest: int = 8192,
) -> LabelledCases:
    """`n` cases whose latency is a launch cost plus a smooth multiple of the lower bound, times log-normal noise.

    `power` is the share of rows with power, in watts; the rest is NaN.
    """
    rng = np.random.default_rng(seed)
    sizes = ("m", "n", "k") if family == "gemm" else ("rows", "cols")
    specs = [
        KernelSpec.of(
            family,
            "fp16",
            impl=str(rng.choice(impls)),
            **{name: int(2 ** rng.uniform(4, np.log2(largest))) for name in sizes},
        )
        for _ in range(n)
    ]
    cases = Cases.from_specs(specs, rng.choice(devices, n).tolist())
    paper = work(cases, catalogue())
    slower = np.where(cases.impl == impls[0], 1.2, 1.0)
    inefficiency = 1.5 + 0.8 / (1 + np.log10(1 + paper.flops))
    latency = (5e-6 + paper.lower_bound_s * inefficiency * slower) * np.exp(noise * np.abs(rng.normal(size=n)))
    tdp = np.array([catalogue().get(name).required("tdp_w") for name in cases.device.tolist()])
    busy = paper.bounds_s["compute"] / latency
    watts = tdp * (0.25 + 0.6 * busy) * np.exp(noise * rng.normal(size=n))
    return LabelledCases(cases, latency, np.where(rng.random(n) < power, watts, np.nan), np.full(n, "made up"))


@pytest.fixture(scope="session")
def made_up() -> Callable[..., LabelledCases]:
    """The function that makes measurements up."""
    return _made_up


@pytest.fixture(scope="session")
def small() -> dict[str, Any]:
    """Every regressor, small."""
    return dict(SMALL)


@pytest.fixture(scope="session", autouse=True)
def small_learners() -> Iterator[None]:
    """Training takes the small regressors under their usual names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "get_regressor", SMALL.__getitem__)
        patch.setattr(interval_calibration, "QUICK", _QUICK)
        yield


@pytest.fixture(scope="session")
def train() -> Callable[..., Artifact]:
    """`training.train`, with small trees unless told otherwise."""
    return lambda tables, **options: training.train(tables, **{"regressor": "xgboost", **options})


@pytest.fixture(scope="session")
def artifact(train: Callable[..., Artifact]) -> Artifact:
    """gemm with power and softmax without, trained on an A100 and a T4."""
    tables = [_made_up(), _made_up(120, family="softmax", power=0.0, impls=("torch",))]
    return train(tables, facts={"data": [{"name": "made up", "sha256": "0" * 64}], "split": None})


@pytest.fixture(scope="session")
def model_dir(artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact on disk; not to be changed (see `copied`)."""
    directory = tmp_path_factory.mktemp("artifact") / "model"
    save_artifact(artifact, directory)
    return directory


@pytest.fixture(scope="session")
def predictor(model_dir: Path) -> ArtifactPredictor:
    return load_predictor(model_dir)


@pytest.fixture(scope="session")
def on() -> Callable[[Cases, str], Cases]:
    """The same cases on another device."""
    return lambda cases, device: replace(cases, device=np.full(len(cases), device))
