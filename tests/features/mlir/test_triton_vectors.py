"""Vectors of Triton functions: what moves them, and that the reader does not."""

import re
import time

import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.features.mlir.triton.axis_info import axes_of
from kernelcast.features.mlir.triton.layouts import blocked, layouts_of
from kernelcast.features.mlir.triton.program_order import Options, flow_of, register_limit, triton_function
from kernelcast.features.mlir.triton.vectors import NAMES, extract, schema_hash
from kernelcast.features.mlir.understanding import no_native_parser, read

ADD = """\
module {
  tt.func public @add(
    %x: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %y: !tt.ptr<f32> {tt.divisibility = 16 : i32},
    %n: i32 {tt.divisibility = 16 : i32}
  ) attributes {noinline = false} {
    %c = arith.constant 1024 : i32
    %p = tt.get_program_id x : i32
    %o = arith.muli %p, %c : i32
    %r = tt.make_range {end = 1024 : i32, start = 0 : i32} : tensor<1024xi32>
    %s = tt.splat %o : i32 -> tensor<1024xi32>
    %i = arith.addi %s, %r : tensor<1024xi32>
    %b = tt.splat %n : i32 -> tensor<1024xi32>
    %m = arith.cmpi slt, %i, %b : tensor<1024xi32>
    %px = tt.splat %x : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
    %ax = tt.addptr %px, %i : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
    %v = tt.load %ax, %m : tensor<1024x!tt.ptr<f32>>
    %e = math.exp %v : tensor<1024xf32>
    %py = tt.splat %y : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
    %ay = tt.addptr %py, %i : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
    tt.store %ay, %e, %m : tensor<1024x!tt.ptr<f32>>
    tt.return
  }
}
"""

MATMUL = """\
module {
  tt.func public @matmul(
    %a: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %b: !tt.ptr<f16> {tt.divisibility = 16 : i32},
    %c: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %k: i32 {tt.divisibility = 16 : i32}
  ) attributes {noinline = false} {
    %zero = arith.constant dense<0.000000e+00> : tensor<128x128xf32>
    %lda = arith.constant dense<64> : tensor<128x1xi32>
    %ldb = arith.constant dense<128> : tensor<64x1xi32>
    %ldc = arith.constant dense<128> : tensor<128x1xi32>
    %step = arith.constant 64 : i32
    %start = arith.constant 0 : i32
    %rm = tt.make_range {end = 128 : i32, start = 0 : i32} : tensor<128xi32>
    %rk = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>
    %m1 = tt.expand_dims %rm {axis = 1 : i32} : tensor<128xi32> -> tensor<128x1xi32>
    %n1 = tt.expand_dims %rm {axis = 0 : i32} : tensor<128xi32> -> tensor<1x128xi32>
    %k1 = tt.expand_dims %rk {axis = 1 : i32} : tensor<64xi32> -> tensor<64x1xi32>
    %k0 = tt.expand_dims %rk {axis = 0 : i32} : tensor<64xi32> -> tensor<1x64xi32>
    %am = arith.muli %m1, %lda : tensor<128x1xi32>
    %amb = tt.broadcast %am : tensor<128x1xi32> -> tensor<128x64xi32>
    %k0b = tt.broadcast %k0 : tensor<1x64xi32> -> tensor<128x64xi32>
    %ao = arith.addi %amb, %k0b : tensor<128x64xi32>
    %pa = tt.splat %a : !tt.ptr<f16> -> tensor<128x64x!tt.ptr<f16>>
    %aa = tt.addptr %pa, %ao : tensor<128x64x!tt.ptr<f16>>, tensor<128x64xi32>
    %bk = arith.muli %k1, %ldb : tensor<64x1xi32>
    %bkb = tt.broadcast %bk : tensor<64x1xi32> -> tensor<64x128xi32>
    %n1b = tt.broadcast %n1 : tensor<1x128xi32> -> tensor<64x128xi32>
    %bo = arith.addi %bkb, %n1b : tensor<64x128xi32>
    %pb = tt.splat %b : !tt.ptr<f16> -> tensor<64x128x!tt.ptr<f16>>
    %ab = tt.addptr %pb, %bo : tensor<64x128x!tt.ptr<f16>>, tensor<64x128xi32>
    %sum = scf.for %i = %start to %k step %step iter_args(%acc = %zero) -> (tensor<128x128xf32>)  : i32 {
      %va = tt.load %aa : tensor<128x64x!tt.ptr<f16>>
      %vb = tt.load %ab : tensor<64x128x!tt.ptr<f16>>
      %d = tt.dot %va, %vb, %acc, inputPrecision = tf32 : tensor<128x64xf16> * tensor<64x128xf16> -> tensor<128x128xf32>
      scf.yield %d : tensor<128x128xf32>
    }
    %h = arith.truncf %sum : tensor<128x128xf32> to tensor<128x128xf16>
    %cm = arith.muli %m1, %ldc : tensor<128x1xi32>
    %cmb = tt.broadcast %cm : tensor<128x1xi32> -> tensor<128x128xi32>
    %n1c = tt.broadcast %n1 : tensor<1x128xi32> -> tensor<128x128xi32>
    %co = arith.addi %cmb, %n1c : tensor<128x128xi32>
    %pc = tt.splat %c : !tt.ptr<f16> -> tensor<128x128x!tt.ptr<f16>>
    %ac = tt.addptr %pc, %co : tensor<128x128x!tt.ptr<f16>>, tensor<128x128xi32>
    tt.store %ac, %h : tensor<128x128x!tt.ptr<f16>>
    tt.return
  }
}
"""


