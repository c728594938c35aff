"""The catalogue: every figure sourced, peaks against arithmetic, unknown devices never replaced by another."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelcast.features.device import Catalogue, catalogue, load_device_file, parse_device
from kernelcast.features.errors import SpecError

REQUIRED = {
    "amd-epyc-9005-vm-2c", "nvidia-p100-pcie-16gb", "nvidia-p4", "nvidia-t4", "nvidia-v100-pcie-32gb",
    "nvidia-a100-pcie-40gb", "nvidia-a100-pcie-80gb", "nvidia-a100-sxm-40gb", "nvidia-a100-sxm-80gb", "nvidia-l4",
    "nvidia-l40s", "nvidia-a40", "nvidia-h100-sxm-80gb", "nvidia-h100-pcie-80gb", "nvidia-h200-sxm-141gb",
    "nvidia-b200-sxm-180gb", "nvidia-gb200", "nvidia-rtx-4070", "nvidia-rtx-4090",
    "nvidia-rtx-pro-6000-blackwell-server", "amd-mi100", "amd-mi210", "amd-mi250", "amd-mi300x",
}  # fmt: skip

# FLOP per clock and unit of the ordinary fp32 units: NVIDIA architecture whitepapers (GP100, GV100, TU104, GA100: 64
# FMA lanes; GP104, GA10x, AD10x, GH100, Blackwell: 128), AMD CDNA whitepapers (64 lanes; MI300X 128).
FP32_PER_CLOCK = {
    "pascal": (128, 256), "volta": (128,), "turing": (128,), "ampere": (128, 256), "ada": (256,), "hopper": (256,),
    "blackwell": (256,), "cdna1": (128,), "cdna2": (128, 256), "cdna3": (256,),
}  # fmt: skip

DATASHEET = {
    # dense bf16 matrix peak in TFLOP/s and memory bandwidth in GB/s, as the makers' data sheets print them
    "nvidia-a100-sxm-80gb": (312, 2039),
    "nvidia-a100-pcie-40gb": (312, 1555),
    "nvidia-h100-sxm-80gb": (989.4, 3350),
    "nvidia-h200-sxm-141gb": (989.4, 4800),
    "nvidia-l40s": (362.05, 864),
    "nvidia-l4": (121, 300),
    "amd-mi300x": (1307.4, 5300),
    "amd-mi100": (92.3, 1228.8),
}


def test_the_catalogue_has_every_promised_device() -> None:
    assert set(catalogue().names()) >= REQUIRED


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_every_figure_is_positive_and_has_a_source(name: str) -> None:
    device = catalogue().get(name)
    for table in (device.facts, device.matrix_flops_per_s, device.vector_flops_per_s, device.measured):
        for key, fact in table.items():
            assert fact.value > 0, (name, key)
            assert len(fact.source) > 8, (name, key, fact.source)


def test_peaks_agree_with_units_times_clock() -> None:
    for device in catalogue():
        if device.kind == "cpu":
            continue
        clock = device.required("boost_clock_hz") * device.required("compute_units")
        per_clock = device.vector_flops_per_s["fp32"].value / clock
        closest = min(abs(per_clock / lanes - 1) for lanes in FP32_PER_CLOCK[device.architecture])
        assert closest < 0.03, (device.name, per_clock)


@pytest.mark.parametrize(("name", "tflops", "gb_per_s"), [(k, *v) for k, v in DATASHEET.items()])
def test_peaks_agree_with_the_data_sheets(name: str, tflops: float, gb_per_s: float) -> None:
    device = catalogue().get(name)
    assert device.peak_flops_per_s("bf16", "matrix") == (pytest.approx(tflops * 1e12, rel=0.01), "bf16")
    assert device.required("memory_bandwidth_b_per_s") == pytest.approx(gb_per_s * 1e9, rel=0.01)


def test_a_dtype_without_hardware_runs_as_another_and_says_so() -> None:
    p100, a100 = catalogue().get("nvidia-p100-pcie-16gb"), catalogue().get("nvidia-a100-sxm-80gb")
    assert a100.peak_flops_per_s("fp8", "vector")[1] == "bf16"
    assert p100.peak_flops_per_s("bf16", "matrix")[1] == "fp32"
    assert p100.peak_flops_per_s("fp32", "vector") == p100.peak_flops_per_s("fp32", "matrix")


@pytest.mark.parametrize(
    ("name", "dtype"), [("nvidia-p100-pcie-16gb", "fp8"), ("nvidia-a100-sxm-80gb", "nvfp4"), ("a100", "fp8_block")]
)
def test_products_in_a_dtype_without_units_for_it_are_refused(name: str, dtype: str) -> None:
    with pytest.raises(SpecError, match=f"has no peak for {dtype}; it has: .*fp16"):
        catalogue().get(name).peak_flops_per_s(dtype, "matrix")


def test_aliases_reach_the_same_device_whatever_the_case() -> None:
    assert catalogue().get("H200").name == "nvidia-h200-sxm-141gb"
    assert catalogue().get("NVIDIA-L40S").name == "nvidia-l40s"


def test_aliases_are_unique() -> None:
    seen: dict[str, str] = {}
    for device in catalogue():
        for word in {device.name.lower(), *(alias.lower() for alias in device.aliases)}:
            assert seen.setdefault(word, device.name) == device.name, word


@pytest.mark.parametrize("name", ["nvidia-h300", "", "h20", None, 7])
def test_an_unknown_device_is_an_error_that_lists_the_known(name: object) -> None:
    with pytest.raises(SpecError, match="known: amd-epyc-9004-vm-2c") as refusal:
        catalogue().get(name)  # type: ignore[arg-type]
    assert refusal.value.field == "device"


MINE = """
name: my-gpu
kind: gpu
sources: {sheet: "my data sheet"}
facts:
  compute_units: {value: 10, source: sheet}
  boost_clock_hz: {value: 1e9, source: sheet}
  memory_bandwidth_b_per_s: {value: 1.0e+11, source: sheet}
  l2_b: {value: 1000000, source: sheet}
