"""The page of a device by the service: with the shipped model, with one that says nothing, and with none."""

from __future__ import annotations

import msgspec
import pytest
from kernelcast.api.browse.device_page import COMMAND, device_page
from kernelcast.api.model_source import FixedSource
from kernelcast.api.settings import Settings
from kernelcast.client.device_answers import DevicePage
from kernelcast.features.device import catalogue
from kernelcast.models.family_model.artifact import shipped_model_dir
from kernelcast.models.predict.predictor import load_predictor


@pytest.fixture(scope="module")
def predictor():
    return load_predictor(shipped_model_dir())


def page_of(predictor, name: str) -> DevicePage:
    return device_page(catalogue().get(name), predictor, "pretrained", shipped_model_dir())


def test_a_measured_device_has_rows_and_errors_of_its_own(predictor):
    page = page_of(predictor, "nvidia-h200-sxm-141gb")
    gemm = next(
        line for line in page.basis if (line.family, line.target, line.basis) == ("gemm", "latency_s", "measured")
    )
    assert gemm.rows > 10_000
    assert gemm.error.of == "held_out"
    assert gemm.error_here.of == "own_rows"
    assert page.measured


@pytest.mark.parametrize(("name", "can"), [("nvidia-l4", True), ("amd-epyc-7742", True), ("amd-mi300x", False)])
def test_what_cannot_be_adapted_says_what_to_do(predictor, name, can):
    ten = page_of(predictor, name).ten_minutes
    assert ten.command == (COMMAND if can else None)
    assert can or any("kernelcast train calibrate --data" in sentence for sentence in ten.says)
    assert any("No adaptation of a GPU was measured" in sentence for sentence in ten.says) == (name != "amd-epyc-7742")
    assert ten.measured


def test_an_accuracy_file_of_another_model_is_not_told(predictor, tmp_path):
    (tmp_path / "accuracy.json.gz").write_bytes(b"damaged")
    for directory in (None, tmp_path):
        page = device_page(catalogue().get("nvidia-h200-sxm-141gb"), predictor, "x", directory)
        assert {line.error_here for line in page.basis} == {None}


def test_the_service_answers_the_page_and_clients_decode_it(predictor, serve):
    with serve(FixedSource(predictor, catalogue()), Settings()) as client:
        answer = client.get("/v1/devices/h200")
        again = client.request("GET", "/v1/devices/h200", headers={"if-none-match": answer.headers["etag"]})
    page = msgspec.json.decode(answer.content, type=DevicePage)
    assert (page.model, again.status_code) == ("fixed", 304)
    # A predictor that was passed in has no directory, and so no accuracy file.
    assert page.basis == [msgspec.structs.replace(line, error_here=None)
                          for line in page_of(predictor, "nvidia-h200-sxm-141gb").basis]  # fmt: skip


def test_another_model_gives_another_page(predictor, fake, serve):
    source = FixedSource(fake, catalogue())
    with serve(source, Settings()) as client:
        assert client.get("/v1/devices/h200").json()["basis"] is None
        source.current = FixedSource(predictor, catalogue()).current
        assert client.get("/v1/devices/h200").json()["basis"]


@pytest.mark.parametrize("serves", [True, False])
def test_a_model_that_does_not_say_gives_the_facts_alone(fake, serve, serves):
    with serve(FixedSource(fake if serves else None, catalogue()), Settings()) as client:
        page = client.get("/v1/devices/h200").json()
    assert page["basis"] is None
    assert page["facts"]["compute_units"]["value"] == 132
