"""From programs to numbers: finite whatever the program, of one width, and telling apart what runs differently."""

from __future__ import annotations

import numpy as np
import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.mlir.program import Group, Node, Program
from kernelcast.features.mlir.types.graph import ValueType
from kernelcast.features.mlir.vectors.device_limits import LEVELS, hardware
from kernelcast.features.mlir.vectors.group_columns import GROUP_NUMBERS, SHAPES, TERMS
from kernelcast.features.mlir.vectors.op_columns import NUMBERS, OPERATORS
from kernelcast.features.mlir.vectors.program_vector import (
    BIGRAM_NUMBERS,
    TOTAL_NUMBERS,
    Vectors,
    extract,
    schema_hash,
)

CPU, GPU = "amd-epyc-9005-vm-2c", "nvidia-t4"


def tensor(*shape: int, dtype: str = "fp32") -> ValueType:
    return ValueType("tensor", shape, dtype, "t")


def product(m: int = 64, k: int = 64, n: int = 64, operator: str = "exp", runs: float = 1.0) -> Program:
    types = [tensor(m, k), tensor(k, n), tensor(m, n), tensor(m, n)]
    nodes = [
        Node("stablehlo.dot_general", "contraction", (0, 1), (2,), "fp32", flops=2.0 * m * n * k, bytes_in=4.0 * k * (m + n),
             bytes_out=4.0 * m * n, loops=(1.0, float(m), float(n), float(k)), detail={"operator": "dot_general"}),
        Node(f"stablehlo.{operator}", "elementwise", (2,), (3,), "fp32", flops=float(m * n), bytes_in=4.0 * m * n,
             bytes_out=4.0 * m * n, loops=(1.0, float(m * n), 1.0, 1.0), detail={"operator": operator}),
    ]  # fmt: skip
    group = Group((0, 1), "contraction", "fp32", nodes[0].flops + nodes[1].flops, float(m * n), nodes[0].bytes_in,
                  nodes[1].bytes_out, runs, float(m * n), None, "", (), "product")  # fmt: skip
    return Program("main", "made up", nodes, [group], types, (0, 1), (3,), 0.0, ())


def numbers(program: Program, device: str = CPU) -> Vectors:
    return extract(program, catalogue().get(device))


def total(found: Vectors, name: str) -> float:
    return float(found.totals[TOTAL_NUMBERS.index(name)])


@pytest.mark.parametrize("device", [CPU, GPU])
def test_widths_and_finiteness(device: str) -> None:
    empty, passing = (Program("main", "r", [], [], [tensor(4)], own, own, 0.0, ()) for own in ((), (0,)))
    for program in (product(), empty, passing):
        found = numbers(program, device)
        assert found.totals.shape == (len(TOTAL_NUMBERS),)
        assert found.bigrams.shape == (len(BIGRAM_NUMBERS),)
        assert found.groups.shape == (len(program.groups), len(GROUP_NUMBERS))
        assert found.terms.shape == (len(program.groups), len(TERMS))
        assert found.ops.numbers.shape[1] == len(NUMBERS)
        for values in (found.totals, found.bigrams, found.groups, found.terms, found.ops.numbers):
            assert np.isfinite(values).all()
        assert (found.terms >= 0).all()


def test_names_are_told_once() -> None:
    for names in (TOTAL_NUMBERS, GROUP_NUMBERS, NUMBERS, TERMS):
        assert len(set(names)) == len(names)


def test_the_schema_hash_is_pinned_by_the_columns() -> None:
    assert schema_hash() == schema_hash()
    assert len(schema_hash()) == 16


def test_totals_say_what_the_program_does() -> None:
    found = numbers(product(64, 128, 32))
    assert total(found, "log flops") == pytest.approx(np.log2(1 + 2 * 64 * 128 * 32 + 64 * 32))
    assert total(found, "log groups") == 1.0
    assert total(found, "log ops") == pytest.approx(np.log2(3))
    assert total(found, "log arguments b") == pytest.approx(np.log2(1 + 4 * (64 * 128 + 128 * 32)))
    assert total(found, "fp32 share") == 1.0
    assert total(found, "dialect stablehlo") == 1.0