peak_flops_per_s:
  vector: {fp32: {value: 1.28e+12, source: sheet}}
"""


def test_a_users_device_joins_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    mine = load_device_file(path)
    assert Catalogue(extra=(mine,)).get("MY-GPU") is mine
    assert mine.facts["boost_clock_hz"].value == 1e9
    assert mine.facts["boost_clock_hz"].source == "my data sheet"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kind: gpu", "kind: tpu", "it is one of gpu, cpu"),
        ("kind: gpu", "", "lacks kind"),
        ("  l2_b: {value: 1000000, source: sheet}\n", "", "lacks the fact l2_b"),
        ("value: 10,", "value: -10,", "must be a positive number"),
        ("value: 10,", "value: many,", "must be a positive number"),
        ("{value: 10, source: sheet}", "{value: 10}", "has no source"),
        ("{value: 10, source: sheet}", "10", "has no source"),
        ("l2_b", "l2_bytes", "unknown fact 'l2_bytes'"),
        ("fp32", "fp33", "unknown dtype 'fp33'"),
        ("name: my-gpu", "name: [my-gpu", "not valid YAML"),
        ("vector: {fp32: {value: 1.28e+12, source: sheet}}", "vector: 3", "must be a mapping"),
    ],
)
def test_a_broken_device_file_says_what_is_wrong(old: str, new: str, says: str) -> None:
    assert old in MINE
    with pytest.raises(SpecError, match=says):
        parse_device(MINE.replace(old, new), origin="mine.yaml")


def test_a_device_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read the device file"):
        load_device_file(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="cannot read the device file"):
        load_device_file(tmp_path / "binary.yaml")
    with pytest.raises(SpecError, match="must be a mapping"):
        parse_device("- a\n- b", origin="list.yaml")
