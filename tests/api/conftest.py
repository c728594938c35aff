"""A predictor with made-up but lawful answers, and a client of the service over it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.from_thread
import httpx
import jsonschema
import numpy as np
import pytest
from kernelcast.api.app import create_app
from kernelcast.api.model_source import FixedSource, PredictorSource
from kernelcast.api.settings import Settings
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import BOUNDS, work
from kernelcast.features.device import Catalogue, catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.predict.prediction import Prediction, Predictions, TargetColumns
from kernelcast.workloads.mlir.predictor import load_module_predictor
from starlette.applications import Starlette


class FakePredictor:
    """Twice the lower bound, ± 20 %; 350 W on a GPU, unknown on a CPU; knows no conv2d and fails on tanh."""

    devices = catalogue()
    setting = None

    def predict(
        self, specs: Sequence[KernelSpec], devices: Sequence[str], *, coverage: float = 0.9
    ) -> list[Prediction]:
        by_family: dict[str, list[int]] = {}
        for i, spec in enumerate(specs):
            by_family.setdefault(spec.family, []).append(i)
        answers: dict[int, Prediction] = {}
        for rows in by_family.values():
            cases = Cases.from_specs([specs[i] for i in rows], [devices[i] for i in rows])
            answers.update(zip(rows, self.predict_cases(cases, coverage=coverage).rows(), strict=True))
        return [answers[i] for i in range(len(specs))]

    def under(self, setting: object, sustained: float = 1.0) -> FakePredictor:
        """Nothing reaches a limit."""
        return self

    def in_long_loops(self) -> FakePredictor:
        return self

    def family(self, _name: str) -> Any:
        """A family of which nothing was measured."""
        return SimpleNamespace(model=SimpleNamespace(schema=SimpleNamespace(groups=())))

    def impls(self, family: str) -> tuple[str, ...]:
        return ("torch", "iree", "triton", "cutlass", "vllm-0.24.0")

    def predict_cases(self, cases: Cases, *, coverage: float = 0.9) -> Predictions:
        if cases.family.name == "conv2d":
            raise SpecError("the model was not trained on conv2d; it knows: gemm, attention", field="family")
        if not 0.5 <= coverage <= 0.99:
            raise SpecError(f"coverage must be between 0.5 and 0.99, got {coverage}", field="coverage")
        if any(variant == "tanh" for variant in cases.variant):
            raise RuntimeError("boom: a secret")
        n = len(cases)
        paper = work(cases, catalogue())
        latency = 2 * paper.lower_bound_s
        gpu = np.array([catalogue().get(str(name)).kind == "gpu" for name in cases.device])
        power = np.where(gpu, 350.0, np.nan)
        targets = {"latency_s": latency, "power_w": power, "energy_j": latency * power}
        return Predictions(
            targets={name: TargetColumns(value, 0.8 * value, 1.2 * value) for name, value in targets.items()},
            coverage=coverage,
            method=["fake"] * n,
            in_domain=np.ones(n, dtype=np.bool_),
            notes=[()] * n,
            bound=paper.binding(),
            breakdown={name: paper.bounds_s[name] for name in BOUNDS},
            regimes=["seen"] * n,
            timings=["device"] * n,
        )


class Recorder(FakePredictor):
    """Remembers which timings it was asked for, by device."""

    def __init__(self) -> None:
        self.timings: dict[str, set[str]] = {}

    def predict_cases(self, cases: Cases, *, coverage: float = 0.9) -> Predictions:
        for device, timing in zip(cases.device.tolist(), cases.timing.tolist(), strict=True):
            self.timings.setdefault(device, set()).add(timing)
        return super().predict_cases(cases, coverage=coverage)


class Client:
    """Requests to an application in this process, its lifespan included; a server's failure is an answer, no exception."""

    def __init__(self, app: Starlette, portal: anyio.from_thread.BlockingPortal) -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://test")
        self._portal = portal

    def request(self, method: str, url: str, **options: Any) -> httpx.Response:
        return self._portal.call(lambda: self._http.request(method, url, **options))

    def get(self, url: str) -> httpx.Response:
        return self.request("GET", url)

    def check_refused(self, path: str, body: Any, field: str, said: str) -> None:
        """POST a body that is refused for one field, in words that hold `said`."""
        response = self.request("POST", path, json=body)
        assert response.status_code == 422, response.text
        (error,) = response.json()["errors"]
        assert error["field"] == field
        assert said in error["detail"]

    def check_unreadable(self, path: str, body: bytes, status: int, said: str) -> None:
        """POST bytes that cannot be meant, which are answered with that status and words that hold `said`."""
        response = self.request("POST", path, content=body, headers={"content-type": "application/json"})
        assert response.status_code == status
        assert said in response.json()["detail"]

    def validator(self, schema: str) -> jsonschema.Draft202012Validator:
        """Judges bodies by a schema of the service's OpenAPI document."""
        components = self.get("/openapi.json").json()["components"]
        return jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{schema}", "components": components})

    def post(self, body: Any) -> httpx.Response:
        """POST /v1/predict with `body` as JSON, or as it is when it is bytes."""
        if isinstance(body, bytes):
            return self.request("POST", "/v1/predict", content=body, headers={"content-type": "application/json"})
        return self.request("POST", "/v1/predict", json=body)


@contextlib.contextmanager
def serving(app: Starlette) -> Iterator[Client]:
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(app.router.lifespan_context(app)),
    ):
        yield Client(app, portal)


@pytest.fixture(scope="session")
def serve() -> Callable[[PredictorSource, Settings], contextlib.AbstractContextManager[Client]]:
    """Builds and serves an application in this process."""
    return lambda source, settings: serving(create_app(source, settings))


@pytest.fixture(scope="session")
def serve_app() -> Callable[[Starlette], contextlib.AbstractContextManager[Client]]:
    """Serves an application in this process."""
    return serving


@pytest.fixture(scope="session")
def fake() -> FakePredictor:
    return FakePredictor()


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    source = FixedSource(FakePredictor(), catalogue(), programs=load_module_predictor(FakePredictor()))
    with serving(create_app(source, Settings(max_body_b=200_000, max_specs=1000))) as it:
        yield it


@pytest.fixture(scope="session")
def odd_client() -> Iterator[Client]:
    """A client of a service whose catalogue has one more device, `odd-one`, which calculates in fp32 alone."""
    known = catalogue().get("t4")
    fp32 = {"fp32": known.vector_flops_per_s["fp32"]}
    odd = replace(known, name="odd-one", aliases=(), matrix_flops_per_s={}, vector_flops_per_s=fp32)
    source = FixedSource(FakePredictor(), Catalogue(extra=(odd,)))
    with serving(create_app(source, Settings())) as it:
        yield it


@pytest.fixture
def gemm() -> dict[str, Any]:
    return {"family": "gemm", "device": "h100-sxm", "dtype": "bf16", "sizes": {"m": 64, "n": 4096, "k": 4096}}
