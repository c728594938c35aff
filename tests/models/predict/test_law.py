"""Families that a model was trained on no row of: answered by their bytes and operations, and said to be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.family_model.artifact import save_artifact, shipped_model_dir
from kernelcast.models.predict.law import METHOD
from kernelcast.models.predict.predictor import ArtifactPredictor, load_predictor
from kernelcast.models.training.labelled_cases import LabelledCases
from kernelcast.models.training.training import train

H100, XEON = "nvidia-h100-sxm-80gb", "intel-xeon-platinum-8380"


@pytest.fixture(scope="module")
def untrained() -> ArtifactPredictor:
    """The shipped model as if it had never seen a quantisation or a softmax."""
    whole = load_predictor(shipped_model_dir())
    families = {
        name: entry for name, entry in whole.manifest["families"].items() if name not in ("quantize", "softmax")
    }
    return ArtifactPredictor(whole.directory, dict(whole.manifest) | {"families": families}, whole.devices)


def spec(rows: int, cols: int = 4096) -> KernelSpec:
    return KernelSpec.of("quantize", "fp8", rows=rows, cols=cols)


def test_an_untrained_family_is_answered_by_its_bytes_and_says_so(untrained: ArtifactPredictor) -> None:
    small, large, on_cpu = untrained.predict([spec(1), spec(65536), spec(65536)], [H100, H100, XEON])
    assert small.method == large.method == METHOD
    assert not small.in_domain
    assert "trained on no row of quantize" in small.notes[0]
    bounds = work(Cases.from_specs([spec(1), spec(65536)], [H100, H100]), catalogue()).lower_bound_s
    assert small.latency_s.value > 2 * bounds[0]
    assert 2.0 < large.latency_s.value / bounds[1] < 3.5
    assert large.latency_s.upper / large.latency_s.lower > 5
    assert on_cpu.latency_s.value > large.latency_s.value
    assert on_cpu.power_w is None


def test_power_and_energy_come_from_how_busy_the_gpu_is(untrained: ArtifactPredictor) -> None:
    (large,) = untrained.predict([spec(65536)], [H100])
    assert large.power_w is not None
    assert large.energy_j is not None
    assert 200 < large.power_w.value <= large.power_w.upper <= 700
    assert large.energy_j.value == pytest.approx(large.power_w.value * large.latency_s.value)
    assert large.energy_j.lower < large.energy_j.value < large.energy_j.upper


def test_a_higher_coverage_is_wider_and_no_end_beats_the_bound(untrained: ArtifactPredictor) -> None:
    (usual,), (wider,) = (untrained.predict([spec(512)], [H100], coverage=share) for share in (0.9, 0.98))
    assert wider.latency_s.upper > usual.latency_s.upper
    cases = Cases.from_specs([spec(2**i) for i in range(16)], [H100] * 16)
    answers = untrained.predict_cases(cases, coverage=0.99).targets["latency_s"]
    assert np.all(answers.lower >= work(cases, catalogue()).lower_bound_s)


def test_operands_that_do_not_fit_are_told(untrained: ArtifactPredictor) -> None:
    (huge,) = untrained.predict([spec(2**24, 2**14)], [H100])
    assert "do not fit into nvidia-h100-sxm-80gb's" in huge.notes[0]


@pytest.fixture(scope="module")
def of_cpus(tmp_path_factory: pytest.TempPathFactory) -> ArtifactPredictor:
    """A model of embeddings as a CPU ran them, 2 µs and 10 GB/s, and of nothing else."""
    sizes = [(2**i, 2**j) for i in range(0, 12, 2) for j in range(4, 12)]
    specs = [
        KernelSpec.of("embedding", "fp32", impl="torch", tokens=n, vocabulary=5000, cols=m, threads=1) for n, m in sizes
    ]
    cases = Cases.from_specs(specs, [XEON] * len(specs))
    latency_s = 2e-6 + work(cases, catalogue()).bytes / 1e10
    rows = LabelledCases(cases, latency_s, np.full(len(specs), np.nan))
    path = tmp_path_factory.mktemp("law") / "model"
    save_artifact(train([rows], regressor="xgboost"), path)
    return load_predictor(path)


def test_a_kind_of_device_without_rows_is_answered_by_the_law_beside_one_that_has_some(
    of_cpus: ArtifactPredictor,
) -> None:
    specs = [KernelSpec.of("embedding", "fp32", tokens=256, vocabulary=5000, cols=2**i) for i in (6, 8, 10)]
    specs[1] = replace(specs[1], threads=1)
    answers = of_cpus.predict(specs, [H100, XEON, H100])
    assert [answer.method == METHOD for answer in answers] == [True, False, True]
    assert "on a GPU" in answers[0].notes[0]
    seconds = 2e-6 + work(Cases.from_specs(specs, [XEON] * 3), catalogue()).bytes / 1e10
    assert answers[1].latency_s.value == pytest.approx(seconds[1], rel=0.5)
    assert answers[0].latency_s.value < answers[2].latency_s.value


def test_programs_take_a_family_where_it_was_measured_and_what_stands_in_elsewhere(of_cpus: ArtifactPredictor) -> None:
    torch = pytest.importorskip("torch")
    from kernelcast.torch import estimate

    def rough(device: str, model: ArtifactPredictor) -> float:
        table, index = torch.ones(1000, 64), torch.ones(50, dtype=torch.int64)
        with estimate(device, model=model) as run:
            torch.nn.functional.embedding(index, table)
        (answer,) = run.totals.values()
        return answer.rough_share

    assert rough(XEON, of_cpus) == 0
    shipped = load_predictor(shipped_model_dir())
    assert rough(H100, shipped) == 0
    assert rough("nvidia-a100-sxm-80gb", shipped) == 1


def test_families_without_a_law_stay_unanswered(untrained: ArtifactPredictor) -> None:
    with pytest.raises(SpecError, match="was not trained on softmax"):
        untrained.predict([KernelSpec.of("softmax", "fp32", rows=8, cols=8)], [H100])
