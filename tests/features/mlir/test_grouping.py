"""Fusion: which operations run as one kernel, what crosses a kernel's border, and in which order kernels can run."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest
from kernelcast.features.mlir.kernels.grouping import group
from kernelcast.features.mlir.program import FREE, Group, Node
from kernelcast.features.mlir.types.graph import ValueType

DEAR = ("exp", "tanh", "div", "rsqrt", "sqrt", "log", "erf")


class Builder:
    """Nodes and types as an understanding of a function would give them."""

    def __init__(self) -> None:
        self.types: list[ValueType] = []
        self.nodes: list[Node] = []
        self.runs = 1.0

    def value(self, *shape: int | None, dtype: str = "fp32") -> int:
        self.types.append(ValueType("tensor", shape, dtype, "tensor"))
        return len(self.types) - 1

    def node(
        self, kind: str, operands: Sequence[int], shape: Sequence[int | None], dtype: str = "fp32", **fields: object
    ) -> int:
        result = self.value(*shape, dtype=dtype)
        known = self.types[result]
        elements = known.elements if known.is_static else 1.0
        costs: dict[str, object] = {
            "flops": 0.0 if kind in FREE or kind == "movement" else elements,
            "bytes_in": sum(self.types[v].nbytes for v in operands if self.types[v].is_static),
            "bytes_out": elements * known.itemsize_b,
            "loops": (1.0, elements, 1.0, 1.0),
            "runs": self.runs,
        }
        self.nodes.append(Node(f"test.{kind}", kind, tuple(operands), (result,), dtype, **{**costs, **fields}))  # type: ignore[arg-type]
        return result

    def element(self, operator: str, *operands: int, dtype: str = "fp32") -> int:
        shape = max((self.types[v] for v in operands), key=lambda kind: kind.elements).shape or ()
        elements = max(self.types[v].elements for v in operands)
        return self.node(
            "elementwise",
            operands,
            shape,
            dtype,
            transcendentals=elements * (operator in DEAR),
            detail={"operator": operator},
        )

    def move(self, operator: str, operands: Sequence[int], shape: Sequence[int], **fields: object) -> int:
        return self.node("movement", operands, shape, detail={"operator": operator}, **fields)

    def broadcast(self, value: int, *shape: int) -> int:
        return self.move("broadcast", (value,), shape)

    def reduce(self, operator: str, value: int) -> int:
        shape = self.types[value].shape or ()
        cols = float(shape[-1] or 1)
        rows = self.types[value].elements / cols
        return self.node("reduction", (value,), shape[:-1], flops=rows * cols, loops=(1.0, rows, 1.0, cols),
                         detail={"operator": operator, "axis": "inner"})  # fmt: skip

    def product(self, left: int, right: int) -> int:
        (m, k), n = self.types[left].shape or (), (self.types[right].shape or ())[1]
        return self.node(
            "contraction", (left, right), (m, n), flops=2.0 * m * n * k, loops=(1.0, float(m), float(n), float(k))
        )

    def groups(self, *outputs: int, **options: str) -> tuple[Group, ...]:
        return group(self.nodes, self.types, outputs, **options)  # type: ignore[arg-type]


def kinds(groups: Sequence[Group]) -> list[str]:
    return [item.kind for item in groups]


def test_a_chain_of_element_operations_is_one_kernel_that_reads_its_inputs_and_writes_its_result() -> None:
    b = Builder()
    x, y = b.value(64, 32), b.value(64, 32)
    total = b.element("add", x, y)
    (only,) = b.groups(b.element("tanh", b.element("mul", total, total)))
    assert only.kind == "elementwise"
    assert only.nodes == (0, 1, 2)
    assert only.bytes_in == 2 * 64 * 32 * 4
    assert only.bytes_out == 64 * 32 * 4
    assert only.flops == 3 * 64 * 32
    assert only.transcendentals == 64 * 32
    assert only.needs == ()


def test_a_result_that_is_returned_too_is_written_though_its_reader_is_in_the_same_kernel() -> None:
    b = Builder()
    first = b.element("exp", b.value(64, 32))
    (only,) = b.groups(first, b.element("neg", first))
    assert only.bytes_out == 2 * 64 * 32 * 4


def test_bias_and_activation_join_the_product_before_them_and_the_next_product_does_not() -> None:
    b = Builder()
    hidden = b.product(b.value(32, 128), b.value(128, 256))
    hidden = b.element("tanh", b.element("add", hidden, b.broadcast(b.value(256), 32, 256)))
    groups = b.groups(b.product(hidden, b.value(256, 64)))
    assert kinds(groups) == ["contraction", "contraction"]
    assert groups[0].bytes_in == (32 * 128 + 128 * 256 + 256) * 4
    assert groups[0].bytes_out == groups[1].bytes_in - 256 * 64 * 4 == 32 * 256 * 4
    assert groups[1].needs == (0,)


def test_an_element_operation_on_a_second_product_waits_for_both_and_joins_one() -> None:
    b = Builder()
    x = b.value(32, 64)
    item, two = b.product(x, b.value(64, 64)), b.product(x, b.value(64, 64))
    groups = b.groups(b.element("mul", item, two))
    assert kinds(groups) == ["contraction", "contraction"]
    assert groups[1].needs == (0,)


def test_a_reduction_takes_in_what_is_before_it_and_a_row_long_epilogue_but_not_what_is_as_large_as_its_input() -> None:
    b = Builder()
    x = b.value(64, 512)
    total = b.element("exp", b.reduce("sum", b.element("mul", x, x)))
    groups = b.groups(b.element("add", x, b.broadcast(total, 64, 512)))
    assert kinds(groups) == ["reduction", "elementwise"]
    assert groups[0].nodes == (0, 1, 2)
    assert groups[0].bytes_out == 64 * 4
    assert groups[1].bytes_in == (64 * 512 + 64) * 4


def test_a_dear_operation_with_two_users_is_done_once_and_a_cheap_one_in_each_of_them() -> None:
    def two_users(operator: str) -> tuple[Group, ...]:
        b = Builder()
        middle = b.element(operator, b.value(64, 512))
        return b.groups(b.reduce("sum", middle), b.reduce("max", middle))

    dear = two_users("exp")
    assert [item.flops for item in dear] == [2 * 64 * 512, 64 * 512]
    assert dear[1].needs == (0,)
    cheap = two_users("neg")
    assert [item.flops for item in cheap] == [2 * 64 * 512] * 2
    assert all(item.needs == () and 0 in item.nodes for item in cheap)


def test_a_cheap_chain_on_a_row_is_done_in_the_loop_it_is_broadcast_into_and_a_dear_one_is_not() -> None:
    def scaled(operator: str) -> tuple[Group, ...]:
        b = Builder()
        hidden = b.product(b.value(32, 64), b.value(64, 256))
        row = b.element(operator, b.value(256), b.value(256))
        return b.groups(b.element("add", hidden, b.broadcast(row, 32, 256)))

    assert kinds(scaled("mul")) == ["contraction"]
    assert sorted(kinds(scaled("div"))) == ["contraction", "elementwise"]


def test_a_group_never_waits_for_itself_through_another_one() -> None:
    b = Builder()
    x = b.element("exp", b.value(64, 64))
    through = b.product(x, b.value(64, 64))
    groups = b.groups(b.element("add", x, through))
    assert kinds(groups) == ["elementwise", "contraction"]
    assert groups[1].nodes == (1, 2)


def test_a_transposed_operand_is_a_flag_of_the_product_and_costs_nothing() -> None:
    b = Builder()
    turned = b.move("transpose", (b.value(256, 128),), (128, 256))
    (only,) = b.groups(b.product(b.value(32, 128), turned))
    assert only.spec is not None
    assert only.spec.variant == "nt"
    assert only.bytes_in == (32 * 128 + 256 * 128) * 4


def test_the_transpose_of_a_product_is_the_product_of_the_transposes() -> None:
    b = Builder()
    product = b.product(b.value(32, 128), b.value(128, 16))
    (only,) = b.groups(b.move("transpose", (product,), (16, 32)))
    assert str(only.spec) == "gemm[batch=1,m=16,n=32,k=128]:fp32 tt"


def test_a_transpose_that_something_else_reads_too_is_a_copy() -> None:
    b = Builder()
    turned = b.move("transpose", (b.value(256, 128),), (128, 256))
    groups = b.groups(b.product(b.value(32, 128), turned), b.node("sort", (turned,), (128, 256)))
    assert kinds(groups) == ["movement", "contraction", "sort"]
    assert str(groups[0].spec) == "copy[rows=256,cols=128]:fp32 transpose"


def test_a_slice_is_read_in_place_and_only_its_own_bytes_count() -> None:
    b = Builder()
    source = b.element("exp", b.value(64, 512))
    groups = b.groups(source, b.element("neg", b.move("slice", (source,), (64, 16))))
    assert kinds(groups) == ["elementwise", "elementwise"]
    assert groups[1].bytes_in == 64 * 16 * 4
    assert groups[1].needs == (0,)


def test_a_slice_that_is_returned_is_a_copy() -> None:
    b = Builder()
    (only,) = b.groups(b.move("slice", (b.value(64, 512),), (64, 16)))
    assert only.kind == "movement"


@pytest.mark.parametrize("operator", ["concatenate", "pad"])
def test_joining_and_padding_are_kernels_of_their_own(operator: str) -> None:
    b = Builder()
    first = b.element("exp", b.value(8, 16))
    groups = b.groups(b.element("neg", b.move(operator, (first,), (10, 16))))
    assert kinds(groups) == ["elementwise", "movement", "elementwise"]


def test_a_gather_counts_what_it_touches_and_takes_the_element_operations_after_it() -> None:
    b = Builder()
    table, places = b.value(50000, 64), b.value(16, dtype="int32")
    rows = b.node("gather", (table, places), (16, 64), bytes_in=16 * 4 + 16 * 64 * 4.0, detail={"operator": "gather"})
    (only,) = b.groups(b.element("add", rows, b.value(16, 64)))
    assert only.kind == "gather"
    assert only.bytes_in == 16 * 4 + 2 * 16 * 64 * 4
    assert only.bytes_out == 16 * 64 * 4


def test_what_depends_on_constants_alone_is_computed_beforehand() -> None:
    b = Builder()
    weights = b.node("constant", (), (256, 128))
    turned = b.move("transpose", (weights,), (128, 256))
    (only,) = b.groups(b.product(b.value(32, 128), b.element("mul", turned, turned)))
    assert only.nodes == (3,)
    assert only.bytes_in == (32 * 128 + 256 * 128) * 4


def test_a_constant_that_is_returned_after_an_operation_is_still_made() -> None:
    b = Builder()
    (only,) = b.groups(b.element("exp", b.node("constant", (), (256, 128))))
    assert only.bytes_out == 256 * 128 * 4


def test_a_constant_with_one_number_everywhere_is_not_read() -> None:
    b = Builder()
    (only,) = b.groups(b.element("add", b.value(64, 64), b.node("constant", (), (64, 64), detail={"splat": True})))
    assert only.bytes_in == 64 * 64 * 4


def test_operations_of_a_loop_do_not_join_those_around_it() -> None:
    b = Builder()
    x = b.element("exp", b.value(64, 64))
    b.runs = 20.0
    x = b.element("exp", b.element("exp", x))
    b.runs = 1.0
    groups = b.groups(b.element("exp", x))
    assert [(item.nodes, item.runs) for item in groups] == [((0,), 1.0), ((1, 2), 20.0), ((3,), 1.0)]


def test_bodies_of_two_loops_with_as_many_runs_stay_apart() -> None:
    b = Builder()
    b.runs = 5.0
    x = b.element("exp", b.value(64, 64))
    b.nodes.append(Node("scf.for", "control", (), (), ""))
    assert len(b.groups(b.element("exp", x))) == 2


def test_what_is_not_understood_stands_alone_and_has_no_spec() -> None:
    b = Builder()
    x = b.node("unknown", (b.element("exp", b.value(64, 64)),), (64, 64))
    groups = b.groups(b.element("exp", x))
    assert kinds(groups) == ["elementwise", "unknown", "elementwise"]
    assert groups[1].spec is None


def test_integers_that_only_compute_places_are_no_kernels() -> None:
    b = Builder()
    place = b.element("add", b.value(dtype="int32"), b.value(dtype="int32"), dtype="int32")
    (only,) = b.groups(b.element("add", b.value(64, 64), b.broadcast(place, 64, 64)))
    assert set(only.nodes) == {0, 1, 2} - {1}


def test_unknown_sizes_are_no_error() -> None:
    b = Builder()
    x = b.node("elementwise", (b.value(None, 64),), (None, 64), detail={"operator": "exp"})
    (only,) = b.groups(x)
    assert only.bytes_in == 0.0


def test_nothing_gives_no_groups() -> None:
    assert group([], [], []) == ()


def random_program(seed: int, count: int) -> tuple[Builder, list[int]]:
    rng = random.Random(seed)
    b = Builder()
    square = [b.value(16, 16) for _ in range(3)]
    rows: list[int] = [b.value(16)]
    for _ in range(count):
        choice = rng.random()
        if choice < 0.55:
            square.append(
                b.element(rng.choice(("add", "mul", "exp", "sub")), rng.choice(square[-12:]), rng.choice(square[-12:]))
            )
        elif choice < 0.65:
            square.append(b.product(rng.choice(square[-12:]), rng.choice(square[-12:])))
        elif choice < 0.75:
            rows.append(b.reduce(rng.choice(("sum", "max")), rng.choice(square[-12:])))
        elif choice < 0.85:
            square.append(b.broadcast(rng.choice(rows[-5:]), 16, 16))
        elif choice < 0.9:
            rows.append(b.element(rng.choice(("add", "exp")), rng.choice(rows[-5:]), rng.choice(rows[-5:])))
        elif choice < 0.95:
            square.append(b.move("transpose", (rng.choice(square[-12:]),), (16, 16)))
        else:
            square.append(b.node("sort", (rng.choice(square[-12:]),), (16, 16)))
    return b, [square[-1], rows[-1], rng.choice(square)]


@pytest.mark.parametrize("seed", range(60))
def test_any_program_is_cut_into_kernels_that_can_run_one_after_the_other(seed: int) -> None:
    b, outputs = random_program(seed, 120)
    groups = b.groups(*outputs)
    maker = {value: index for index, node in enumerate(b.nodes) for value in node.results}
    done: set[int] = set()
    for position, item in enumerate(groups):
        assert all(need < position for need in item.needs)
        inside = set(item.nodes)
        for index in item.nodes:
            waiting = list(b.nodes[index].operands)
            while waiting:
                made = maker.get(waiting.pop())
                if made is None or made in done or made in inside:
                    continue
                # Only what is done again where it is read may be missing, and then what it reads must be there.
                assert b.nodes[made].kind in {"movement", "elementwise"}, f"{made} is needed by {index} and not there"
                waiting += b.nodes[made].operands
        done |= inside
        assert item.bytes_in >= 0
        assert item.bytes_out > 0
        assert item.parallelism >= 1
    missing = {i for i, node in enumerate(b.nodes) if node.kind in ("contraction", "reduction", "sort")} - done
    assert not missing


def test_time_grows_with_the_number_of_operations_and_not_with_its_square() -> None:
    def seconds(count: int) -> float:
        b, outputs = random_program(1, count)
        start = time.process_time()
        b.groups(*outputs)
        return time.process_time() - start

    small = min(seconds(500) for _ in range(3))
    # 8 times as many operations: 64 times as long were it quadratic.
    assert min(seconds(4000) for _ in range(2)) < 32 * small


@pytest.mark.parametrize("shape", ["views", "fan", "exponentials"])
def test_odd_programs_take_no_long_time(shape: str) -> None:
    b = Builder()
    x = b.value(64, 64)
    if shape == "views":
        for _ in range(3000):
            x = b.node("view", (x,), (64, 64))
        out = [b.element("exp", x)]
    elif shape == "fan":
        first = b.element("neg", x)
        out = [b.reduce("sum", b.element("neg", first)) for _ in range(3000)]
    else:
        out = []
        for _ in range(1500):
            x = b.element("exp", b.node("view", (x,), (64, 64)))
        out.append(x)
    start = time.process_time()
    b.groups(*out)
    assert time.process_time() - start < 3.0
