"""`openapi.json` repeats limits of the code: each number in it is the one that requests are read by."""

from __future__ import annotations

from typing import Any

import pytest
from kernelcast.api.browse import measurements, nights
from kernelcast.api.browse import measurements_wire as measured
from kernelcast.api.compare import best_cap, devices, estimate_request, sweep
from kernelcast.api.page.openapi import document_parts
from kernelcast.api.predict import llm, mlir
from kernelcast.api.predict.open_inference.models import EXTENSIONS, OUTPUTS, inputs_of
from kernelcast.api.transport import bodies
from kernelcast.features.kernel import MAX_DIM, MAX_THREADS
from kernelcast.features.spec_io.json_schema import coverage_schema
from kernelcast.features.spec_io.reading import MAX_TEXT
from kernelcast.models.predict import carbon
from kernelcast.workloads.architectures.step import MAX_TOKENS
from kernelcast.workloads.compare import rank as ranking
from kernelcast.workloads.compare import sweep as swept
from kernelcast.workloads.compare.colocated import MAX_KERNELS
from kernelcast.workloads.mlir.predictor import COMPILERS
from kernelcast.workloads.serving.speculation import MAX_GUESSES
from kernelcast.workloads.units import MAX_PRICE
from kernelcast.workloads.whole_model import MAX_LAUNCH_S


def at(path: str) -> Any:
    """The part of `openapi.json` under names and positions with slashes between them."""
    result: Any = document_parts()
    for step in path.split("/"):
        result = result[int(step)] if isinstance(result, list) else result[step]
    return result


def parameter(operation: str, name: str) -> dict[str, Any]:
    return next(item for item in at(f"operations/{operation}/parameters") if item["name"] == name)


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("EstimateRequest/properties/devices/maxItems", estimate_request.MAX_ESTIMATED),
        ("EstimateRequest/properties/model/maxLength", MAX_TEXT),
        ("EstimateRequest/properties/batch/maximum", MAX_TOKENS),
        ("EstimateRequest/properties/length/maximum", MAX_TOKENS),
        ("EstimateRequest/properties/context/maximum", MAX_TOKENS),
        ("EstimateRequest/properties/threads/maximum", MAX_THREADS),
        ("EstimateRequest/properties/phase/enum", [*estimate_request.PHASES, None]),
        ("EstimateRequest/properties/price_per_hour/additionalProperties/maximum", MAX_PRICE),
        ("ModelRequest/properties/devices/maxItems", bodies.MAX_DEVICES),
        ("ModelRequest/properties/devices/items/maxLength", MAX_TEXT),
        ("ModelRequest/properties/launch_s/maximum", MAX_LAUNCH_S),
        ("LlmPredictRequest/properties/concurrency/anyOf/1/maxItems", llm.MAX_LOADS),
        ("LlmFleetRequest/properties/sizes/maxItems", llm.MAX_FLEET_SIZES),
        ("BestCapRequest/properties/kernels/maxItems", best_cap.MAX_CAP_KERNELS),
        ("ColocatedRequest/properties/kernels/maxItems", MAX_KERNELS),
        ("EstimateRequest/properties/grid/anyOf/1/maximum", carbon.MAX_G_PER_KWH),
        ("EstimateRequest/properties/electricity_price/maximum", carbon.MAX_ELECTRICITY_PRICE),
        ("EstimateRequest/properties/pue/maximum", carbon.MAX_PUE),
        ("CompareRequest/properties/devices/maxItems", bodies.MAX_DEVICES),
        ("CompareRequest/properties/price_per_hour/additionalProperties/maximum", MAX_PRICE),
        ("LlmPredictRequest/properties/speculate/maximum", MAX_GUESSES),
        ("RankRequest/properties/top/maximum", ranking.MAX_TOP),
        ("RankRequest/properties/top/default", ranking.DEFAULT_TOP),
        ("RooflineRequest/properties/devices/maxItems", devices.MAX_CURVES),
        ("SweepRequest/properties/devices/maxItems", sweep.MAX_CURVES),
        ("SweepRequest/properties/sweep/oneOf/0/properties/points/maximum", swept.MAX_POINTS),
        ("SweepRequest/properties/sweep/oneOf/0/properties/from/maximum", MAX_DIM),
        ("SweepRequest/properties/sweep/oneOf/0/properties/scale/enum", list(swept.SCALES)),
        ("SweepRequest/properties/sweep/oneOf/0/required", list(sweep.RANGE_FIELDS[:3])),
        ("SweepRequest/properties/sweep/oneOf/1/properties/values/maxItems", swept.MAX_POINTS),
        ("SweepRequest/properties/sweep/oneOf/1/required", list(sweep.VALUES_FIELDS)),
        ("ProgramRequest/properties/devices/maxItems", bodies.MAX_DEVICES),
        ("ProgramRequest/properties/function/maxLength", mlir.MAX_FUNCTION),
        ("ProgramRequest/properties/bind/maxProperties", mlir.MAX_BINDS),
        ("ProgramRequest/properties/threads/maximum", MAX_THREADS),
        ("ProgramRequest/properties/compiler/enum", ["", *COMPILERS, None]),
        ("InferOutputRequest/properties/name/enum", [output.name for output in OUTPUTS]),
        ("InferRequest/properties/id/maxLength", MAX_TEXT),
        ("EstimateRequest/properties/coverage", coverage_schema()),
        *((f"{name}/properties/coverage", coverage_schema()) for name in ("BatchRequest", "ModelRequest", "RankRequest")),
    ],
)  # fmt: skip
def test_schemas_have_the_limits_of_the_code(path: str, limit: object):
    assert at(f"schemas/{path}") == limit


def test_parameters_have_the_limits_of_the_code():
    assert [item["name"] for item in at("operations/predict_mlir/parameters")] == list(mlir.PARAMETERS)
    assert parameter("predict_mlir", "bind")["schema"]["maxItems"] == mlir.MAX_BINDS
    limit = parameter("list_measurements", "limit")["schema"]
    assert (limit["maximum"], limit["default"]) == (measurements.MAX_LIMIT, measurements.DEFAULT_LIMIT)
    assert parameter("list_measurements", "set")["schema"]["items"]["enum"] == list(measured.SETS)
    names = [item["name"] for item in at("operations/list_measurements/parameters")]
    assert names[: len(measured.FILTERS)] == list(measured.FILTERS)
    limit = parameter("list_nights", "limit")["schema"]
    assert (limit["maximum"], limit["default"]) == (nights.MAX_LIMIT, nights.DEFAULT_LIMIT)


def test_bodies_of_mlir_text_have_the_media_types_of_the_code():
    content = at("operations/predict_mlir/requestBody/content")
    assert set(content) == {"application/json", *mlir.TEXT}


def test_the_example_of_a_model_has_its_tensors():
    example = at("operations/inference_model/answer/content")["application/json"]["example"]
    assert [item["name"] for item in example["inputs"]] == list(inputs_of("gemm"))
    assert [item["name"] for item in example["outputs"]] == [output.name for output in OUTPUTS]
    server = at("operations/inference_server/answer/content")["application/json"]["example"]
    assert server["extensions"] == list(EXTENSIONS)
