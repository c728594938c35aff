"""What answers for a device rest on agrees with the answers themselves, and with the rows the model was trained on."""

from __future__ import annotations

import pytest
from kernelcast.features.batch.category import category_of, kv_pair
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec, families, get_family
from kernelcast.features.spec_io.json_schema import family_example
from kernelcast.models.family_model.artifact import read_manifest, shipped_model_dir
from kernelcast.models.predict import device_basis as basis_module
from kernelcast.models.predict.device_basis import (
    BUSY,
    CARRIED,
    EDITION,
    ITSELF,
    LAW,
    MEASURED,
    NOTHING,
    Basis,
    device_basis,
)
from kernelcast.models.predict.predictor import ArtifactPredictor, load_predictor

H200, H100_PCIE, EPYC = "nvidia-h200-sxm-141gb", "nvidia-h100-pcie-80gb", "amd-epyc-7742"


@pytest.fixture(scope="module")
def shipped() -> ArtifactPredictor:
    return load_predictor(shipped_model_dir())


def basis_of(predictor: ArtifactPredictor, device: str) -> list[Basis]:
    return device_basis(predictor, catalogue().get(device))


def test_every_family_and_target_is_told_for_every_kind_of_device(shipped):
    for device in (H200, EPYC, "apple-m1-max"):
        told = {(line.family, line.target) for line in basis_of(shipped, device)}
        assert told == {(family, target) for family in families() for target in ("latency_s", "power_w", "energy_j")}


def test_rows_of_all_devices_are_those_of_the_training(shipped, monkeypatch):
    for family in ("softmax", "moe"):
        monkeypatch.setattr(basis_module, "families", lambda family=family: {family: get_family(family)})
        model = shipped.family(family).model
        rows = [line.rows for device in model.devices for line in basis_of(shipped, device)
                if (line.family, line.target, line.basis) == (family, "latency_s", MEASURED)]  # fmt: skip
        assert sum(rows) == model.n_rows


def test_shares_add_up_and_the_heaviest_source_is_first(shipped):
    carried = [line for line in basis_of(shipped, H100_PCIE) if line.sources]
    assert carried
    for line in carried:
        weights = [source.weight for source in line.sources]
        assert sum(weights) + line.general_weight == pytest.approx(1.0, abs=0.01)
        assert weights == sorted(weights, reverse=True)
        assert line.basis == CARRIED
        assert all(source.distance > 0 for source in line.sources)


def test_another_edition_is_named_with_its_distance(shipped):
    line = next(
        line
        for line in basis_of(shipped, "nvidia-a100-pcie-80gb")
        if (line.family, line.target, line.basis) == ("gemm", "latency_s", EDITION)
        and any(f"{kernel.impl} {kernel.dtype}" == "torch fp32" for kernel in line.kernels)
    )
    assert line.sources[0].device == "nvidia-a100-pcie-40gb"
    assert 0 < line.sources[0].distance < 0.15


@pytest.mark.parametrize("device", [H200, H100_PCIE, "nvidia-gh200-96gb", EPYC])
@pytest.mark.parametrize("family", ["gemm", "elementwise"])
def test_what_is_told_is_what_a_prediction_does(shipped, monkeypatch, device, family):
    monkeypatch.setattr(basis_module, "families", lambda: {family: get_family(family)})
    lines = [line for line in basis_of(shipped, device) if line.family == family]
    by_kernel = {
        (line.target, kernel.impl, kernel.dtype): line.basis
        for line in lines for kernel in line.kernels if kernel.is_whole
    }  # fmt: skip
    sizes = family_example(get_family(family))["sizes"]
    asked = 0
    for label in shipped.family(family).model.measured["latency"]:
        category = category_of(label, threads=catalogue().get(device).required("compute_units"))
        pair = category.dtype if category.kv_dtype == category.dtype else kv_pair(category)
        key = (category.impl, pair)
        if category.knobs or ("latency_s", *key) not in by_kernel:
            continue
        if catalogue().get(device).kind != label.split(" ")[1] or by_kernel["latency_s", *key] == NOTHING:
            continue
        spec = KernelSpec.of(family, category.dtype, impl=category.impl, variant=category.variant, timing=category.timing,
                             cache_state=category.cache_state, **sizes)  # fmt: skip
        answer = shipped.predict([spec], [device])[0]
        of = by_kernel["latency_s", *key]
        assert ("carried over" in answer.method) == (of in (CARRIED, EDITION, ITSELF)) or of == ITSELF, (label, answer)
        for target in ("power_w", "energy_j"):
            # Where some variants have power of their own and others not, no one thing is told of all.
            if (target, *key) in by_kernel:
                assert (getattr(answer, target) is None) == (by_kernel[target, *key] == NOTHING), (label, answer)
        asked += 1
    assert asked >= 2


def test_a_dtype_without_hardware_is_not_answered(shipped):
    gemm = [line for line in basis_of(shipped, H100_PCIE) if (line.family, line.target) == ("gemm", "latency_s")]
    refused = next(line for line in gemm if line.basis == NOTHING)
    assert {kernel.dtype for kernel in refused.kernels} == {"nvfp4"}


def test_power_of_families_without_measured_power_follows_from_how_busy_the_device_is(shipped):
    assert {
        line.basis for line in basis_of(shipped, H200) if (line.family, line.target) == ("quantize", "power_w")
    } == {BUSY}


def test_a_family_measured_on_cpus_alone_has_the_law_of_its_bytes_and_operations_on_a_gpu(shipped):
    manifest = read_manifest(shipped_model_dir())
    manifest["families"]["rope"]["kinds"] = ["cpu"]
    lines = basis_of(ArtifactPredictor(shipped.directory, manifest, catalogue()), H100_PCIE)
    assert LAW in {line.basis for line in lines if (line.family, line.target) == ("rope", "latency_s")}


def test_errors_are_those_of_this_kind_of_answer(shipped):
    metrics = shipped.manifest["families"]["gemm"]["metrics"]
    lines = basis_of(shipped, H200)
    for line in lines:
        if (line.family, line.target) == ("gemm", "latency_s") and line.basis != NOTHING:
            of = "held_out" if line.basis == MEASURED else "device_left_out"
            assert line.error == {"of": of, **metrics[of]["latency"]}
    assert {line.error for line in lines if line.target == "energy_j"} == {None}


def test_a_model_that_did_not_count_its_rows_says_so(shipped, monkeypatch):
    manifest = read_manifest(shipped_model_dir())
    entry = manifest["families"]["softmax"]
    entry["measured"] = {target: list(rows) for target, rows in entry["measured"].items()}
    old = ArtifactPredictor(shipped.directory, manifest, catalogue())
    monkeypatch.setattr(basis_module, "families", lambda: {"softmax": get_family("softmax")})
    measured = next(line for line in basis_of(old, H200) if line.basis == MEASURED)
    assert measured.rows is None


def test_a_family_that_was_never_trained_is_not_answered(shipped, monkeypatch):
    manifest = {**shipped.manifest, "families": {}}
    monkeypatch.setattr(basis_module, "families", lambda: {"softmax": get_family("softmax")})
    bare = ArtifactPredictor(shipped.directory, manifest, catalogue())
    assert [(line.target, line.basis) for line in basis_of(bare, H200)] == [
        ("latency_s", NOTHING), ("power_w", NOTHING), ("energy_j", NOTHING),
    ]  # fmt: skip