def numbers(text: str, target: str = "sm_90", num_warps: int = 4, num_stages: int = 3, native=no_native_parser):
    module = read(text, native=native)
    x = extract(module, triton_function(module, None), Options(target, num_warps, num_stages))
    assert x.shape == (len(NAMES),)
    assert np.isfinite(x).all()
    return x


def of(x, name: str) -> float:
    return float(2.0 ** x[NAMES.index(name)] - 1.0)


def test_names_are_told_apart_and_hashed():
    assert len(set(NAMES)) == len(NAMES)
    assert re.fullmatch(r"[0-9a-f]{16}", schema_hash())


@pytest.mark.parametrize("text", [ADD, MATMUL], ids=["add", "matmul"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_both_readers_give_the_same_numbers(text, target):
    pytest.importorskip("triton")
    native = numbers(text, target, native=None)
    assert dict(zip(NAMES, native, strict=True)) == pytest.approx(dict(zip(NAMES, numbers(text, target), strict=True)))


def test_accesses_are_as_wide_as_arguments_are_known_to_be_divisible():
    # 1024 elements over 128 threads are 8 each: two instructions of 128 bits.
    assert of(numbers(ADD), "loads") == pytest.approx(2)
    assert of(numbers(ADD), "stores") == pytest.approx(2)
    unaligned = ADD.replace("%n: i32 {tt.divisibility = 16 : i32}", "%n: i32")
    # A bound that may end anywhere masks every element by itself.
    assert of(numbers(unaligned), "loads") == pytest.approx(8)


def test_more_warps_hold_fewer_elements_each():
    few, many = numbers(ADD, num_warps=1), numbers(ADD, num_warps=8)
    assert of(few, "data most") > of(many, "data most")
    assert of(few, "instructions") > of(many, "instructions")


def test_a_product_accumulates_in_registers_and_its_tiles_wait_in_shared_memory():
    new, old = numbers(MATMUL, "sm_90"), numbers(MATMUL, "sm_80")
    # 128 x 128 sums over 128 threads.
    assert of(new, "accumulators in loops") == pytest.approx(128)
    assert of(new, "data most in loops") >= 128
    assert of(new, "wgmma") > 0
    assert of(new, "mma") == 0
    assert of(old, "wgmma") == 0
    assert of(old, "mma") > 0
    tiles_b = 128 * 64 * 2 + 64 * 128 * 2
    assert of(new, "in flight b") == pytest.approx(3 * tiles_b)
    assert of(old, "in flight b") == pytest.approx(2 * tiles_b)


@pytest.mark.parametrize(("stages", "tiles"), [(1, 0), (2, 1), (3, 2), (5, 4)])
def test_stages_keep_tiles_in_flight(stages, tiles):
    assert of(numbers(MATMUL, "sm_80", num_stages=stages), "in flight b") == pytest.approx(tiles * 32768)


def test_registers_of_a_thread_are_limited_by_its_block():
    assert [register_limit(warps) for warps in (1, 4, 8, 16, 32)] == [255, 255, 255, 128, 64]


def test_a_block_is_spread_along_its_fastest_dimension_first():
    spread = blocked((64, 128), 4, 8, 1)
    assert spread.per_thread == (8, 8)
    assert spread.lanes == (2, 16)
    assert spread.warps == (4, 1)


def test_runs_are_followed_through_arithmetic():
    module = read(ADD, native=no_native_parser)
    function = module.functions[0]
    flow = flow_of(function)
    axes = axes_of(function, module.types, flow)
    load = next(op for op in flow.steps if op.name == "tt.load")
    address, mask = (axes[value] for value in load.operands[:2])
    assert address.contiguity == (1024,)
    assert address.divisibility == (16,)
    assert mask.constancy == (16,)
    accesses = layouts_of(flow, module.types, axes, 90, 4).accesses
    assert [access.width for access in accesses.values()] == [4, 4]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"target": "sm_75"}, "sm_80"),
        ({"target": "sm_90", "num_warps": 3}, "num_warps"),
        ({"target": "sm_90", "num_warps": True}, "num_warps"),
        ({"target": "sm_90", "num_stages": 0}, "num_stages"),
        ({"target": "sm_90", "num_stages": 1.5}, "num_stages"),
    ],
)
def test_options_there_are_none_of_are_refused(given, said):
    with pytest.raises(SpecError, match=said):
        Options(**given)


