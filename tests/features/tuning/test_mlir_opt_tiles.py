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
    result = [tuple(space.config(i).values()) for i in range(1, len(space))]
    assert len(set(result)) == len(result) <= 300
    assert all(1 <= tile <= size for tiles in result for tile, size in zip(tiles, sizes, strict=True))


@pytest.mark.parametrize("sizes", [(64, 96, 128), (17, 33, 65), (1, 5, 1000)], ids=str)
def test_features_are_finite_and_the_bound_is_one_no_run_beats(sizes: tuple[int, int, int]) -> None:
    one = task(*sizes)
    space = KIND.space(one)
    formula = KIND.formula()
    facts = KIND.facts_of(DEVICE, "fp32")
    columns = formula.columns({**one.sizes, **space.knobs, **facts}, len(space))
    assert np.isfinite(columns).all()
    bound = columns[:, formula.names.index("bound_s")]
    m, n, k = sizes
    spec = KernelSpec.of("gemm", "fp32", impl="mlir-opt", threads=1, m=m, n=n, k=k)
    assert (bound > 0.0).all()
    assert bound.max() <= lower_bound_s(spec, DEVICE) * (1.0 + 1e-12)


@pytest.mark.parametrize(
    ("variant", "one"),
    [
        ("", task(8, 16, 32)),
        ("batched", task(8, 16, 32, 4)),
        ("nt", task(8, 16, 32, b_transposed=1)),
        ("tn", task(8, 16, 32, a_transposed=1)),
    ],
)
def test_the_task_of_a_spec(variant: str, one: Task) -> None:
    config = {"tile_m": 4, "tile_n": 16, "tile_k": 2}
    sizes = {name: one.sizes[name] for name in ("batch", "m", "n", "k")}
    spec = KernelSpec.of("gemm", "fp32", variant=variant, impl="mlir-opt", threads=1, config=config, **sizes)
    assert KIND.task_of(spec, DEVICE.name) == (one, config)


def test_rows_of_others_are_not_its_own() -> None:
    for change in ({"impl": "iree"}, {"threads": 2}, {"threads": None}, {"variant": "bias"}):
        raw = {"impl": "mlir-opt", "threads": 1, "variant": ""} | change
        assert KIND.task_of(KernelSpec.of("gemm", "fp32", m=8, n=8, k=8, **raw), DEVICE.name) is None


def test_it_is_about_a_cpu() -> None:
    with pytest.raises(SpecError, match="a CPU core"):
        KIND.facts_of(catalogue().get("nvidia-l4"), "fp32")
