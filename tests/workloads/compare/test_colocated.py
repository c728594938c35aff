"""Neighbours read from plain mappings, specs and answers."""

from __future__ import annotations

from typing import Any

import kernelcast
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.workloads.compare.colocated import MAX_KERNELS, colocated, colocation_answer, read_neighbours

CPU = "amd-epyc-7003-vm-2c"
COPY = {"family": "copy", "dtype": "fp32", "rows": 2048, "cols": 2048, "threads": 1}
SPEC = KernelSpec.of("copy", "fp32", rows=2048, cols=2048, threads=1)


def read(entries: Any) -> list[KernelSpec]:
    return read_neighbours(entries, catalogue().get(CPU), kernelcast.load())


def test_mappings_specs_and_answers_are_read_alike() -> None:
    answer = kernelcast.predict("copy", device=CPU, dtype="fp32", rows=2048, cols=2048, threads=1)
    nested = {"family": "copy", "dtype": "fp32", "sizes": {"rows": 2048, "cols": 2048}, "threads": 1, "device": CPU}
    assert read([COPY, nested, SPEC, answer]) == [SPEC] * 4


@pytest.mark.parametrize(
    ("entries", "field", "words"),
    [
        ([], "beside", "a list of 1 to 64 kernels, got a list of 0"),
        ("copy", "beside", "got str"),
        ([COPY] * (MAX_KERNELS + 1), "beside", "got a list of 65"),
        ([COPY, 3], "beside[1]", "not a number"),
        ([{**COPY, "family": "brew"}], "beside[0].family", "no kernel family 'brew'"),
        ([{"family": "copy", "dtype": "fp32", "rows": 2}], "beside[0].sizes.cols", "needs cols"),
        ([{**COPY, "device": "h100-sxm"}], "beside[0].device", "nvidia-h100-sxm-80gb, and the others are on"),
        ([{**COPY, "device": "brew"}], "beside[0].device", "no device 'brew'"),
        ([{**COPY, "count": 3}], "beside[0].count", "unknown field"),
        ([{"family": "gemm", "dtype": "fp8", "m": 8, "n": 8, "k": 8}], "beside[0].dtype", "no peak for fp8"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(entries: Any, field: str, words: str) -> None:
    with pytest.raises(SpecError) as error:
        read(entries)
    assert error.value.field == field
    assert words in str(error.value)


def test_the_answer_has_all_of_the_colocation() -> None:
    result = colocated(kernelcast.load(), [SPEC, SPEC], catalogue().get(CPU), 0.8)
    sent = colocation_answer(result)
    assert (sent.device, sent.coverage, sent.method) == (CPU, 0.8, "law")
    assert sent.kernels[0].alone.latency_s.value == result.kernels[0].alone.latency_s.value
    assert sent.kernels[1].slowdown is not None
    assert sent.kernels[1].kernel == str(SPEC)