def test_a_text_without_triton_is_refused_and_functions_are_told_apart():
    plain = "func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
    with pytest.raises(SpecError, match="no Triton IR"):
        triton_function(read(plain, native=no_native_parser), None)
    body = ADD.removeprefix("module {\n").removesuffix("}\n")
    two = read("module {\n" + body + body.replace("@add", "@other") + "}\n", native=no_native_parser)
    with pytest.raises(SpecError, match="add, other"):
        triton_function(two, None)
    assert triton_function(two, "other").name == "other"
    with pytest.raises(SpecError, match="nothing"):
        triton_function(two, "nothing")


@pytest.mark.parametrize(
    "text",
    [
        "tt.func @f() { tt.return }",
        "tt.func @f(%p: !tt.ptr<f32>) { %0 = tt.load %p : !tt.ptr<f32> \n tt.return }",
        "tt.func @f(%x: tensor<0xf32>) { %0 = math.exp %x : tensor<0xf32> \n tt.return }",
        "tt.func @f(%x: tensor<?x4xf32>) { %0 = tt.load %x : tensor<?x4xf32> \n tt.return }",
        "tt.func @f(%x: tensor<4x4xf32>) { %0 = tt.dot %x, %x, %x : tensor<4x4xf32> \n tt.return }",
        "tt.func @f(%x: tensor<4xf32>) { %0 = tt.reduce %x {axis = 9 : i32} : tensor<4xf32> \n tt.return }",
        "tt.func @f(%x: tensor<4xf32>) { %0 = tt.expand_dims %x {axis = 99 : i32} : tensor<4xf32> -> tensor<4x1xf32> }",
        "tt.func @f() { %0 = tt.make_range {end = -4 : i32, start = 7 : i32} : tensor<4xi32> \n tt.return }",
        "tt.func @f() { tt.load \n tt.store \n tt.dot \n tt.reduce \n tt.trans \n tt.splat \n tt.return }",
        "tt.func @f(%n: i32) { scf.for %i = %n to %n step %n : i32 { tt.nonsense } \n tt.return }",
        "tt.func @f() { %0 = tt.trans %0 : tensor<4x4xf16> -> tensor<4x4xf16> \n"
        " %1 = tt.dot %0, %0, %1 : tensor<4x4xf16> * tensor<4x4xf16> -> tensor<4x4xf32> \n tt.return }",
        "tt.func @f() { scf.for { } \n scf.while { } \n tt.descriptor_store \n tt.atomic_rmw \n tt.return }",
    ],
)
def test_odd_texts_give_numbers(text):
    for warps in (1, 32):
        numbers(text, num_warps=warps)


def test_whatever_is_cut_out_of_a_text_still_gives_numbers_or_a_sentence():
    lines = MATMUL.splitlines()
    for skipped in range(2, len(lines) - 2, 2):
        text = "\n".join(lines[:skipped] + lines[skipped + 1 :])
        try:
            numbers(text, "sm_80", num_stages=2)
        except SpecError:
            continue


def test_long_texts_take_seconds_not_minutes():
    head, _, body = MATMUL.partition("      %va")
    loads, _, tail = body.partition("      scf.yield")
    dots = "".join(
        f"      %q{i} = tt.dot %va, %vb, %d, inputPrecision = tf32 : "
        "tensor<128x64xf16> * tensor<64x128xf16> -> tensor<128x128xf32>\n"
        for i in range(4000)
    )
    began = time.monotonic()
    numbers(head + "      %va" + loads + dots + "      scf.yield" + tail)
    assert time.monotonic() - began < 20
