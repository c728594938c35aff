"""POST /v1/predict: answers."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import lower_bound_s
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec, families
from kernelcast.models.predict.prediction import Predictions

from ..conftest import FakePredictor


def test_one_spec_gets_one_prediction_in_si_units(client, gemm):
    response = client.post(gemm)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    result = response.json()
    device = catalogue().get("h100-sxm")
    bound = lower_bound_s(KernelSpec.of("gemm", "bf16", **gemm["sizes"]), device)
    assert result["device"] == device.name
    assert result["latency_s"]["value"] == pytest.approx(2 * bound)
    assert result["energy_j"]["value"] == pytest.approx(result["latency_s"]["value"] * result["power_w"]["value"])
    for target in ("latency_s", "power_w", "energy_j"):
        assert result[target]["lower"] <= result[target]["value"] <= result[target]["upper"]
    assert result["coverage"] == 0.9
    assert result["bound"] == max(result["breakdown"], key=result["breakdown"].get)
    assert (result["method"], result["in_domain"], result["notes"]) == ("fake", True, [])


def test_unknown_power_is_null_never_zero(client, gemm):
    cpu = next(device.name for device in catalogue() if device.kind == "cpu")
    result = client.post(gemm | {"device": cpu, "threads": 1, "cache_state": "cold"}).json()
    assert result["power_w"] is None
    assert result["energy_j"] is None


def test_a_batch_mixes_families_and_devices_and_keeps_order(client, gemm):
    attention = {"family": "attention", "device": "NVIDIA-A100-PCIe-40GB", "dtype": "fp16",
                 "sizes": {"batch": 1, "heads": 32, "kv_heads": 8, "q_len": 1, "kv_len": 777, "head_dim": 128}}  # fmt: skip
    requests = [gemm, attention, gemm | {"sizes": {"m": 1, "n": 1, "k": 1}}, attention | {"kv_dtype": "fp8"}]
    answer = client.post({"requests": requests, "coverage": 0.8}).json()["predictions"]
    assert [item["family"] for item in answer] == ["gemm", "attention", "gemm", "attention"]
    assert answer[1]["device"] == "nvidia-a100-pcie-40gb"
    assert all(item["coverage"] == 0.8 for item in answer)
    alone = [client.post(item | {"coverage": 0.8}).json() for item in requests]
    assert alone == answer


@pytest.mark.parametrize("family", list(families()))
def test_the_schema_example_of_every_family_is_accepted(client, family):
    example = client.get(f"/v1/kernels/{family}").json()["examples"][0]
    assert client.post(example).status_code == (422 if family == "conv2d" else 200)  # the fake model knows no conv2d


def test_a_whole_number_may_be_written_with_a_point(client, gemm):
    assert client.post(gemm | {"sizes": {"m": 64.0, "n": 4096, "k": 4096}}).json() == client.post(gemm).json()


def test_text_with_escapes_and_colons_is_read_as_json_says(client, gemm):
    body = json.dumps(gemm | {"impl": "torch"}).replace("torch", "t\\u006frch").encode()
    assert client.post(body).status_code == 200


def test_a_large_batch_is_answered_off_the_event_loop(client, gemm):
    answer = client.post({"requests": [gemm] * 300})
    assert len(answer.json()["predictions"]) == 300


def test_predictions_are_counted_by_family_device_and_domain(client, gemm):
    def count() -> float:
        line = 'kernelcast_predictions_total{device="nvidia-l40s",family="gemm",in_domain="true"} '
        lines = client.get("/metrics").text.splitlines()
        return float(next((item for item in lines if item.startswith(line)), "x 0").split()[-1])

    before = count()
    client.post({"requests": [gemm | {"device": "l40s"}] * 3})
    assert count() == before + 3


def test_answers_are_plain_json_without_nan(client, gemm):
    content = client.post({"requests": [gemm] * 3}).content
    json.loads(content, parse_constant=lambda word: pytest.fail(f"{word} in the answer"))
    assert msgspec.json.decode(content)


def test_a_batch_of_nothing_but_new_implementations_is_refused(client, gemm):
    result = client.post({"requests": [gemm | {"impl": f"lib-{i}"} for i in range(101)]})
    assert result.status_code == 422
    assert "names 101 different implementations; at most 100 are allowed in one request" in result.json()["detail"]


def test_a_library_that_was_never_measured_is_refused_at_its_field(client, gemm):
    client.check_refused(
        "/v1/predict", gemm | {"impl": "trch"}, "impl", "did you mean torch? Without impl, the usual one"
    )
    batch = {"requests": [gemm, gemm | {"impl": "trch"}]}
    client.check_refused("/v1/predict", batch, "requests[1].impl", "no gemm of impl 'trch' was measured")
    body = {
        "devices": [gemm["device"]],
        "kernels": [{name: gemm[name] for name in ("family", "dtype", "sizes")} | {"impl": "trch"}],
    }
    client.check_refused("/v1/predict/model", body, "kernels[0].impl", "no gemm of impl 'trch'")
    columns = {"family": "gemm", "columns": {"device": gemm["device"], "dtype": "bf16", "sizes": {"m": [8], "n": [8], "k": [8]},
               "impl": "trch"}}  # fmt: skip
    client.check_refused("/v1/predict/columns", columns, "columns.impl", "no gemm of impl 'trch'")


def test_a_spec_may_have_a_power_limit_and_a_clock(client, gemm):
    usual = client.post(gemm).json()
    assert client.post(gemm | {"power_limit_w": 700, "clock_hz": None}).json() == usual
    slow = client.post(gemm | {"clock_hz": 0.9e9}).json()
    assert slow["latency_s"]["value"] > 1.2 * usual["latency_s"]["value"]
    assert slow["power_w"]["value"] < usual["power_w"]["value"]
    assert slow["method"] == "fake under 900 MHz"
    batch = client.post({"requests": [gemm, gemm | {"clock_hz": 0.9e9}, gemm]}).json()["predictions"]
    assert batch == [usual, slow, usual]


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"power_limit_w": 20}, "power_limit_w", "give 117 to 700 W"),
        ({"power_limit_w": 1200}, "power_limit_w", "above its own limit"),
        ({"power_limit_w": "300"}, "power_limit_w", "must be a positive number"),
        ({"clock_hz": 1400}, "clock_hz", "1200 MHz are 1.2e9"),
        ({"device": "amd-epyc-9654", "power_limit_w": 200}, "power_limit_w", "is a CPU"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(client, gemm, change, field, words):
    alone, (of_batch,) = client.post(gemm | change), client.post({"requests": [gemm, gemm | change]}).json()["errors"]
    assert alone.status_code == 422
    (problem,) = alone.json()["errors"]
    assert (problem["field"], of_batch["field"]) == (field, f"requests[1].{field}")
    assert words in problem["detail"]


class _WithoutPower(FakePredictor):
    """Knows no power of a T4."""

    def predict_cases(self, cases: Cases, *, coverage: float = 0.9) -> Predictions:
        predictions = super().predict_cases(cases, coverage=coverage)
        for name in ("power_w", "energy_j"):
            column = predictions.targets[name]
            for values in (column.value, column.lower, column.upper):
                values[cases.device == "nvidia-t4"] = np.nan
        return predictions


def test_a_limit_for_a_spec_of_unknown_power_is_refused_by_its_place(serve, gemm):
    small = gemm | {"device": "t4", "dtype": "fp16", "power_limit_w": 60}
    with serve(FixedSource(_WithoutPower(), catalogue()), Settings()) as client:
        assert client.post(small | {"power_limit_w": None}).json()["power_w"] is None
        assert [item["field"] for item in client.post(small).json()["errors"]] == ["power_limit_w"]
        errors = client.post({"requests": [gemm | {"power_limit_w": 300}, small]}).json()["errors"]
    assert [(item["field"], item["index"]) for item in errors] == [("requests[1].power_limit_w", 1)]


def test_a_spec_may_say_where_its_electricity_is_from(client, gemm):
    usual = client.post(gemm).json()
    assert "footprint" not in usual
    grid = {"grid": "de", "electricity_price": 0.25, "pue": 1.2}
    answer = client.post(gemm | grid).json()
    carbon_g, energy_j = answer["footprint"]["carbon_g"], usual["energy_j"]
    assert carbon_g == pytest.approx({end: 1.2 * 344 * energy_j[end] / 3.6e6 for end in energy_j})
    assert answer["footprint"]["electricity_cost"]["value"] == pytest.approx(1.2 * 0.25 * energy_j["value"] / 3.6e6)
    batch = client.post({"requests": [gemm, gemm | grid]}).json()["predictions"]
    assert batch == [usual, answer]
    (problem,) = client.post({"requests": [gemm, gemm | {"grid": "germny"}]}).json()["errors"]
    assert problem["field"] == "requests[1].grid"
    assert "de (Germany)" in problem["detail"]
