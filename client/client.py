"""The client: one method per question the service answers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar
from urllib.parse import quote

import msgspec

from ..version import __version__
from .answers import (
    Batch,
    Columns,
    Comparison,
    Device,
    Devices,
    Prediction,
    Programs,
    Ranking,
    Roofline,
    Schema,
    Sweep,
    WholeModelPrediction,
    WholeModelPredictions,
)
from .connection import ClientError, Connections, encode, moved, names, parts, spec
from .device_answers import DevicePage
from .estimate_answers import BestCap, Colocation, Estimates, ModelSummary, ShippedModels
from .llm_answers import ServiceFleet, ServicePlans, ServingPrediction, ServingPredictions

if TYPE_CHECKING:
    from ssl import SSLContext

KEY_VARIABLE = "KERNELCAST_API_KEY"
"""Environment variable of the API key that is used where none is given."""

_KEY = re.compile(r"[!-~]{1,512}")
_Answer = TypeVar("_Answer")


class _Kernels(msgspec.Struct):
    kernels: dict[str, Schema]


class _Connected:
    """A client's connections to one service, and how it asks; arguments are those of `Client`."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        retries: int = 3,
        longest_wait_s: float = 30.0,
        ssl_context: SSLContext | None = None,
    ) -> None:
        if not timeout_s > 0 or not longest_wait_s >= 0 or retries < 0:
            raise ClientError("timeout_s must be above 0, retries and longest_wait_s at least 0")
        self._connections = Connections(url, _headers(api_key), timeout_s, retries, longest_wait_s, ssl_context)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._connections.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def ready(self) -> bool:
        """Whether a model is loaded; False where the service answers that none is."""
        try:
            self._connections.ask("GET", "/readyz", again=False)
        except ClientError as error:
            if error.status == 503:
                return False
            raise
        return True

    def _get(self, path: str, kind: type[_Answer]) -> _Answer:
        return _decoded(self._connections.ask("GET", path).body, kind, path)

    def _post(self, path: str, request: Mapping[str, Any], kind: type[_Answer]) -> _Answer:
        return self._post_bytes(path, encode(request), kind)

    def _post_bytes(self, path: str, body: bytes, kind: type[_Answer]) -> _Answer:
        return _decoded(self._connections.ask("POST", path, body).body, kind, path)


