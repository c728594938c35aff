"""Kernel families as models of the protocol: which there are, their versions, and the tensors they take and give."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ....features.errors import listed
from ....features.kernel import CACHE_STATES, TIMINGS, KernelFamily, families
from ....features.spec_io.reading import kind_of, shown_name
from ....version import __version__
from ...model_source import LoadedModel, Service, require_model
from ...transport.bodies import read_body, read_object
from ...transport.problems import ProblemError, invalid_field
from ...transport.responses import Endpoint, json_endpoint, json_response
from .tensors import TensorKind

PLATFORM = "kernelcast_onnx"
"""What runs the models, `<project>_<format>` as the protocol asks."""

NOT_SET = -1
"""The number that stands for threads or a tuning number not given."""

OUTPUTS = (
    TensorKind("latency_s", "FP64", "time of one run in seconds"),
    TensorKind("latency_s_lower", "FP64", "lower end of its interval"),
    TensorKind("latency_s_upper", "FP64", "upper end of its interval"),
    TensorKind("power_w", "FP64", "mean power in watts; NaN (null in JSON) where it is unknown"),
    TensorKind("power_w_lower", "FP64", "lower end of its interval"),
    TensorKind("power_w_upper", "FP64", "upper end of its interval"),
    TensorKind("energy_j", "FP64", "energy of one run in joules; NaN (null in JSON) where it is unknown"),
    TensorKind("energy_j_lower", "FP64", "lower end of its interval"),
    TensorKind("energy_j_upper", "FP64", "upper end of its interval"),
    TensorKind("in_domain", "BOOL", "whether the model was trained on cases like this one"),
    TensorKind("bound", "BYTES", "the limit that binds on paper: compute, dram, cache, launch …"),
    TensorKind("method", "BYTES", "how the prediction came about, with any stand-in"),
)
"""What every model answers, a value per row."""


@cache
def inputs_of(name: str) -> Mapping[str, TensorKind]:
    """The inputs of a family's model by name: its sizes and tuning numbers, and what every kernel has."""
    family = families()[name]
    variants = f"one of {listed(family.variants)}; empty: the plain or implied one"
    unset = f"tuning number; {NOT_SET}: not given"
    tensors = [
        TensorKind("device", "BYTES", "catalogue name or alias"),
        TensorKind("dtype", "BYTES", "number format of the operands"),
        TensorKind("variant", "BYTES", variants, optional=True),
        TensorKind("impl", "BYTES", "what runs it; empty: what the model knows best", optional=True),
        TensorKind("kv_dtype", "BYTES", "number format of the cache; empty: the same as dtype", optional=True),
        TensorKind("cache_state", "BYTES", f"one of {listed(CACHE_STATES)}; empty: hot", optional=True),
        TensorKind("timing", "BYTES", f"one of {listed(TIMINGS)}; empty: as it was measured", optional=True),
        TensorKind("threads", "INT64", f"CPU threads; {NOT_SET}: all cores, or a GPU", optional=True),
    ]
    for dim in family.dims:
        doc = dim.doc if dim.default is None else f"{dim.doc}; left out: {dim.default}"
        tensors.append(TensorKind(dim.name, "INT64", doc, optional=dim.default is not None))
    tensors += [TensorKind(knob, "INT64", unset, optional=True) for knob in family.config]
    return {tensor.name: tensor for tensor in tensors}


def served(loaded: LoadedModel) -> tuple[str, ...]:
    """Names of the models: the families the artifact was trained on, and those that are answered without."""
    trained = loaded.manifest.get("families")
    return tuple(
        name for name, family in families().items()
        if not isinstance(trained, Mapping) or name in trained or family.launches is not None
    )  # fmt: skip


def model_named(loaded: LoadedModel, name: str, version: str | None) -> KernelFamily:
    """The family that a model of this name and version is.

    Raises:
        ProblemError: 404, there is no such model, or another version of it answers.
    """
    if name not in (known := served(loaded)):
        raise ProblemError(404, f"no model {shown_name(name)!r}; models: {listed(known)}")
    if version is not None and version != loaded.version:
        raise ProblemError(404, f"{name} has no version {shown_name(version)!r}; the one served is {loaded.version}")
    return families()[name]


def model_metadata(loaded: LoadedModel, family: KernelFamily) -> dict[str, Any]:
    """A model as `GET /v2/models/{name}` describes it."""
    return {
        "name": family.name,
        "versions": [loaded.version],
        "platform": PLATFORM,
        "inputs": [_described(tensor) for tensor in inputs_of(family.name).values()],
        "outputs": [_described(tensor) for tensor in OUTPUTS],
    }


def _described(tensor: TensorKind) -> dict[str, Any]:
    parameters: dict[str, Any] = {"description": tensor.doc}
    if tensor.optional:
        parameters["optional"] = True
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": [-1], "parameters": parameters}


EXTENSIONS = ("binary_tensor_data", "parameters")
"""Extensions of the protocol spoken here; of the model repository there is the index alone, as nothing is loaded by request."""

_MAX_INDEX_B = 4096


def server_metadata(_: Service) -> Endpoint:
    """`GET /v2`."""
    return json_endpoint(lambda _: {"name": "kernelcast", "version": __version__, "extensions": EXTENSIONS})


def server_live(_: Service) -> Endpoint:
    """`GET /v2/health/live`: 200 while the process answers."""
    return json_endpoint(lambda _: {"live": True})


def server_ready(service: Service) -> Endpoint:
    """`GET /v2/health/ready`: 200 once a model is loaded, 503 before."""

    def answer(_: Request) -> dict[str, Any]:
        require_model(service.source)
        return {"ready": True}

    return json_endpoint(answer)


def model_ready(service: Service) -> Endpoint:
    """`GET /v2/models/{name}[/versions/{version}]/ready`: 200, or 404 for a model or version that is not served."""
    return json_endpoint(lambda request: {"name": _addressed(service, request)[1].name, "ready": True})


def model(service: Service) -> Endpoint:
    """`GET /v2/models/{name}[/versions/{version}]`: the tensors a model takes and gives."""
    return json_endpoint(lambda request: model_metadata(*_addressed(service, request)))


def _addressed(service: Service, request: Request) -> tuple[LoadedModel, KernelFamily]:
    """What answers now, and the family that the address names."""
    loaded, path = require_model(service.source), request.path_params
    return loaded, model_named(loaded, path["name"], path.get("version"))


def repository_index(service: Service) -> Endpoint:
    """`POST /v2/repository/index`: every model; all are ready, or there would be none."""

    async def answer(request: Request) -> Response:
        body = await read_body(dict(request.scope["headers"]), request.receive, _MAX_INDEX_B, "send {} or nothing")
        _check_index_request(body)
        loaded = require_model(service.source)
        return json_response(
            [{"name": name, "version": loaded.version, "state": "READY", "reason": ""} for name in served(loaded)]
        )

    return answer


def _check_index_request(body: bytes) -> None:
    """All models are ready: `{"ready": true}` asks for the same as nothing."""
    request = read_object(body) if body.strip() else {}
    if unknown := [name for name in request if name != "ready"]:
        raise invalid_field(shown_name(unknown[0]), "unknown field; an index request takes ready")
    if not isinstance(request.get("ready", False), bool):
        raise invalid_field("ready", f"must be true or false, not {kind_of(request['ready'])}")
