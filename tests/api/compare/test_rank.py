"""POST /v1/rank: configurations in the order of who ranks them, the known ones where none are given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.features.device import catalogue
from kernelcast.features.tuning.kind import Task, get_kind
from kernelcast.plugins.cost_model import CostModel

from ..conftest import FakePredictor, Recorder

PATH = "/v1/rank"
CPU = "amd-epyc-9005-vm-2c"
IREE: dict[str, Any] = {
    "family": "gemm", "device": CPU, "dtype": "fp32", "sizes": {"m": 384, "n": 768, "k": 768}, "impl": "iree",
    "threads": 1,
}  # fmt: skip
TRITON: dict[str, Any] = {
    "family": "gemm", "device": "h200", "dtype": "bf16", "sizes": {"m": 512, "n": 4096, "k": 4096}, "impl": "triton",
}  # fmt: skip


def asked(client: Any, body: dict[str, Any]) -> dict[str, Any]:
    response = client.request("POST", PATH, json=body)
    assert response.status_code == 200, response.text
    result: dict[str, Any] = response.json()
    return result


@pytest.mark.parametrize(("body", "kind"), [(IREE, "iree-contraction"), (TRITON, "triton-gemm")])
def test_the_known_configurations_are_ranked_as_the_plug_in_ranks_them(client, body, kind):
    answer = asked(client, body | {"top": 5})
    device = catalogue().get(body["device"]).name
    model = CostModel.load(kind, device, None)
    sizes = {"batch": 1} | body["sizes"]
    if body is IREE:
        sizes |= {"a_transposed": 0, "b_transposed": 0, "threads": 1}
    space = get_kind(kind).space(Task(kind, sizes, body["dtype"], device))
    seconds = model.predict(space)
    assert answer["considered"] == len({tuple(sorted(space.config(i).items())) for i in range(len(space))})
    assert [item["latency_s"]["value"] for item in answer["ranked"]] == sorted(seconds)[:5]
    for i, item in zip(model.rank(space, 1), answer["ranked"], strict=False):
        assert item["config"] == space.config(int(i))
    assert answer["method"].startswith(f"tuning model {kind}, median error ")
    assert 1 <= answer["tied"] <= answer["considered"]
    best = answer["ranked"][0]["latency_s"]["value"]
    for item in answer["ranked"]:
        latency = item["latency_s"]
        assert latency["lower"] < latency["value"] < latency["upper"]
        assert item["slower_than_best"] == pytest.approx(latency["value"] / best - 1)


def test_power_is_the_served_model_s_and_energy_the_product(client):
    (item,) = asked(client, TRITON | {"top": 1})["ranked"]
    assert item["power_w"] == {"value": 350, "lower": pytest.approx(280), "upper": pytest.approx(420)}
    for end in ("value", "lower", "upper"):
        assert item["energy_j"][end] == pytest.approx(item["latency_s"][end] * item["power_w"][end])
    assert asked(client, IREE)["ranked"][0]["power_w"] is None


def test_what_the_served_model_cannot_tell_of_the_domain_is_not_known(serve):
    class Stranger(FakePredictor):
        def predict_cases(self, cases, *, coverage=0.9):
            return replace(super().predict_cases(cases, coverage=coverage), in_domain=np.zeros(len(cases), dtype=bool))

    with serve(FixedSource(Stranger(), catalogue()), Settings()) as client:
        (item,) = asked(client, IREE | {"top": 1})["ranked"]
        assert item["in_domain"] is None
        assert item["notes"] == ["the tuning model does not say which sizes it was measured with"]


def test_a_family_the_served_model_does_not_know_is_ranked_without_power(client):
    sizes = {"batch": 1, "in_channels": 64, "out_channels": 64, "height": 56, "width": 56, "kernel": 3, "padding": 0}
    body = {"family": "conv2d", "device": CPU, "dtype": "fp32", "sizes": sizes, "threads": 1, "top": 1}
    answer = asked(client, body)
    assert answer["method"].startswith("tuning model iree-conv2d")
    assert answer["ranked"][0]["power_w"] is None


def test_a_wider_coverage_has_wider_intervals_and_the_same_order(client):
    narrow, wide = (asked(client, IREE | {"coverage": share})["ranked"] for share in (0.6, 0.95))
    assert [item["config"] for item in narrow] == [item["config"] for item in wide]
    assert all(a["latency_s"]["upper"] < b["latency_s"]["upper"] for a, b in zip(narrow, wide, strict=True))


def test_a_compiler_is_found_where_none_is_named_and_all_cores_where_no_threads_are(client):
    assert asked(client, {name: value for name, value in IREE.items() if name != "impl"})["impl"] == "iree"
    assert asked(client, {name: value for name, value in TRITON.items() if name != "impl"})["impl"] == "triton"
    two = asked(client, IREE | {"threads": 2})
    assert asked(client, {name: value for name, value in IREE.items() if name != "threads"}) == two


def test_given_configurations_of_a_kind_are_ranked_by_its_model(client):
    known = asked(client, IREE | {"top": 3})["ranked"]
    raw = asked(client, IREE | {"configs": [item["config"] for item in reversed(known)]})
    assert raw["considered"] == 3
    assert [item["latency_s"] for item in raw["ranked"]] == [item["latency_s"] for item in known]
    assert raw["method"].startswith("tuning model iree-contraction")


def test_other_configurations_are_ranked_by_the_served_model(client):
    body = IREE | {"impl": "torch", "configs": [{}, {"tile_m": 64}, {"tile_m": 32}]}
    answer = asked(client, body)
    assert answer["method"] == "served model (fake)"
    # The fake model knows no difference, so all are tied, in the order they were given.
    assert [item["config"] for item in answer["ranked"]] == [{}, {"tile_m": 64}, {"tile_m": 32}]
    assert answer["tied"] == 3
    spec = {name: value for name, value in body.items() if name != "configs"}
    assert answer["ranked"][0]["latency_s"] == client.post(spec).json()["latency_s"]


def test_a_device_the_tuning_model_was_not_measured_on_is_the_served_model_s(client):
    answer = asked(client, TRITON | {"device": "a100-sxm-40gb", "top": 1})
    assert answer["method"] == "served model (fake)"
    assert answer["considered"] > 10


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"impl": "torch"}, "configs", f"no configurations are known of this gemm by torch in fp32 on {CPU}; send \"configs\""),
        ({"cache_state": "cold"}, "configs", "for hot caches"),
        ({"device": "h100"}, "configs", "by iree in fp32 on nvidia-h100-sxm-80gb"),
        ({"family": "softmax", "sizes": {"rows": 4, "cols": 4}}, "configs", "softmax has no knobs to tune"),
        ({"config": {}}, "config", "unknown field; a ranking takes several, in `configs`"),
        ({"devices": []}, "devices", "a ranking takes family, device"),
        ({"configs": []}, "configs", "at least one configuration"),
        ({"configs": {"tile_m": 1}}, "configs", "must be a list"),
        ({"configs": [3]}, "configs[0]", "an object of whole numbers, not a number"),
        ({"configs": [{"tile_m": 8}, {"tile_m": -1}]}, "configs[1].tile_m", "between 0 and"),
        ({"configs": [{"tile_q": 8}]}, "configs[0].tile_q", "has no config"),
        ({"configs": [{"tile_m": None}]}, "configs[0].tile_m", "got null"),
        ({"top": 0}, "top", "between 1 and 1000"),
        ({"top": 1001}, "top", "between 1 and 1000"),
        ({"top": True}, "top", "between 1 and 1000"),
        ({"top": 2.5}, "top", "between 1 and 1000"),
        ({"device": "h900"}, "device", "are known"),
        ({"sizes": {"m": 0, "n": 1, "k": 1}}, "sizes.m", "between 1 and"),
        ({"coverage": 0.3}, "coverage", "between 0.5 and 0.99"),
        ({"coverage": []}, "coverage", "between 0.5 and 0.99"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(client, change, field, said):
    client.check_refused(PATH, IREE | change, field, said)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "the body is empty; send {"),
        (b'"x"', 422, "must be a JSON object, not text"),
        (b'{"family": "gemm", "configs": [{"tile_m": 1, "tile_m": 2}]}', 422, "tile_m: is given twice"),
        (b'{"family": "gemm"}', 422, "device is missing"),
    ],
)
def test_bodies_that_cannot_be_meant(client, body, status, said):
    client.check_unreadable(PATH, body, status, said)


def test_sizes_too_large_for_a_time_are_refused_or_answered(client):
    huge = IREE | {"sizes": {"m": 2**40, "n": 2**40, "k": 2**40}, "configs": [{}]}
    response = client.request("POST", PATH, json=huge)
    assert response.status_code in (200, 422)
    assert "Traceback" not in response.text


def test_more_configurations_than_specs_in_a_batch_are_too_many(serve):
    with serve(FixedSource(FakePredictor(), catalogue()), Settings(max_specs=3)) as client:
        response = client.request("POST", PATH, json=IREE | {"configs": [{}] * 4})
        assert response.status_code == 413
        assert "4 configurations in one request; at most 3" in response.json()["detail"]


def test_a_damaged_model_of_the_user_is_said(serve, tmp_path, monkeypatch):
    (tmp_path / "tuning").mkdir()
    (tmp_path / "tuning" / "iree-contraction.kcm").write_bytes(b"not a model at all" * 10)
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    with serve(FixedSource(FakePredictor(), catalogue()), Settings()) as client:
        response = client.request("POST", PATH, json=IREE)
        assert response.status_code == 503
        assert "the tuning model of iree-contraction is damaged" in response.json()["detail"]
        assert str(tmp_path) not in response.text


def test_the_schema_takes_what_is_answered_and_not_what_is_refused(client):
    validator = client.validator("RankRequest")
    validator.validate(IREE | {"configs": [{}, {"tile_m": 8}], "top": 3})
    for bad in ({"x": 1}, {"config": {}}, {"configs": []}, {"top": 0}, {"device": 3}):
        assert not validator.is_valid(IREE | bad), bad


def test_all_configurations_have_one_timing_and_calls_are_ranked_by_the_served_model(serve):
    predictor = Recorder()
    with serve(FixedSource(predictor, catalogue()), Settings()) as client:
        alone = asked(client, TRITON | {"top": 2})
        called = asked(client, TRITON | {"top": 2, "timing": "call"})
        given = asked(client, TRITON | {"impl": "torch", "configs": [{}, {"tile_m": 64}]})
        on_cpu = asked(client, IREE | {"top": 2, "timing": "call"})
    assert [each["timing"] for each in (alone, called, given, on_cpu)] == ["device", "call", "device", "call"]
    assert alone["method"].startswith("tuning model triton-gemm")
    assert called["method"] == "served model (fake)"
    assert called["considered"] == alone["considered"]
    # A CPU has no launch to wait for.
    assert on_cpu["method"].startswith("tuning model iree-contraction")


def test_given_configurations_have_one_timing(serve):
    predictor = Recorder()
    with serve(FixedSource(predictor, catalogue()), Settings()) as client:
        asked(client, TRITON | {"impl": "torch", "configs": [{}, {"tile_m": 64}]})
    assert predictor.timings == {"nvidia-h200-sxm-141gb": {"device"}}
