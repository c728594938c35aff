"""POST /v1/predict/colocated: what kernels cost beside each other on one device."""

from __future__ import annotations

from typing import cast

import msgspec

from ...features.errors import listed
from ...features.spec_io.reading import kind_of, shown_name
from ...models.predict.predictor import ArtifactPredictor
from ...workloads.compare.colocated import colocated, colocation_answer, read_neighbours
from ..transport.bodies import named_devices, read_coverage, read_object, refuse_duplicate_names
from ..transport.problems import invalid_field, naming_field
from .thread_endpoint import Call

FIELDS = ("device", "kernels", "coverage")
_WANTED = '{"device": …, "kernels": [{"family": …, "dtype": …, "sizes": {…}, "threads": 1}, …]}'


def answer(call: Call, body: bytes) -> bytes:
    """The JSON answer to a JSON request.

    Raises:
        ProblemError: the request is not acceptable, or the kernels do not fit the device together.
    """
    root = read_object(body, _WANTED)
    if unknown := [name for name in root if name not in FIELDS]:
        raise invalid_field(shown_name(unknown[0]), f"unknown field; possible are {listed(FIELDS)}")
    kernels = root.get("kernels")
    refuse_duplicate_names(body, root, kernels if isinstance(kernels, list) else [])
    if not isinstance(name := root.get("device"), str):
        raise invalid_field("device", f"must be the name of a device, not {kind_of(name)}")
    place = named_devices([name], call.loaded.catalogue, "device")[0]
    coverage = read_coverage(root)
    predictor = cast("ArtifactPredictor", call.loaded.predictor)
    specs = naming_field(lambda: read_neighbours(kernels, place, predictor, "kernels", least=2), "kernels")
    result = naming_field(lambda: colocated(predictor, specs, place, coverage), "kernels")
    call.metrics.count_predictions((item.spec.family, place.name, item.alone.in_domain) for item in result.kernels)
    call.metrics.count_usage(specs, [place.name] * len(specs))
    return msgspec.json.encode(colocation_answer(result))