def test_runs_multiply_seconds_on_paper() -> None:
    once, often = numbers(product()), numbers(product(runs=10.0))
    assert often.terms == pytest.approx(10 * once.terms)


def test_operators_that_cost_differently_are_told_apart() -> None:
    sine, plain = numbers(product(operator="sin")), numbers(product(operator="add"))
    assert sine.terms[0, TERMS.index("sine")] > 0
    assert plain.terms[0, TERMS.index("sine")] == 0
    assert plain.terms[0, TERMS.index("plain")] > 0
    strange = numbers(product(operator="never_heard_of"))
    assert strange.terms[0, TERMS.index("other")] > 0


def test_an_operator_is_of_one_class() -> None:
    names = [name for own in OPERATORS.values() for name in own.split()]
    assert len(set(names)) == len(names)


def test_thin_products_are_of_another_shape() -> None:
    assert SHAPES[numbers(product(64, 64, 64)).shapes[0]] == ""
    assert SHAPES[numbers(product(1, 64, 64)).shapes[0]] == "thin"


def test_ragged_columns_cost_the_vectors_they_fill() -> None:
    even, ragged = (numbers(product(64, 64, n)).terms[0] for n in (64, 65))
    compute, padded = TERMS.index("compute"), TERMS.index("padded")
    assert even[padded] == pytest.approx(even[compute])
    assert ragged[padded] / ragged[compute] == pytest.approx(80 / 65, rel=1e-6)


def test_outputs_no_group_makes_are_copied() -> None:
    program = product()
    passing = Program(program.function, "r", program.nodes, program.groups, program.types, (0, 1), (3, 0), 0.0, ())
    assert numbers(program).passed_s == 0.0
    assert numbers(passing).passed_s > 0.0


def test_levels_hold_more_and_deliver_less() -> None:
    for name in catalogue().names():
        on = hardware(catalogue().get(name), None)
        assert len(on.sizes_b) == len(on.rates_b_per_s) == len(LEVELS)
        assert (np.diff(on.sizes_b) >= 0).all()
        assert on.rates_b_per_s[-1] <= on.rates_b_per_s[0]
        assert on.level(1.0) == 0
        assert on.level(1e15) == len(LEVELS) - 1
        for dtype in ("fp32", "bf16", "i1", "index", "f8E4M3", "complex<f32>"):
            assert on.peak_flops_per_s(dtype, "contraction") > 0


def test_half_the_cores_have_half_the_peak() -> None:
    device = catalogue().get(CPU)
    item, two = hardware(device, 1), hardware(device, 2)
    assert two.peak_flops_per_s("fp32", "contraction") == pytest.approx(
        2 * item.peak_flops_per_s("fp32", "contraction")
    )


CPUS = [name for name in catalogue().names() if catalogue().get(name).kind == "cpu"]


@pytest.mark.parametrize("name", CPUS)
@pytest.mark.parametrize("threads", [1, 2, None])
def test_a_level_further_out_gives_no_more_and_one_core_no_more_than_cores_do(name: str, threads: int | None) -> None:
    item = hardware(catalogue().get(name), threads)
    sheet, rates = item.datasheet_rates_b_per_s, item.rates_b_per_s
    assert (np.diff(sheet[:3]) <= 0).all()
    assert (rates[:3] <= sheet[:3] * (1 + 1e-9)).all()
    assert rates[-1] <= sheet[-1] * (1 + 1e-9)
    one = hardware(catalogue().get(name), 1).rates_b_per_s
    # 11 to 37 GB/s of memory were measured for one core, 30 to 126 of the last cache.
    assert 5e9 < one[-1] < 6e10
    assert 2e10 < one[2] < 2e11
    assert (one <= rates * (1 + 1e-9)).all()
