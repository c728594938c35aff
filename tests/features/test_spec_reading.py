"""Specs of one request read in a row: what one shares with the one before is not checked twice, and nothing passes for it."""

from __future__ import annotations

from typing import Any

import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.spec_io.reading import SpecReader, read_spec

GEMM = {"family": "gemm", "device": "nvidia-h200-sxm-141gb", "dtype": "bf16", "impl": "torch"}
ON_CPU = {"family": "softmax", "device": "amd-epyc-9005-vm-2c", "dtype": "fp32"}
EXPERTS = {"family": "moe", "device": "nvidia-h200-sxm-141gb", "dtype": "bf16"}


def _alone(item: Any) -> Any:
    """A spec and its device, or what is wrong with it."""
    try:
        return read_spec(item, catalogue())
    except SpecError as error:
        return str(error), error.field


def _in_turn(items: list[Any]) -> list[Any]:
    reader, read = SpecReader(catalogue()), []
    for item in items:
        try:
            read.append(reader.read(item))
        except SpecError as error:
            read.append((str(error), error.field))
    return read


@pytest.mark.parametrize(
    "items",
    [
        [{**GEMM, "sizes": {"m": m, "n": 64, "k": 64}} for m in (1, 2, 4096.0, 2**40, True, "8", None, 0, 7)],
        [{**GEMM, "sizes": sizes} for sizes in ({"m": 1, "n": 2, "k": 3}, {"m": 1, "n": 2}, {"m": 1, "q": 2}, [], None, {})],
        [{**ON_CPU, "threads": threads, "sizes": {"rows": 8, "cols": 8}} for threads in (1, True, 1.0, None, "1", 1)],
        [{**EXPERTS, "sizes": {"tokens": tokens}} for tokens in (1, 2)],
        [{**GEMM, "sizes": {"m": 1, "n": 2, "k": 3}}, GEMM, {"sizes": {"m": 1}}, 3, None, {**GEMM, "sizes": {"m": 4}}],
        [{**GEMM, "dtype": dtype, "sizes": {"m": 1, "n": 2, "k": 3}} for dtype in ("bf16", "bfloat16", "half", 16, "bf16")],
        [{**GEMM, "sizes": {"m": 1, "n": 2, "k": 3}}, {"sizes": {"m": 5, "n": 2, "k": 3}, **GEMM}],
        [{**GEMM, "coverage": 0.5, "sizes": {"m": 1, "n": 2, "k": 3}}] * 2,
    ],
)  # fmt: skip
def test_a_spec_is_read_as_it_would_be_alone(items: list[Any]) -> None:
    assert _in_turn(items) == [_alone(item) for item in items]


def test_sizes_imply_the_variant_of_each_spec() -> None:
    item = {"family": "attention", "device": "nvidia-h200-sxm-141gb", "dtype": "bf16"}
    sizes = {"batch": 1, "heads": 8, "kv_heads": 8, "q_len": 1, "kv_len": 512, "head_dim": 128}
    items = [{**item, "sizes": {**sizes, "q_len": q_len}} for q_len in (1, 512, 1)]
    assert _in_turn(items) == [_alone(each) for each in items]
