"""Vectors: names match columns, one path for one and many, the schema's hash guards the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernelcast.features.batch.cases import Cases
from kernelcast.features.batch.category import CaseCategory, MeasuredLabels, category_reader, nearest_impl
from kernelcast.features.device import catalogue
from kernelcast.features.kernel import KernelSpec, families, get_family
from kernelcast.features.vector.extract import alignment, extract
from kernelcast.features.vector.schema import FeatureSchema


def some_cases(name: str) -> Cases:
    family = get_family(name)
    specs = []
    for i, shape in enumerate(family.model_shapes[:8]):
        variant = family.variant_of(shape) if family.variant_of else family.variants[i % len(family.variants)]
        impl = f"lib-{i % 2}"
        specs += [KernelSpec.of(name, dtype, variant=variant, impl=impl, **shape) for dtype in ("fp32", "bf16")]
    devices = ["nvidia-h100-sxm-80gb", "amd-epyc-9005-vm-2c"] * (len(specs) // 2)
    return Cases.from_specs(specs, devices)


@pytest.mark.parametrize("name", sorted(families()))
def test_every_family_has_as_many_columns_as_names_and_no_infinity(name: str) -> None:
    cases = some_cases(name)
    schema = FeatureSchema.fit(cases)
    features = extract(cases, schema, catalogue())
    assert features.values.shape == (len(cases), len(schema.names))
    assert len(set(schema.names)) == len(schema.names)
    assert not np.isinf(features.values).any()
    constant_names = {schema.names[i] for i in np.flatnonzero(np.isnan(features.values).all(axis=0))}
    assert constant_names <= {"threads"}


@pytest.mark.parametrize("name", sorted(families()))
def test_one_by_one_equals_batch(name: str) -> None:
    cases = some_cases(name)
    schema = FeatureSchema.fit(cases)
    together = extract(cases, schema, catalogue()).values
    alone = [extract(cases.take([i]), schema, catalogue()).values[0] for i in range(len(cases))]
    np.testing.assert_array_equal(together, np.array(alone))


def test_the_schema_survives_json_and_its_hash_follows_its_columns() -> None:
    schema = FeatureSchema.fit(some_cases("gemm"))
    assert FeatureSchema.from_json(schema.to_json()) == schema
    assert FeatureSchema.from_json(schema.to_json()).hash == schema.hash
    assert replace(schema, impls=(*schema.impls, "other")).hash != schema.hash


def test_all_cores_of_a_cpu_are_its_core_count_and_a_gpu_has_none() -> None:
    specs = [KernelSpec.of("softmax", "fp32", threads=threads, rows=8, cols=8) for threads in (1, None, None)]
    cases = Cases.from_specs(specs, ["amd-epyc-9005-vm-2c", "epyc-9005-vm-2c", "nvidia-t4"])
    np.testing.assert_array_equal(cases.with_core_counts(catalogue()).threads, [1.0, 2.0, np.nan])
    np.testing.assert_array_equal(cases.threads, [1.0, np.nan, np.nan])


def test_alignment_is_the_power_of_two_in_a_size_up_to_256() -> None:
    sizes = np.array([1, 2, 3, 48, 256, 4096, 0], dtype=np.float64)
    np.testing.assert_array_equal(alignment(sizes), [0, 1, 0, 4, 8, 8, 8])


@pytest.mark.parametrize(
    ("given", "read_as"),
    [
        ("vllm-0.24.0", "vllm-0.24.0"),
        ("vllm-0.25.1", "vllm-0.24.0"),
        ("vllm-0.19.0", "vllm-0.22.0"),
        ("trtllm-1.3.0rc17", "trtllm-1.3.0rc15"),
        ("torch", "torch"),
        ("", "vllm-0.22.0"),
        ("sglang-0.5", "sglang-0.5"),
    ],
)
def test_an_unknown_version_is_read_as_the_nearest_of_the_same_library(given: str, read_as: str) -> None:
    assert nearest_impl(given, ["vllm-0.22.0", "vllm-0.24.0", "trtllm-1.3.0rc15", "torch"]) == read_as


TUNED = "rtx gpu  fp32/fp32 clblast hot tile_m,tile_n"
PLAIN = "v100 gpu  fp32/fp32 torch hot "


def test_an_impl_not_given_is_read_as_no_tuner_s_choice() -> None:
    groups = ["rtx clblast fp32/fp32", "v100 torch fp32/fp32"]
    settings = ["clblast fp32 gpu with tile_m,tile_n", "torch fp32 gpu"]
    read = category_reader(["clblast", "torch"], groups, settings, [TUNED, PLAIN])
    plain = CaseCategory("rtx", "fp32", "fp32", "", "", "hot", "", None, ())
    assert read(plain, False).impl == "torch"
    assert read(plain._replace(knobs=("tile_m", "tile_n")), False).impl == "clblast"
    assert read(plain._replace(impl="clblast"), False).impl == "clblast"
    measured = MeasuredLabels([TUNED, PLAIN])
    assert not measured.has_kernel(plain)
    assert measured.has_kernel(plain._replace(knobs=("tile_m", "tile_n")))
    assert measured.has_kernel(plain._replace(device="v100"))


def test_fp8_of_xla_is_meant_only_where_it_is_named_or_nothing_else_was_measured() -> None:
    groups = ["mi300x xla fp8/fp8", "b200 vllm-0.24.0 fp8/fp8"]
    read = category_reader(["xla", "vllm-0.24.0"], groups, ["xla fp8 gpu", "vllm-0.24.0 fp8 gpu"])
    plain = CaseCategory("mi300x", "fp8", "fp8", "", "", "hot", "", None, ())
    assert read(plain, False).impl == "vllm-0.24.0"
    assert read(plain._replace(impl="xla"), False).impl == "xla"
    bf16 = plain._replace(dtype="bf16", kv_dtype="bf16")
    others = category_reader(["vllm-0.24.0", "xla"], ["mi300x xla bf16/bf16", "b200 vllm-0.24.0 bf16/bf16"], [])
    assert others(bf16, False).impl == "xla"
    assert category_reader(["xla"], groups[:1], ["xla fp8 gpu"])(plain, False).impl == "xla"