class Client(_Connected):
    """Asks one service; safe to share between threads, each of which gets a connection of its own.

    Every method raises `ClientError` where the service refuses, fails, or does not answer. Sizes are keywords:
    `client.predict("gemm", device="h100-sxm", dtype="bf16", m=4096, n=4096, k=4096)`. Further keywords are `variant`, `impl`,
    `kv_dtype`, `config`, `threads`, `cache_state` and `timing`, of `predict` also `power_limit_w` and `clock_hz`, `grid`,
    `electricity_price` and `pue`;
    what is left out is what the service says it is.

    Args:
        url: address of the service, with any prefix a proxy serves it under.
        api_key: key where the service asks for one; default: `KERNELCAST_API_KEY`, if set.
        timeout_s: longest wait for a connection, and for each part of an answer.
        retries: how often a request is sent again after a 503 or 429 that says when to come back.
        longest_wait_s: longest of those waits; a service that asks for a longer one is not waited for.
        ssl_context: how https is checked; default: against the system's authorities.
    """

    def predict(
        self, family: str, *, device: str, dtype: str, coverage: float | None = None, **settings: Any
    ) -> Prediction:
        """What one kernel costs on one device."""
        return self._post("/v1/predict", _request(family, settings, coverage, device=device, dtype=dtype), Prediction)

    def predict_many(self, specs: Sequence[Mapping[str, Any]], *, coverage: float | None = None) -> list[Prediction]:
        """What many kernels of any mix of families and devices cost, in the order given.

        A spec is a mapping of the keywords of `predict`, its sizes beside the others or in `sizes`. Many are sent in parts.
        """
        predictions: list[Prediction] = []
        for first, body in parts(specs, coverage):
            try:
                predictions += self._post_bytes("/v1/predict", body, Batch).predictions
            except ClientError as error:
                raise moved(error, first) from error
        return predictions

    def predict_columns(self, family: str, columns: Mapping[str, Any], *, coverage: float | None = None) -> Columns:
        """What many kernels of one family cost, in columns: the quickest way to ask about thousands.

        `columns` has the fields of a spec, `device`, `dtype` and `sizes` at least; each value, and each size and knob, is one
        value for all rows or a list (or numpy column) of one per row.
        """
        request = {"family": family, "columns": dict(columns)} | _coverage(coverage)
        return self._post("/v1/predict/columns", request, Columns)

    def predict_colocated(
        self, device: str, kernels: Sequence[Mapping[str, Any]], *, coverage: float | None = None
    ) -> Colocation:
        """What kernels cost beside each other on one device; each is a mapping as of `predict`, without a device."""
        request = {"device": device, "kernels": [_kernel(kernel) for kernel in kernels]} | _coverage(coverage)
        return self._post("/v1/predict/colocated", request, Colocation)

    def best_cap(
        self, device: str, *, kernels: Sequence[Mapping[str, Any]] | None = None,
        service: Mapping[str, Any] | None = None, measured: Mapping[str, float] | None = None,
        slowdown: float | None = None, budget: Mapping[str, float] | None = None,
    ) -> BestCap:  # fmt: skip
        """The power limit or clock of a device at which work takes least energy, at most `slowdown` longer than by default.

        Work is one of `kernels` (as of `predict_model`), a `service` (`model` or `config` and what `llm_predict` takes), and
        a program `measured` by default (`time_s`, `power_w`); a `budget` has `budget_w`, `gpus` and `host_w`.
        """
        named = None if kernels is None else [_kernel(kernel) for kernel in kernels]
        work = _known(kernels=named, service=service, measured=measured, slowdown=slowdown, budget=budget)
        return self._post("/v1/best-cap", {"device": device} | work, BestCap)

    def rank(
        self, family: str, *, device: str, dtype: str, configs: Sequence[Mapping[str, int]] | None = None,
        top: int | None = None, coverage: float | None = None, **settings: Any,
    ) -> Ranking:  # fmt: skip
        """Tile configurations, the quickest first: those of `configs`, or else the candidates the service knows."""
        request = _request(family, settings, coverage, device=device, dtype=dtype, configs=configs, top=top)
        return self._post("/v1/rank", request, Ranking)

    def compare(
        self, family: str, *, dtype: str, devices: Sequence[str] | None = None,
        price_per_hour: Mapping[str, float] | None = None, coverage: float | None = None, **settings: Any,
    ) -> Comparison:  # fmt: skip
        """One kernel on several devices, or on the whole catalogue; with prices, what a million calls cost."""
        request = _request(
            family, settings, coverage, dtype=dtype, devices=names(devices), price_per_hour=price_per_hour
        )
        return self._post("/v1/compare", request, Comparison)

    def sweep(
        self, family: str, *, dtype: str, devices: Sequence[str], dim: str, values: Sequence[int] | None = None,
        start: int | None = None, stop: int | None = None, points: int | None = None,
        scale: Literal["log", "linear"] | None = None, coverage: float | None = None, **settings: Any,
    ) -> Sweep:  # fmt: skip
        """One kernel while `dim` (a size or a knob) takes `values`, or `points` values from `start` to `stop`."""
        steps = {"dim": dim, "values": values, "from": start, "to": stop, "points": points, "scale": scale}
        request = _request(family, settings, coverage, dtype=dtype, devices=names(devices), sweep=_known(**steps))
        return self._post("/v1/sweep", request, Sweep)

    def roofline(
        self, family: str, *, dtype: str, devices: Sequence[str], coverage: float | None = None, **settings: Any
    ) -> Roofline:
        """One kernel against the peaks of devices: its arithmetic intensity, what it attains, and what limits it."""
        return self._post(
            "/v1/roofline", _request(family, settings, coverage, dtype=dtype, devices=names(devices)), Roofline
        )

    def predict_model(
        self, kernels: Sequence[Mapping[str, Any]], devices: Sequence[str], *, launch_s: float | None = None,
        queued: bool | None = None, coverage: float | None = None, **others: Any,
    ) -> list[WholeModelPrediction]:  # fmt: skip
        """What a whole model costs on each device; a kernel is a spec without a device, with a `count` and a `name`.

        `others` are `power_limit_w`, `clock_hz`, `grid`, `electricity_price` and `pue`.
        """
        request: dict[str, Any] = {"devices": names(devices), "kernels": [_kernel(kernel) for kernel in kernels]}
        request |= _known(launch_s=launch_s, queued=queued, coverage=coverage, **others)
        return self._post("/v1/predict/model", request, WholeModelPredictions).answers

    def predict_mlir(
        self, text: str, devices: Sequence[str], *, function: str | None = None, bind: Mapping[str, int] | None = None,
        compiler: str | None = None, threads: int | None = None, coverage: float | None = None,
    ) -> Programs:  # fmt: skip
        """What a function of MLIR text costs on each device; `bind` gives sizes to dynamic dimensions."""
        options = _known(function=function, bind=bind, compiler=compiler, threads=threads, coverage=coverage)
        return self._post("/v1/predict/mlir", {"text": text, "devices": names(devices)} | options, Programs)

    def estimate(
        self, devices: Sequence[str], *, model: str | None = None, config: Mapping[str, Any] | None = None,
        program: Mapping[str, Any] | None = None, price_per_hour: Mapping[str, float] | None = None,
        coverage: float | None = None, **step: Any,
    ) -> Estimates:  # fmt: skip
        """What a step of a `model` (one of `models`, or the content of its config.json), or one run of a captured `program`
        (what `run.save_program` of `kernelcast.torch` wrote), costs on each device.

        `step` has `phase`, `batch`, `length`, `context`, `source`, `plan`, `dtype`, `weights`, `kv_dtype`, `impl`, `threads`,
        `power_limit_w`, `clock_hz`, `grid`, `electricity_price` and `pue`.
        """
        options = _known(
            model=model, config=config, program=program, price_per_hour=price_per_hour, coverage=coverage, **step
        )
        return self._post("/v1/estimate", {"devices": names(devices)} | options, Estimates)

    def models(self) -> list[ModelSummary]:
        """The models that ship."""
        return self._get("/v1/estimate/models", ShippedModels).models

    def llm_predict(
        self, model: str | Mapping[str, Any], *, device: str, input_tokens: float, output_tokens: float, **others: Any,
    ) -> ServingPrediction:  # fmt: skip
        """What a service of a language model (its name, or its config.json) gives and takes under a load."""
        request = _model(model) | {"device": device, "input_tokens": input_tokens, "output_tokens": output_tokens}
        return self._post("/v1/llm/predict", request | others, ServingPrediction)

    def llm_predict_loads(
        self, model: str | Mapping[str, Any], *, device: str, input_tokens: float, output_tokens: float,
        concurrency: Sequence[float], **others: Any,
    ) -> list[ServingPrediction]:  # fmt: skip
        """The same under several numbers of requests under way, at most 16, in one request."""
        request = _model(model) | {"device": device, "input_tokens": input_tokens, "output_tokens": output_tokens}
        request |= {"concurrency": list(concurrency)} | others
        return self._post("/v1/llm/predict", request, ServingPredictions).services

    def llm_plan(self, model: str | Mapping[str, Any], *, devices: Sequence[str], **others: Any) -> ServicePlans:
        """Which of `devices`, plan and settings serve a language model best: `gpus`, lengths, a load and limits as `others`."""
        return self._post("/v1/llm/plan", _model(model) | {"devices": names(devices)} | others, ServicePlans)

    def llm_fleet(self, model: str | Mapping[str, Any], *, devices: Sequence[str], **others: Any) -> ServiceFleet:
        """Which mix of at most `gpus` devices serves `rate` requests of many `sizes` a second at least cost."""
        return self._post("/v1/llm/fleet", _model(model) | {"devices": names(devices)} | others, ServiceFleet)

    def devices(self) -> list[Device]:
        """Every device of the service's catalogue."""
        return self._get("/v1/devices", Devices).devices

    def device(self, name: str) -> DevicePage:
        """One device, by name or alias, with what the service's answers for it rest on."""
        return self._get(f"/v1/devices/{quote(name, safe='')}", DevicePage)

    def kernels(self) -> dict[str, Schema]:
        """The JSON Schema of a spec of every family, by its name."""
        return self._get("/v1/kernels", _Kernels).kernels


