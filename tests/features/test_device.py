"""The catalogue: every figure sourced, peaks against arithmetic, unknown devices never replaced by another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kernelcast.features.device import (
    Catalogue,
    Device,
    catalogue,
    catalogue_with,
    load_device_file,
    parse_device,
)
from kernelcast.features.errors import SpecError

REQUIRED = {
    "amd-epyc-9005-vm-2c", "nvidia-p100-pcie-16gb", "nvidia-p4", "nvidia-t4", "nvidia-v100-pcie-32gb",
    "nvidia-a100-pcie-40gb", "nvidia-a100-pcie-80gb", "nvidia-a100-sxm-40gb", "nvidia-a100-sxm-80gb", "nvidia-l4",
    "nvidia-l40s", "nvidia-a40", "nvidia-h100-sxm-80gb", "nvidia-h100-pcie-80gb", "nvidia-h200-sxm-141gb",
    "nvidia-h20", "nvidia-l20",
    "nvidia-b200-sxm-180gb", "nvidia-gb200", "nvidia-rtx-4070", "nvidia-rtx-4090",
    "nvidia-rtx-pro-6000-blackwell-server", "amd-mi100", "amd-mi210", "amd-mi250", "amd-mi300x",
    "nvidia-k80", "nvidia-m40", "nvidia-p40", "nvidia-gtx-1080-ti", "nvidia-titan-x-maxwell", "nvidia-titan-x-pascal",
    "nvidia-titan-v", "nvidia-titan-rtx", "nvidia-v100-pcie-16gb", "nvidia-v100-sxm-16gb", "nvidia-rtx-2080-ti",
    "nvidia-rtx-3060", "nvidia-rtx-3060-laptop", "nvidia-rtx-3080", "nvidia-rtx-3090-ti", "nvidia-rtx-4060-ti",
    "nvidia-rtx-4080", "nvidia-rtx-5060", "nvidia-rtx-5070", "nvidia-rtx-5080", "nvidia-rtx-5090", "nvidia-rtx-a4000",
    "nvidia-rtx-6000-ada", "nvidia-a2", "nvidia-a10", "nvidia-a10g", "nvidia-a16", "nvidia-a30", "nvidia-l40",
    "nvidia-h100-nvl", "nvidia-h200-nvl", "nvidia-gh200-96gb", "nvidia-jetson-agx-orin-64gb", "amd-r9-nano", "amd-mi25",
    "amd-rx-vega-56", "amd-rx-vega-64", "amd-vega-frontier-edition", "amd-mi50", "amd-mi60", "amd-mi250-gcd",
    "amd-mi250x", "amd-mi250x-gcd", "amd-mi300a", "amd-mi308x", "amd-mi325x", "amd-mi355x", "amd-rx-6900-xt",
    "amd-rx-7900-xtx", "amd-pro-w6600", "intel-arc-a770-16gb", "intel-arc-b580", "intel-arc-pro-b60", "intel-max-1550",
    "apple-m1-pro", "apple-m1-max", "amd-epyc-7742", "amd-epyc-7763", "amd-epyc-9654", "amd-epyc-9755",
    "amd-ryzen-9-7950x", "amd-ryzen-9-9950x", "amd-ryzen-threadripper-3970x", "intel-core-i9-13900k",
    "intel-xeon-platinum-8280", "intel-xeon-platinum-8380", "intel-xeon-platinum-8480-plus",
    "intel-xeon-platinum-8568y-plus", "aws-graviton3", "aws-graviton4", "ampere-altra-q80-30",
    *(f"amd-epyc-{model}" for model in (
        "7302", "7452", "7502", "7662", "7543", "7713", "75f3", "7773x", "9124", "9354", "9454", "9554", "9684x", "9754",
        "9575f", "9965",
    )),
    *(f"amd-ryzen-{model}" for model in (
        "7-3700x", "5-5600x", "7-5700x3d", "7-5800x", "7-5800x3d", "9-5950x", "7-7800x3d", "9-7900x", "7-9800x3d",
        "threadripper-pro-3955wx", "threadripper-pro-5995wx", "threadripper-pro-7995wx",
    )),
    *(f"intel-xeon-{model}" for model in (
        "e5-2680-v4", "e5-2690-v4", "gold-6148", "gold-6154", "gold-6240", "gold-6248", "gold-6248r", "gold-6226r", "gold-6330",
        "gold-6338", "platinum-8358", "platinum-8360y", "gold-6430", "gold-6448y", "platinum-8462y-plus", "platinum-8468",
        "platinum-8490h", "max-9480", "6980p", "6972p", "6787p",
    )),
    "intel-core-i7-12700k", "intel-core-i9-14900k", "intel-core-ultra-9-285k", "aws-graviton2", "nvidia-grace-cpu",
    "ampere-altra-max-m128-30", "fujitsu-a64fx", "apple-m1-cpu", "apple-m1-pro-cpu", "apple-m1-max-cpu",
}  # fmt: skip

# FLOP per clock and unit of the ordinary fp32 units: NVIDIA architecture whitepapers (GK210: 192 FMA lanes; GP100, GV100,
# TU104, GA100: 64; GM200, GP104, GA10x, AD10x, GH100, Blackwell: 128), AMD whitepapers (64 lanes; packed on CDNA2, and 128
# on CDNA3, CDNA4, RDNA3 and RDNA4), Intel Xe (8 x 16 or 16 x 8 lanes), Apple (128 lanes).
FP32_PER_CLOCK = {
    "kepler": (384,), "maxwell": (256,), "pascal": (128, 256), "volta": (128,), "turing": (128,), "ampere": (128, 256),
    "ada": (256,), "hopper": (256,), "blackwell": (256,), "rtx-blackwell": (256,), "gcn3": (128,), "gcn5": (128,),
    "cdna1": (128,), "cdna2": (128, 256), "cdna3": (256,), "cdna4": (256,), "rdna2": (128,), "rdna3": (256,), "rdna4": (256,),
    "xe-hpg": (256,), "xe2": (256,), "xe-hpc": (256,), "apple7": (256,),
}  # fmt: skip

# FLOP per clock and core in fp32 and in bf16 products (None: no bf16 units): AMD, Intel, Arm and Fujitsu optimization guides,
# and of Apple's cores Dougall Johnson's measurements.
CPU_PER_CLOCK = {
    "zen2": (32, None), "zen3": (32, None), "zen4": (32, 64), "zen5": (64, 128), "broadwell": (32, None),
    "skylake-sp": (64, None), "cascade-lake": (64, None), "ice-lake": (64, None), "sapphire-rapids": (64, 2048),
    "emerald-rapids": (64, 2048), "granite-rapids": (64, 2048), "alder-lake": (32, None), "raptor-lake": (32, None),
    "arrow-lake": (32, None), "neoverse-n1": (16, None), "neoverse-v1": (32, 128), "neoverse-v2": (32, 128),
    "a64fx": (64, None), "firestorm": (32, None),
}  # fmt: skip

# FLOP per clock and unit of dense fp16 products with fp32 accumulation: whitepapers. GeForce cards of Turing and later, the
# A10G, the L20 and the L40 have half of what the professional cards of their architecture have, the H20 a quarter; H100 sheets
# count a lower clock.
FP16_MATRIX_PER_CLOCK = {
    "volta": (1024,), "turing": (512, 1024), "ampere": (512, 1024, 2048), "ada": (512, 1024), "hopper": (958, 3786, 4096),
    "gcn3": (128,), "gcn5": (256,), "cdna1": (1024,), "cdna2": (1024,), "cdna3": (2048,), "cdna4": (4096,), "rdna2": (256,),
    "rdna3": (512,), "rdna4": (1024,), "xe-hpg": (2048,), "xe2": (2048,), "xe-hpc": (4096,), "apple7": (256,),
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
    "nvidia-rtx-3080": (59.5, 760),
    "nvidia-rtx-5090": (209.5, 1792),
    "nvidia-rtx-5080": (112.6, 960),
    "nvidia-rtx-a4000": (76.7, 448),
    "nvidia-rtx-6000-ada": (364.2, 960),
    "nvidia-a10": (125, 600),
    "nvidia-a30": (165, 933),
    "nvidia-l40": (181.05, 864),
    "nvidia-gh200-96gb": (989.4, 4000),
    "amd-mi250x": (383, 3276.8),
    "amd-mi300a": (980.6, 5300),
    "amd-mi325x": (1307.4, 6000),
    "amd-mi355x": (2516.6, 8000),
    "amd-rx-7900-xtx": (122.8, 960),
    "intel-max-1550": (839, 3276.8),
}

# What public tables of measurements call their devices, and what they are here.
IN_TABLES = {
    "amd-gfx900-vega10": "amd-vega-frontier-edition",
    "amd-gfx906-vega20": "amd-mi60",
    "amd-gfx1030-navi21": "amd-rx-6900-xt",
    "gfx1030": "amd-rx-6900-xt",
    "amd-mi308x": "amd-mi308x",
    "nvidia-titan-x-maxwell": "nvidia-titan-x-maxwell",
    "nvidia-rtx-3060-laptop": "nvidia-rtx-3060-laptop",
    "Tesla V100-SXM2-16GB": "nvidia-v100-sxm-16gb",
    "NVIDIA A10G": "nvidia-a10g",
    "NVIDIA GeForce RTX 5090": "nvidia-rtx-5090",
    "intel-xeon-platinum-8568y+": "intel-xeon-platinum-8568y-plus",
    "MI355X": "amd-mi355x",
}


# What `kernelcast measure machine` wrote of virtual machines has measured peaks.
PROCESSORS = [item.name for item in catalogue() if item.kind == "cpu" and not item.name.endswith("-2c")]


def test_the_catalogue_has_every_promised_device() -> None:
    assert set(catalogue().names()) >= REQUIRED
    assert len(catalogue().names()) >= 178


@pytest.mark.parametrize("name", catalogue().names())
def test_every_figure_is_positive_and_has_a_source(name: str) -> None:
    device = catalogue().get(name)
    for table in (device.facts, device.matrix_flops_per_s, device.vector_flops_per_s, device.measured):
        for key, fact in table.items():
            assert fact.value > 0, (name, key)
            assert len(fact.source) > 8, (name, key, fact.source)


@pytest.mark.parametrize(
    ("per_clock", "unit", "dtype", "tolerance"),
    [(FP32_PER_CLOCK, "vector", "fp32", 0.03), (FP16_MATRIX_PER_CLOCK, "matrix", "fp16", 0.04)],
)
def test_peaks_agree_with_units_times_clock(
    per_clock: dict[str, tuple[int, ...]], unit: str, dtype: str, tolerance: float
) -> None:
    for device in catalogue():
        peaks = device.matrix_flops_per_s if unit == "matrix" else device.vector_flops_per_s
        # Every GPU has an fp32 peak, and its architecture must be known here; matrix units not every one has.
        if device.kind == "cpu" or dtype not in peaks or (unit == "matrix" and device.architecture not in per_clock):
            continue
        flops = peaks[dtype].value / (device.required("boost_clock_hz") * device.required("compute_units"))
        closest = min(abs(flops / listed - 1) for listed in per_clock[device.architecture])
        assert closest < tolerance, (device.name, flops)


def test_peaks_of_processors_agree_with_cores_times_clock() -> None:
    assert len(PROCESSORS) >= 70
    for device in map(catalogue().get, PROCESSORS):
        clock = device.required("boost_clock_hz") * device.required("compute_units")
        fp32, bf16 = CPU_PER_CLOCK[device.architecture]
        for dtype, per_clock in (("fp32", fp32), ("fp64", fp32 / 2)):
            vector, matrix = device.vector_flops_per_s[dtype].value, device.matrix_flops_per_s[dtype].value
            assert vector == pytest.approx(per_clock * clock, rel=1e-4), device.name
            # Apple's matrix units take fp32 and fp64 too.
            assert matrix == vector or device.architecture == "firestorm", device.name
        known = device.matrix_flops_per_s.get("bf16")
        assert (known and known.value) == (None if bf16 is None else pytest.approx(bf16 * clock, rel=1e-4)), device.name


_SPEC = re.compile(
    r"(?P<compute_units>\d+) (?:Neoverse \w+ |compute )?cores, (?:base (?P<base>[\d.]+) GHz, max\. (?:boost|turbo) )?"
    r"(?P<boost>[\d.]+) GHz(?:, (?P<l3>[\d.]+) MB (?:L3|cache|system level cache|last-level cache), (?P<tdp>\d+) W$)?"
)
_CHANNELS = re.compile(r"(?P<count>\d+)(?P<unit> channels of|-bit) \w+-(?P<mt_per_s>\d+), (?P<gb_per_s>[\d.]+) GB/s")


@pytest.mark.parametrize("name", PROCESSORS)
def test_facts_of_processors_are_those_that_their_sources_name(name: str) -> None:
    device = catalogue().get(name)
    spec = _SPEC.search(device.facts["compute_units"].source)
    # Processors of two kinds of core name their clocks by kind.
    assert spec is not None or "efficien" in device.facts["compute_units"].source
    for word, fact, scale in (
        ("compute_units", "compute_units", 1.0), ("base", "base_clock_hz", 1e9), ("boost", "boost_clock_hz", 1e9),
        ("l3", "l3_b", 2.0**20), ("tdp", "tdp_w", 1.0),
    ):  # fmt: skip
        known = device.facts.get(fact)
        # Of desktop processors the limit is the package's, from another source.
        if spec is not None and spec[word] is not None and known is not None and "package" not in known.source:
            assert known.value == pytest.approx(float(spec[word]) * scale, rel=1e-6), fact
    memory = device.facts["memory_bandwidth_b_per_s"]
    if channels := _CHANNELS.search(memory.source):
        width_b = int(channels["count"]) * (8 if "channels" in channels["unit"] else 0.125)
        assert width_b * int(channels["mt_per_s"]) * 1e6 == pytest.approx(memory.value, rel=0.01)
        # Sources print three digits and more.
        assert float(channels["gb_per_s"]) * 1e9 == pytest.approx(memory.value, rel=0.001)


@pytest.mark.parametrize("model", ["amd-mi250", "amd-mi250x"])
def test_a_die_is_half_of_its_board(model: str) -> None:
    board, die = catalogue().get(model), catalogue().get(f"{model}-gcd")
    for fact in ("compute_units", "memory_bandwidth_b_per_s", "memory_b", "l2_b"):
        assert die.required(fact) == board.required(fact) / 2
    for dtype, peak in board.matrix_flops_per_s.items():
        assert die.matrix_flops_per_s[dtype].value == pytest.approx(peak.value / 2, rel=1e-3)
    for fact in ("boost_clock_hz", "shared_memory_per_unit_b", "l1_per_unit_b", "registers_per_unit_b"):
        assert die.required(fact) == board.required(fact)


_RATE = re.compile(
    r"(?P<unit>matrix|vector)_(?P<dtype>fp64|fp32|tf32|fp16|bf16|fp8|nvfp4|int8)_(?:\w+_)?flops_per_s(?:_1t)?"
)


@pytest.mark.parametrize("name", catalogue().names())
def test_what_was_measured_does_not_exceed_the_datasheet(name: str) -> None:
    device = catalogue().get(name)
    peaks = {"matrix": device.matrix_flops_per_s, "vector": device.vector_flops_per_s}
    for fact_name, fact in device.measured.items():
        rate = _RATE.fullmatch(fact_name)
        if rate is not None:
            limit = peaks[rate["unit"]].get(rate["dtype"])
            assert limit is None or fact.value < 1.03 * limit.value, fact_name
        elif fact_name.startswith("bandwidth_dram"):
            assert fact.value < device.required("memory_bandwidth_b_per_s"), fact_name
        elif fact_name.startswith("power"):
            assert fact.value < 1.05 * device.required("tdp_w"), fact_name


@pytest.mark.parametrize(("table", "name"), IN_TABLES.items())
def test_names_in_public_tables_are_known(table: str, name: str) -> None:
    assert catalogue().get(table).name == name


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


@pytest.mark.parametrize("name", ["nvidia-h300", "", "h800", None, 7])
def test_an_unknown_device_is_an_error_that_says_where_all_are_listed(name: object) -> None:
    with pytest.raises(SpecError, match="`kernelcast devices`") as refusal:
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


def test_an_alias_is_found_without_reading_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def load(path: Path) -> Device:
        read.append(path.stem)
        return load_device_file(path)

    monkeypatch.setattr("kernelcast.features.device.load_device_file", load)
    known = Catalogue()
    assert known.get("NVIDIA H200").name == "nvidia-h200-sxm-141gb"
    assert "nvidia-h200-sxm-141gb" in read
    assert len(read) < 10
    with pytest.raises(SpecError, match="no device 'NVIDIA H2000'"):
        known.get("NVIDIA H2000")


def test_a_device_that_takes_a_shipped_ones_place_has_its_aliases_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MINE.replace("my-gpu", "nvidia-h200-sxm-141gb"))
    known = catalogue_with([path])
    assert known.get("h200") is known.get("nvidia-h200-sxm-141gb")
    assert known.get("NVIDIA H200").required("compute_units") == 10


def test_two_files_with_one_name_are_refused(tmp_path: Path) -> None:
    a, b = tmp_path / "a.yaml", tmp_path / "b.yaml"
    a.write_text(MINE)
    b.write_text(MINE.replace("my-gpu", "other") + "aliases: [My-GPU]\n")
    with pytest.raises(SpecError, match=r"b\.yaml: my-gpu is a name of a device in .*a\.yaml too"):
        catalogue_with([a, b])
    b.write_text(MINE + "aliases: [H100]\n")
    with pytest.raises(SpecError, match="h100 is a name of the shipped device nvidia-h100-sxm-80gb"):
        catalogue_with([b])


def test_local_files_that_cannot_be_used_are_told_and_hinder_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    folder = tmp_path / "devices"
    folder.mkdir()
    for name, text in (("a", MINE), ("b", MINE), ("c", MINE.replace("my-gpu", "nvidia-h200-sxm-141gb"))):
        (folder / f"{name}.yaml").write_text(text)
    (folder / "loop.yaml").symlink_to("loop.yaml")
    (folder / "absent.yaml").symlink_to("nowhere.yaml")
    (folder / "folder.yaml").mkdir()
    assert catalogue().get("my-gpu").required("compute_units") == 10
    assert catalogue().get("nvidia-h200-sxm-141gb").required("compute_units") == 132
    for said in (
        "b.yaml: my-gpu is a name of the device my-gpu, which counts",
        "c.yaml: nvidia-h200-sxm-141gb is a name of the device nvidia-h200-sxm-141gb, which counts",
        "loop.yaml: Too many levels of symbolic links",
        "absent.yaml: No such file",
        "folder.yaml is no regular file",
    ):
        assert said in caplog.text
    n = len(caplog.records)
    catalogue().get("my-gpu")
    assert len(caplog.records) == n
