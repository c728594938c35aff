"""The kind mlir-opt-tiles: what can be chosen, what is measured of it, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from kernelcast.features.cost.bounds import lower_bound_s
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.features.tuning.kind import Task, get_kind

KIND = get_kind("mlir-opt-tiles")
DEVICE = catalogue().get("amd-epyc-9005-vm-2c")


def task(m: int, n: int, k: int, batch: int = 1, a_transposed: int = 0, b_transposed: int = 0) -> Task:
    sizes = {"batch": batch, "m": m, "n": n, "k": k, "a_transposed": a_transposed, "b_transposed": b_transposed}
    return Task(KIND.name, sizes, "fp32", DEVICE.name)


@pytest.mark.parametrize("sizes", [(512, 512, 512), (17, 33, 65), (1, 1, 1), (3, 1000, 2)], ids=str)
def test_the_space_begins_untiled_and_stays_within_the_sizes(sizes: tuple[int, int, int]) -> None:
    space = KIND.space(task(*sizes))
    assert space.config(0) == {}
    found = [tuple(space.config(i).values()) for i in range(1, len(space))]
    assert len(set(found)) == len(found) <= 300
    assert all(1 <= tile <= size for tiles in found for tile, size in zip(tiles, sizes, strict=True))


@pytest.mark.parametrize("sizes", [(64, 96, 128), (17, 33, 65), (1, 5, 1000)], ids=str)
def test_features_are_finite_and_the_bound_is_one_no_run_beats(sizes: tuple[int, int, int]) -> None:
    one = task(*sizes)
    space = KIND.space(one)
    formula = KIND.formula()
    facts = KIND.facts_of(DEVICE, "fp32")
    columns = formula.columns({**one.sizes, **space.knobs, **facts}, len(space))
    assert np.isfinite(columns).all()
    bound = columns[:, formula.names.index("bound_s")]
    spec = KIND.spec_of(one, {})
    assert spec is not None
    assert (bound > 0.0).all()
    assert bound.max() <= lower_bound_s(spec, DEVICE) * (1.0 + 1e-12)


@pytest.mark.parametrize(
    "one", [task(8, 16, 32), task(8, 16, 32, 4), task(8, 16, 32, b_transposed=1), task(8, 16, 32, a_transposed=1)]
)
def test_a_spec_and_a_task_are_the_same_thing(one: Task) -> None:
    config = {"tile_m": 4, "tile_n": 16, "tile_k": 2}
    spec = KIND.spec_of(one, config)
    assert spec is not None
    assert KIND.task_of(spec, DEVICE.name) == (one, config)


def test_rows_of_others_are_not_its_own() -> None:
    for change in ({"impl": "iree"}, {"threads": 2}, {"threads": None}, {"variant": "bias"}):
        given = {"impl": "mlir-opt", "threads": 1, "variant": ""} | change
        assert KIND.task_of(KernelSpec.of("gemm", "fp32", m=8, n=8, k=8, **given), DEVICE.name) is None
    assert KIND.spec_of(task(8, 8, 8, 1, 1, 1), {}) is None


def test_it_is_about_a_cpu() -> None:
    with pytest.raises(SpecError, match="a CPU core"):
        KIND.facts_of(catalogue().get("nvidia-l4"), "fp32")
