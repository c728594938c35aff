"""A program as the sum of its kernels, for every device: nothing is free, nothing is surer than it can be."""

from __future__ import annotations

from typing import Any

import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.mlir.vectors.device_limits import hardware
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import ArtifactPredictor, load_predictor
from kernelcast.workloads.mlir.composition import compose_program
from kernelcast.workloads.mlir.predictor import ModulePredictor

CPU, GPU = "amd-epyc-9005-vm-2c", "nvidia-h200-sxm-141gb"


@pytest.fixture(scope="module")
def kernels() -> ArtifactPredictor:
    return load_predictor(default_model_dir())


@pytest.fixture(scope="module")
def predictor(kernels: ArtifactPredictor) -> ModulePredictor:
    return ModulePredictor(kernels)


def chain(maker: Any, n_layers: int = 2) -> Any:
    make = maker()
    x = make.argument(256, 256)
    for _ in range(n_layers):
        x = make.elementwise(make.product(x, 256, 256, 256), 256, 256, ("add", "exp"))
    return make.program(x)


@pytest.mark.parametrize("device", catalogue().names())
def test_every_device_of_the_catalogue_is_answered(predictor: ModulePredictor, maker: Any, device: str) -> None:
    result = predictor.predict(chain(maker), device)
    latency = result.latency_s
    assert 0 < latency.lower <= latency.value <= latency.upper
    assert result.bound_s <= latency.value
    assert sum(result.breakdown.values()) == pytest.approx(result.bound_s)
    assert sum(item.time_share for item in result.groups) == pytest.approx(1.0)
    assert sum(item.latency_s for item in result.groups) == pytest.approx(latency.value, rel=1e-6)
    assert result.method == "composition"


def test_operations_share_a_kernels_time_by_their_limits(predictor: ModulePredictor, maker: Any) -> None:
    make = maker()
    product = make.product(make.argument(512, 512), 512, 512, 512)
    result = predictor.predict(make.program(make.elementwise(product, 512, 512, ("add", "exp"))), CPU)
    (group,) = [item for item in result.groups if len(item.ops) > 1]
    shares = dict(zip(group.ops, group.op_shares, strict=True))
    assert sum(group.op_shares) == pytest.approx(1.0)
    assert len(group.line_shares) == len(group.lines)
    # As many bytes, more arithmetic.
    assert shares["stablehlo.exp"] >= shares["stablehlo.add"] > 0


def test_gpus_have_power_and_energy_and_they_fit(predictor: ModulePredictor, maker: Any) -> None:
    result = predictor.predict(chain(maker), GPU)
    assert result.power_w is not None
    assert result.energy_j is not None
    assert result.energy_j.value == pytest.approx(result.power_w.value * result.latency_s.value, rel=1e-6)


def test_what_the_kernel_model_predicts_is_what_a_recognised_kernel_costs(
    predictor: ModulePredictor, kernels: ArtifactPredictor, maker: Any
) -> None:
    make = maker()
    program = make.program(make.product(make.argument(512, 512), 512, 512, 512))
    spec = program.groups[0].spec
    result = predictor.predict(program, CPU, threads=1)
    from dataclasses import replace

    alone = kernels.predict([replace(spec, threads=1)], [CPU])[0]
    assert result.latency_s.value == pytest.approx(alone.latency_s.value)
    assert result.groups[0].spec == str(spec)


def test_runs_multiply(predictor: ModulePredictor, maker: Any) -> None:
    def latency(runs: float) -> float:
        make = maker()
        program = make.program(make.elementwise(make.argument(64, 64), 64, 64, ("add",), runs=runs))
        return predictor.predict(program, CPU).latency_s.value

    assert latency(1000.0) == pytest.approx(1000.0 * latency(1.0))


def test_an_unknown_operation_costs_and_widens(predictor: ModulePredictor, maker: Any) -> None:
    def answer(with_unknown: bool) -> Any:
        make = maker()
        x = make.product(make.argument(256, 256), 256, 256, 256)
        return predictor.predict(make.program(make.unknown(x, 256, 256) if with_unknown else x), CPU)

    known, strange = answer(False), answer(True)
    assert strange.latency_s.value > known.latency_s.value
    assert strange.latency_s.upper / strange.latency_s.lower > 2 * known.latency_s.upper / known.latency_s.lower
    assert not strange.in_domain
    assert known.in_domain
    assert strange.not_understood == (("mystery.op", "no rule for it"),)
    assert [item.understood for item in strange.groups] == [True, False]


def test_a_program_of_unknown_operations_is_known_within_orders_of_magnitude(
    predictor: ModulePredictor, maker: Any
) -> None:
    make = maker()
    result = predictor.predict(make.program(make.unknown(make.argument(256, 256), 256, 256)), CPU)
    assert result.latency_s.upper / result.latency_s.value > 50
    assert not result.in_domain


def test_an_empty_program_is_a_call(predictor: ModulePredictor, maker: Any) -> None:
    make = maker()
    x = make.argument(8, 8)
    for device in (CPU, GPU):
        result = predictor.predict(make.program(x), device)
        assert 0 < result.latency_s.value < 1e-4
        # XLA's call of a program on a GPU is known, though nothing runs in it.
        assert [group.title for group in result.groups] == ([] if device == CPU else ["waiting for the host"])


def test_a_wider_interval_for_more_coverage(predictor: ModulePredictor, maker: Any) -> None:
    narrow, wide = (predictor.predict(chain(maker), GPU, coverage=coverage).latency_s for coverage in (0.6, 0.95))
    assert wide.lower < narrow.lower
    assert wide.upper > narrow.upper


def test_fewer_threads_take_longer(predictor: ModulePredictor, maker: Any) -> None:
    item, two = (predictor.predict(chain(maker), CPU, threads=threads).latency_s.value for threads in (1, 2))
    assert item > two


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"device": "no-such-device"}, "no device"),
        ({"device": CPU, "compiler": "gcc"}, "compilers: iree, xla"),
        ({"device": GPU, "threads": 4}, "is no CPU"),
        ({"device": CPU, "threads": 0}, "threads must be"),
        ({"device": CPU, "coverage": 2.0}, "coverage must be"),
    ],
)
def test_what_cannot_be_asked_says_what_can(
    predictor: ModulePredictor, maker: Any, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        predictor.predict(chain(maker), **asked)


class Refusing:
    """A kernel model that knows nothing."""

    def predict(self, specs: Any, devices: Any, *, coverage: float = 0.9) -> Any:
        raise SpecError("this model was trained on nothing", field="family")


def test_kernels_the_model_refuses_are_estimated_on_paper_and_said_so(maker: Any) -> None:
    on = hardware(catalogue().get(CPU), None)
    result = compose_program(Refusing(), chain(maker), on)  # type: ignore[arg-type]
    assert result.latency_s.value >= result.bound_s
    assert any("trained on nothing" in note for note in result.notes)
    assert not result.in_domain
