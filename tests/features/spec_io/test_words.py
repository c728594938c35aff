"""Kernels and devices in the words of a person: how they are read, what is told of it, and what is refused."""

from __future__ import annotations

import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import families
from kernelcast.features.spec_io import words
from kernelcast.features.spec_io.reading import read_spec
from kernelcast.features.spec_io.words import read_device, read_family, read_kernel, read_number, shipped_names

GEMM = {"m": 4096, "n": 4096, "k": 4096}


@pytest.mark.parametrize(
    ("family", "given", "read_as"),
    [
        ("gemm", "m=4096 n=4096 k=4096 dtype=bf16", ""),
        ("gemm", "dtype=bf16 k=4096 m=4096 n=4096", ""),
        ("matmul", "m=4096 n=4096 k=4096 dtype=bf16", "gemm m=4096 n=4096 k=4096 dtype=bf16"),
        ("gemm", "M=4k N=4K K=4_096 DTYPE=BF16", "gemm m=4096 n=4096 k=4096 dtype=bf16"),
        ("gemm", "4096x4096x4096 bfloat16", "gemm m=4096 n=4096 k=4096 dtype=bf16"),
        ("GEMM", "4k×4kX4k dtype=bf16", "gemm m=4096 n=4096 k=4096 dtype=bf16"),
    ],
)
def test_ways_to_write_one_kernel(family, given, read_as):
    read = read_kernel(family, given.split())
    assert read.read_as == read_as
    spec, _ = read_spec(read.request | {"device": "h100-sxm"}, catalogue())
    assert (spec.family, dict(spec.dims), spec.dtype) == ("gemm", {"batch": 1, **GEMM}, "bf16")


@pytest.mark.parametrize(
    ("family", "given", "request_"),
    [
        ("bmm", "8x128x256x64", {"family": "gemm", "sizes": {"batch": 8, "m": 128, "n": 256, "k": 64}, "variant": "batched"}),
        ("RMS-Norm", "4kx1e3", {"family": "layernorm", "sizes": {"rows": 4096, "cols": 1000}, "variant": "rmsnorm"}),
        ("relu", "1.5kx8", {"family": "elementwise", "sizes": {"rows": 1536, "cols": 8}, "variant": "relu"}),
        ("layernorm", "8x8 rmsnorm", {"family": "layernorm", "sizes": {"rows": 8, "cols": 8}, "variant": "rmsnorm"}),
        ("gemm", "m=1 tile_m=64 threads=2", {"family": "gemm", "sizes": {"m": 1}, "config": {"tile_m": 64}, "threads": 2}),
        ("gemm", "m=-3", {"family": "gemm", "sizes": {"m": -3}}),
        ("layernorm", "tokens=64 hidden=4k", {"family": "layernorm", "sizes": {"rows": 64, "cols": 4096}}),
        (
            "attention", "heads=32 seq=2k d_head=128",
            {"family": "attention",
             "sizes": {"batch": 1, "heads": 32, "kv_heads": 32, "q_len": 2048, "kv_len": 2048, "head_dim": 128}},
        ),
        (
            "attention", "b=8 h=32 num_kv_heads=8 q_len=1 kv_len=512 head_dim=64",
            {"family": "attention",
             "sizes": {"batch": 8, "heads": 32, "kv_heads": 8, "q_len": 1, "kv_len": 512, "head_dim": 64}},
        ),
    ],
)  # fmt: skip
def test_what_words_say(family, given, request_):
    assert read_kernel(family, given.split()).request == {"config": {}} | request_


@pytest.mark.parametrize(
    ("family", "given", "said"),
    [
        ("gem", "", "no kernel family 'gem'; did you mean gemm?"),
        ("qqq", "", "no kernel family 'qqq'"),
        ("gemm", "4kx4k", "4kx4k has 2 sizes; a shape of gemm is m×n×k or batch×m×n×k"),
        ("gemm", "m=1.3k", "m must be a whole number, got '1.3k'"),
        ("gemm", "m=x", "m must be a whole number, got 'x'"),
        ("gemm", "q=4", "gemm has no 'q'; it takes: batch, m, n, k, dtype"),
        ("gemm", "m=1 M=2", "m is given twice"),
        ("gemm", "4096x1x1 m=2", "m is given twice"),
        ("gemm", "blue", "'blue' is not name=value"),
        ("gemm", "seq=4", "gemm has no 'seq'"),
        ("attention", "seq=4 kv_len=8", "kv_len is given twice"),
        ("gemm", "dtype=bf17", "no dtype 'bf17'"),
    ],
)
def test_words_that_mean_nothing_are_refused(family, given, said):
    with pytest.raises(SpecError) as error:
        read_kernel(family, given.split())
    assert said in str(error.value)
    assert error.value.field


def test_every_synonym_is_a_family_with_that_variant_and_hides_none():
    for name in words._FAMILIES:
        family, variant = read_family(name)
        assert variant in (*family.variants, "")
        assert name not in families()


@pytest.mark.parametrize(
    ("given", "name", "remark"),
    [
        ("nvidia-h100-sxm-80gb", "nvidia-h100-sxm-80gb", ""),
        ("h100-sxm", "nvidia-h100-sxm-80gb", ""),
        ("RTX 4090", "nvidia-rtx-4090", ""),
        ("rtx4090", "nvidia-rtx-4090", ""),
        ("rtx-4060", "nvidia-rtx-4060", ""),
        ("a10", "nvidia-a10", ""),
        ("4060", "nvidia-rtx-4060", "4060 is read as nvidia-rtx-4060; it may also be nvidia-rtx-4060-ti"),
        ("H100", "nvidia-h100-sxm-80gb",
         "H100 is read as nvidia-h100-sxm-80gb; it may also be nvidia-h100-nvl, nvidia-h100-pcie-80gb"),
        ("A100 80GB", "nvidia-a100-sxm-80gb",
         "A100 80GB is read as nvidia-a100-sxm-80gb; it may also be nvidia-a100-pcie-80gb"),
        ("mi300", "amd-mi300x", "mi300 is read as amd-mi300x; it may also be amd-mi300a"),
        ("h100sxm", "nvidia-h100-sxm-80gb", "h100sxm is read as nvidia-h100-sxm-80gb"),
        ("xeon-8480", "intel-xeon-platinum-8480-plus", "xeon-8480 is read as intel-xeon-platinum-8480-plus"),
    ],
)  # fmt: skip
def test_names_of_devices(given, name, remark):
    device, said = read_device(given, catalogue())
    assert (device.name, said) == (name, remark)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("titan x", "'titan x' may be nvidia-titan-x-maxwell, nvidia-titan-x-pascal; name one of them"),
        ("epyc", "'epyc' may be amd-epyc-7003-vm-2c, amd-epyc-7302, amd-epyc-7452 or 20 others"),
        ("h900", "no device 'h900'; did you mean "),
        ("", "no device ''"),
        ("h10", "no device 'h10'; did you mean "),
    ],
)
def test_a_device_is_never_chosen_where_no_name_says_so(given, said):
    with pytest.raises(SpecError) as error:
        read_device(given, catalogue())
    assert str(error.value).startswith(said)
    assert len(error.value.advice.split(",")) <= 3


def test_files_of_shipped_devices_are_called_like_them():
    assert set(shipped_names()) == {device.name for device in catalogue() if catalogue().shipped(device.name.lower())}


@pytest.mark.parametrize(("text", "value"), [("4k", 4096), ("2M", 2**21), ("1g", 2**30), ("1e6", 10**6), ("007", 7)])
def test_numbers(text, value):
    assert read_number(text, "m") == value
