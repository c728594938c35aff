"""Services under power limits and locked clocks."""

from __future__ import annotations

from typing import Any

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.models.family_model.artifact import shipped_model_dir
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.workloads.architectures.config.catalogue import model_facts
from kernelcast.workloads.serving.predict import ServingPrediction, ServingPredictor
from kernelcast.workloads.serving.request import serving_request
from kernelcast.workloads.serving.table import predict_rows


@pytest.fixture(scope="module")
def service() -> ServingPredictor:
    return ServingPredictor(load_predictor(shipped_model_dir()))


def predict(service: ServingPredictor, **setting: Any) -> ServingPrediction:
    facts = model_facts("meta-llama/Llama-3.1-8B")
    return service.predict(serving_request(
        facts, "nvidia-h200-sxm-141gb", input_tokens=512, output_tokens=64, concurrency=16, **setting
    ))  # fmt: skip


def test_a_limit_that_does_not_bind_changes_nothing(service):
    usual, own = predict(service), predict(service, power_limit_w=700.0)
    assert (own.ttft_s, own.tpot_s, own.power_w, own.energy_per_token_j) == (
        usual.ttft_s, usual.tpot_s, usual.power_w, usual.energy_per_token_j
    )  # fmt: skip


def test_a_lower_limit_and_a_lower_clock_take_longer_and_save_energy(service):
    usual, limited, slow = predict(service), predict(service, power_limit_w=250), predict(service, clock_hz=1.2e9)
    for answer in (limited, slow):
        assert answer.tpot_s.mean > usual.tpot_s.mean
        assert answer.ttft_s.mean > usual.ttft_s.mean
        assert answer.energy_per_token_j < usual.energy_per_token_j
        wide, narrow = answer.tpot_s.mean, usual.tpot_s.mean
        assert wide.upper / wide.value > narrow.upper / narrow.value
    assert limited.power_w.upper <= 250


def test_settings_are_columns_of_a_table(service):
    row = {"model": "meta-llama/Llama-3.1-8B", "device": "h200", "isl": 512, "osl": 64, "concurrency": 16}
    rows = [row, row | {"power_limit_w": float("nan")}, row | {"power_limit_w": 250.0}, row | {"clock_hz": 1e9},
            row | {"power_limit_w": 5000.0}]  # fmt: skip
    columns = predict_rows(rows, service)
    usual, empty, limited, slow, refused = columns["pred_tpot_s"]
    assert usual == empty
    assert usual < limited < slow
    assert refused is None
    assert columns["refused"][4].startswith(
        "power_limit_w: power_limit_w is 5000 W for nvidia-h200-sxm-141gb, above its own"
    )


def test_impossible_settings_are_refused(service):
    with pytest.raises(SpecError, match="give 123 to 700 W"):
        predict(service, power_limit_w=20)
    with pytest.raises(SpecError, match="clock_hz must be a positive number"):
        predict(service, clock_hz=-1)
