"""Libraries that questions name: one that was never measured for a family is refused, a version of a measured one is not."""

from __future__ import annotations

import pytest
from kernelcast.features.batch.cases import Cases
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.family_model.artifact import shipped_model_dir
from kernelcast.models.predict.named_impl import check_impl, check_impls, check_name, check_specs
from kernelcast.models.predict.predictor import ArtifactPredictor, load_predictor

LARGE = {"m": 512, "n": 512, "k": 512}


@pytest.fixture(scope="module")
def predictor() -> ArtifactPredictor:
    return load_predictor(shipped_model_dir())


@pytest.mark.parametrize("impl", ["", "torch", "vllm-0.24.0", "vllm-99.1"])
def test_measured_libraries_pass_in_every_version(predictor, impl):
    check_impl(predictor, "gemm", impl)


def test_what_other_families_were_measured_with_is_refused(predictor):
    assert "vllm-0.24.0" not in predictor.impls("layernorm")
    with pytest.raises(SpecError, match="no layernorm of impl") as refusal:
        check_impl(predictor, "layernorm", "vllm-0.24.0")
    assert refusal.value.field == "impl"


def test_close_names_are_proposed_and_else_the_first():
    with pytest.raises(SpecError, match=r"did you mean torch\? Without impl, the usual one answers"):
        check_name("Torch", ("torch", "xla"), "gemm")
    with pytest.raises(
        SpecError, match="measured: a, b, c and 1 others, see `kernelcast devices kernels`; without impl"
    ):
        check_name("zzz", ("a", "b", "c", "d"), "gemm")
    with pytest.raises(SpecError, match="measured: none with a name"):
        check_name("zzz", ("",), "gemm")


def test_specs_and_cases_are_judged_alike(predictor):
    good, bad = (KernelSpec.of("gemm", "bf16", impl=impl, **LARGE) for impl in ("torch", "mine"))
    check_specs(predictor, [good])
    check_impls(predictor, Cases.from_specs([good], ["nvidia-h200-sxm-141gb"]))
    with pytest.raises(SpecError, match="'mine'"):
        check_specs(predictor, [good, bad])
    with pytest.raises(SpecError, match="'mine'"):
        check_impls(predictor, Cases.from_specs([good, bad], ["nvidia-h200-sxm-141gb"] * 2))
