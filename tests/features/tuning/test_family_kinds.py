"""Kinds of single operations: their bounds are those of `features.work`, their variants those of the families."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernelcast.features.batch.cases import Cases
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec, get_family
from kernelcast.features.tuning.family_kinds import (
    BOUND_NAMES,
    FACTS,
    OF_ANSWERS,
    PREFIX,
    VARIANT_CODES,
    WEIGHTS,
    task_of,
)
from kernelcast.features.tuning.kind import Task, get_kind

DEVICES = (("amd-epyc-9005-vm-2c", "fp32"), ("amd-epyc-9005-vm-2c", "bf16"), ("nvidia-h100-sxm-80gb", "bf16"),
           ("nvidia-t4", "fp32"), ("amd-mi210", "fp16"))  # fmt: skip


def specs(family: str, dtype: str, cpu: bool) -> list[KernelSpec]:
    """Every model shape of a family and a few odd ones, in every variant."""
    fam, rng = get_family(family), np.random.default_rng(1)
    shapes = [dict(shape) for shape in fam.model_shapes[:12]]
    for _ in range(12):
        drawn = {name: int(2 ** rng.uniform(np.log2(low), np.log2(high))) for name, (low, high) in fam.ranges.items()}
        shapes.append(fam.finish({dim.name: drawn.get(dim.name, dim.default or 0) for dim in fam.dims}))
    return [
        KernelSpec.of(family, dtype, variant=variant, threads=(None, 1, 2)[i % 3] if cpu else None, **shape)
        for variant in fam.variants
        for i, shape in enumerate(shapes)
        if not fam.impossible(shape)
    ]


@pytest.mark.parametrize("family", VARIANT_CODES)
@pytest.mark.parametrize(("device", "dtype"), DEVICES)
def test_bounds_are_those_of_work(family: str, device: str, dtype: str) -> None:
    known = catalogue().get(device)
    kind = get_kind(PREFIX + family)
    formula, facts = kind.formula(), kind.facts_of(known, dtype)
    raw = specs(family, dtype, known.kind == "cpu")
    tasks = [task for spec in raw if (task := task_of(spec, device))]
    assert len(tasks) == len(raw)
    columns = {name: np.array([task.sizes[name] for task in tasks], dtype=float) for name in kind.sizes}
    result = dict(zip(formula.names, formula.columns({**columns, **facts}, len(tasks)).T, strict=True))
    paper = work(Cases.from_specs(raw, [device] * len(raw)), catalogue())
    np.testing.assert_allclose(result["bound_s"], paper.lower_bound_s, rtol=1e-12)
    for name, limit in BOUND_NAMES.items():
        np.testing.assert_allclose(result[name], paper.bounds_s[limit], rtol=1e-12, err_msg=name)
    np.testing.assert_allclose(result["flops"], paper.flops, rtol=1e-12)
    np.testing.assert_allclose(result["moved_b"], paper.bytes, rtol=1e-12)
    assert np.isfinite(formula.columns({**columns, **facts}, len(tasks))).all()


def test_every_variant_has_one_code_and_codes_stay() -> None:
    for family, codes in VARIANT_CODES.items():
        variants = get_family(family).variants
        # Convolutions have no codes: layouts of images are taken as one.
        assert set(codes) == (set(variants) if len(variants) > 1 and family != "conv2d" else set())
        assert sorted(codes.values()) == list(range(len(codes)))
    # Files that were shipped hold these numbers.
    assert VARIANT_CODES["gemm"] == {"": 0, "bias": 1, "batched": 2, "nt": 3, "tn": 4, "tt": 5}
    assert VARIANT_CODES["elementwise"]["addu"] == 10
    assert VARIANT_CODES["elementwise"]["add"] == 14
    assert VARIANT_CODES["reduction"]["sum_rows"] == 3


def test_the_task_of_a_spec() -> None:
    spec = KernelSpec.of("gemm", "fp32", variant="nt", m=64, n=32, k=16, threads=2)
    task = task_of(spec, "amd-epyc-9005-vm-2c")
    assert task == Task("op-gemm", {"batch": 1, "m": 64, "n": 32, "k": 16, "variant": 3, "threads": 2}, "fp32",
                        "amd-epyc-9005-vm-2c")  # fmt: skip
    kind = get_kind("op-gemm")
    assert len(kind.space(task)) == 1
    assert kind.task_of(spec, "amd-epyc-9005-vm-2c") is None


def test_what_has_no_task() -> None:
    attention = KernelSpec.of("attention", "bf16", batch=1, heads=8, kv_heads=8, q_len=1, kv_len=64, head_dim=64)
    assert task_of(attention, "nvidia-h100-sxm-80gb") is None


def test_facts_are_complete() -> None:
    for device in catalogue():
        facts = get_kind("op-gemm").facts_of(device, "int8")
        assert set(facts) == {*FACTS, *WEIGHTS, *OF_ANSWERS}
        assert all(np.isfinite(value) and value >= 0 for value in facts.values())
        assert facts["is_cpu"] == (device.kind == "cpu")
        assert (facts["element_b"], facts["output_b"]) == (1.0, 4.0)


def test_a_device_without_a_peak_is_refused() -> None:
    known = catalogue().get("nvidia-t4")
    without = replace(known, matrix_flops_per_s={}, vector_flops_per_s={"fp32": known.vector_flops_per_s["fp32"]})
    with pytest.raises(SpecError, match="nvidia-t4 has no peak for fp64"):
        get_kind("op-copy").facts_of(without, "fp64")
