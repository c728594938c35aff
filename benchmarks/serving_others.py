"""The general model servers that kernelcast is compared with, each with one boosted forest, in an environment of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

N_FEATURES = 184
N_TREES = 600
DEPTH = 7
"""A forest of about as many trees and as many features as the latency of one family is answered from."""

VERSIONS = ("mlserver==1.7.1", "mlserver-xgboost==1.7.1", "mlflow==3.17.2")

_TRAIN = """
import sys, numpy as np, xgboost
rng = np.random.default_rng(0)
x = rng.standard_normal((20000, {features})).astype(np.float32)
y = np.sin(x[:, :20] * 2).sum(axis=1) + x[:, 20] * x[:, 21]
model = xgboost.XGBRegressor(n_estimators={trees}, max_depth={depth}, tree_method="hist", n_jobs=2).fit(x, y)
model.save_model(sys.argv[1] + "/model.json")
import mlflow.xgboost
mlflow.xgboost.save_model(model, sys.argv[1] + "/mlflow", model_format="json", pip_requirements=["xgboost"])
"""


@dataclass(frozen=True, slots=True)
class Other:
    """A server: the command that starts it on a port, where it says it is ready, where it is asked, and what it is asked."""

    name: str
    command: Callable[[Path, Path, int], Sequence[str]]
    ready: str
    path: str
    body: Callable[[Sequence[Sequence[float]]], Mapping[str, object]]


def prepare(folder: Path) -> Path:
    """Install both servers into `folder`/venv and train their model, unless that was done before; gives the programs."""
    programs = folder / "venv" / "bin"
    if not (folder / "model" / "mlflow").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        subprocess.run([str(programs / "pip"), "install", "--quiet", *VERSIONS], check=True)
        (folder / "model").mkdir(exist_ok=True)
        text = _TRAIN.format(features=N_FEATURES, trees=N_TREES, depth=DEPTH)
        subprocess.run([str(programs / "python"), "-c", text, str(folder / "model")], check=True)
    return programs


def rows(n: int, seed: int) -> list[list[float]]:
    """Random feature rows."""
    rng = Random(seed)
    return [[round(rng.gauss(0.0, 1.0), 4) for _ in range(N_FEATURES)] for _ in range(n)]


def _mlserver(programs: Path, model: Path, port: int, batching: Mapping[str, float] | None = None) -> Sequence[str]:
    served = model / ("mlserver-batching" if batching else "mlserver")
    served.mkdir(exist_ok=True)
    settings = {"host": "127.0.0.1", "http_port": port, "grpc_port": port + 1, "metrics_port": port + 2,
                "parallel_workers": 0, "debug": False}  # fmt: skip
    (served / "settings.json").write_text(json.dumps(settings))
    item = {"name": "forest", "implementation": "mlserver_xgboost.XGBoostModel",
           "parameters": {"uri": str(model / "model.json")}, **(batching or {})}  # fmt: skip
    (served / "model-settings.json").write_text(json.dumps(item))
    return [str(programs / "mlserver"), "start", str(served)]


def _mlflow(programs: Path, model: Path, port: int) -> Sequence[str]:
    return [str(programs / "mlflow"), "models", "serve", "--model-uri", str(model / "mlflow"), "--env-manager", "local",
            "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]  # fmt: skip


def _tensor(table: Sequence[Sequence[float]]) -> Mapping[str, object]:
    flat = [value for row in table for value in row]
    return {"inputs": [{"name": "x", "shape": [len(table), N_FEATURES], "datatype": "FP32", "data": flat}]}


_BATCHING = {"max_batch_size": 32, "max_batch_time": 0.005}
"""Requests and seconds that MLServer collects for one call of the model: as many requests as the load has clients."""

OTHERS = (
    Other("MLServer", _mlserver, "/v2/health/ready", "/v2/models/forest/infer", _tensor),
    Other(
        "MLServer, batching",
        partial(_mlserver, batching=_BATCHING),
        "/v2/health/ready",
        "/v2/models/forest/infer",
        _tensor,
    ),
    Other("mlflow models serve", _mlflow, "/health", "/invocations", lambda table: {"inputs": table}),
)