def _headers(api_key: str | None) -> dict[str, str]:
    """The headers of every request, with the key that is given or in the environment.

    Raises:
        ClientError: the key has a character that keys do not have.
    """
    headers = {"user-agent": f"kernelcast/{__version__}", "accept": "application/json"}
    key = os.environ.get(KEY_VARIABLE, "").strip() if api_key is None else api_key
    if key:
        if not _KEY.fullmatch(key):
            # The key itself is not shown: messages end in logs.
            raise ClientError("the API key holds a character that keys do not have, such as a space or a line's end")
        headers["authorization"] = f"Bearer {key}"
    return headers


def _model(model: str | Mapping[str, Any]) -> dict[str, Any]:
    return {"model": model} if isinstance(model, str) else {"config": dict(model)}


def _request(family: str, settings: Mapping[str, Any], coverage: float | None, **fields: Any) -> dict[str, Any]:
    """A spec of keywords, with what the question has beside it."""
    named = _known(**fields)
    return {**spec({"family": family, **settings}), **named, **_coverage(coverage)}


def _known(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _coverage(coverage: float | None) -> dict[str, float]:
    return {} if coverage is None else {"coverage": coverage}


def _kernel(kernel: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(kernel, Mapping):
        return spec(kernel)
    beside = {name: kernel[name] for name in ("count", "name") if kernel.get(name) is not None}
    return spec({name: value for name, value in kernel.items() if name not in ("count", "name")}) | beside


_decoders: dict[type, msgspec.json.Decoder[Any]] = {}
_decoders_lock = Lock()


def _decoder(kind: type[_Answer]) -> msgspec.json.Decoder[_Answer]:
    """What decodes answers of a kind, made by one thread at a time.

    Where several decode the first answer of a kind at once, msgspec 0.22 reads fields that it has not set up yet, and the
    process ends.
    """
    with _decoders_lock:
        if kind not in _decoders:
            _decoders[kind] = msgspec.json.Decoder(kind)
        return _decoders[kind]


def _decoded(body: bytes, kind: type[_Answer], path: str) -> _Answer:
    try:
        return _decoder(kind).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ClientError(
            f"the answer of {path} is not what version {__version__} of the client knows: {error}; "
            "is there a service of another version, or something else, at this address?"
        ) from error
