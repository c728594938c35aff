"""kernelcast-tile cuts products into the tiles the model ranks first, and the result stays right."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from kernelcast.features.tuning.kind import get_kind
from kernelcast.plugins.cost_model import CostModel

from .conftest import CPU, RunPass, tile_task

pytestmark = pytest.mark.slow

KIND = get_kind("mlir-opt-tiles")
RUNNER_LIBRARIES = [
    Path("/usr/lib/llvm-19/lib") / name for name in ("libmlir_runner_utils.so", "libmlir_c_runner_utils.so")
]
LOWERING = (
    "convert-linalg-to-loops,canonicalize,expand-strided-metadata,lower-affine,convert-scf-to-cf,convert-arith-to-llvm,"
    "convert-index-to-llvm,finalize-memref-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts"
)


def product(m: int, n: int, k: int, operation: str = "matmul", batch: int = 0) -> str:
    """A product of buffers in fp32 in a function `f`."""
    a = (k, m) if operation.endswith("transpose_a") else (m, k)
    b = (n, k) if operation.endswith("transpose_b") else (k, n)
    shapes = [(*((batch,) if batch else ()), *shape) for shape in (a, b, (m, n))]
    types = [f"memref<{'x'.join(map(str, shape))}xf32>" for shape in shapes]
    arguments = ", ".join(f"%{name}: {type_}" for name, type_ in zip("abc", types, strict=True))
    return (
        f"func.func @f({arguments}) {{\n  linalg.{operation} ins(%a, %b : {types[0]}, {types[1]}) outs(%c : {types[2]})\n"
        "  return\n}\n"
    )


def dry_run(run_pass: RunPass, models: Path, code: str) -> tuple[tuple[int, ...], float, float]:
    """Tiles chosen, and seconds predicted of them and without them."""
    run = run_pass(f"kernelcast-tile{{model={models} device={CPU} dry-run=true}}", code)
    assert (run.status, run.message) == (0, "")
    assert "scf.for" not in run.module
    tiles = re.search(r"kernelcast\.tile_sizes = array<i64: (\d+), (\d+), (\d+)>", run.module)
    assert tiles is not None
    times = [re.search(rf"kernelcast\.{name}_latency_s = ([-+.\deE]+)", run.module) for name in ("tiled", "untiled")]
    return tuple(map(int, tiles.groups())), *(float(time[1]) for time in times if time)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("operation", "batch", "transposed"),
    [
        ("matmul", 0, (0, 0)),
        ("matmul_transpose_a", 0, (1, 0)),
        ("matmul_transpose_b", 0, (0, 1)),
        ("batch_matmul", 3, (0, 0)),
    ],
)
@pytest.mark.parametrize("sizes", [(17, 33, 65), (128, 256, 512), (1, 1000, 3)], ids=str)
def test_the_choice_is_the_best_of_the_kinds_space(
    run_pass: RunPass,
    models: Path,
    sizes: tuple[int, int, int],
    operation: str,
    batch: int,
    transposed: tuple[int, int],
) -> None:
    tiles, tiled_s, untiled_s = dry_run(run_pass, models, product(*sizes, operation, batch))
    task = tile_task(*sizes, batch or 1, *transposed)
    space = KIND.space(task)
    predicted = CostModel.load(KIND.name, CPU, models / f"{KIND.name}.kcm").predict(space)
    best = {knob: tile for knob, tile in zip(KIND.knobs, tiles, strict=True) if tile}
    chosen = next(i for i in range(len(space)) if space.config(i) == best)
    assert predicted[chosen] == pytest.approx(predicted.min(), rel=1e-9)
    assert tiled_s == pytest.approx(predicted[chosen], rel=1e-9)
    assert untiled_s == pytest.approx(predicted[0], rel=1e-9)


def test_both_sides_choose_from_the_same(run_pass: RunPass, models: Path) -> None:
    run = run_pass(f"kernelcast-tile{{model={models} device={CPU} dry-run=true remarks=true}}", product(7, 100, 300))
    result = re.search(r"of (\d+) choices scored in ([-+.\deE]+) us", run.message)
    assert result is not None
    assert int(result[1]) == len(KIND.space(tile_task(7, 100, 300)))


def test_loops_step_by_the_tiles(run_pass: RunPass) -> None:
    run = run_pass("kernelcast-tile{tile-sizes=4,32,2 peel=false}", product(16, 64, 32))
    assert run.status == 0
    constants = dict(re.findall(r"(%\w+) = arith\.constant (\d+) : index", run.module))
    steps = [constants[step] for step in re.findall(r"scf\.for .* step (%\w+)", run.module)]
    assert steps == ["4", "32", "2"]
    assert "memref<4x2xf32, strided<[32, 1], offset: ?>>, memref<2x32xf32" in run.module


def test_a_tile_as_large_as_its_size_has_no_loop(run_pass: RunPass) -> None:
    run = run_pass("kernelcast-tile{tile-sizes=16,32,32}", product(16, 64, 32))
    assert run.module.count("scf.for") == 1
    assert "scf.for" not in run_pass("kernelcast-tile{tile-sizes=16,64,32}", product(16, 64, 32)).module


def test_every_function_and_both_types_are_tiled_once(run_pass: RunPass, models: Path) -> None:
    code = product(64, 64, 64).replace("@f", "@g") + (
        "func.func @t(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>, %c: tensor<64x64xf32>) -> tensor<64x64xf32> {\n"
        "  %0 = linalg.matmul ins(%a, %b : tensor<64x64xf32>, tensor<64x64xf32>) outs(%c : tensor<64x64xf32>) "
        "-> tensor<64x64xf32>\n  return %0 : tensor<64x64xf32>\n}\n"
    )
    once = run_pass("kernelcast-tile{tile-sizes=8,8,8}", code, after="canonicalize")
    assert once.module.count("scf.for") == 6
    assert once.module.count("tensor.insert_slice") == 1
    again = run_pass(f"kernelcast-tile{{model={models} device={CPU}}}", once.module, after="canonicalize")
    assert again.module == once.module


def test_a_dry_runs_choice_is_what_is_done(run_pass: RunPass, models: Path) -> None:
    noted = run_pass(f"kernelcast-tile{{model={models} device={CPU} dry-run=true}}", product(40, 200, 60)).module
    # No model is needed any more: the choice stands at the operation, for a person to change.
    done = run_pass("kernelcast-tile", noted, after="canonicalize")
    assert (done.status, done.message) == (0, "")
    at_once = run_pass(f"kernelcast-tile{{model={models} device={CPU}}}", product(40, 200, 60), after="canonicalize")
    assert done.module == at_once.module
    by_hand = re.sub(r"array<i64: [^>]*>", "array<i64: 5, 50, 20>", noted)
    assert run_pass("kernelcast-tile", by_hand).module.count("scf.for") == 3


def test_what_is_no_product_of_known_sizes_is_left(run_pass: RunPass, models: Path) -> None:
    run = run_pass(f"kernelcast-tile{{model={models} device={CPU}}}", "odd.mlir")
    assert (run.status, run.message) == (0, "")
    assert "scf.for" not in run.module
    assert run.module.count("kernelcast.skipped") == 4
    several = run_pass(f"kernelcast-tile{{model={models} device={CPU} dry-run=true}}", "operations.mlir").module
    assert "it has several loops" in several
    assert several.count("kernelcast.tile_sizes") == 5


@pytest.mark.parametrize("sizes", ["1,2", "1,2,3,4", "-1,2,3"])
def test_wrong_sizes_are_an_error(run_pass: RunPass, sizes: str) -> None:
    run = run_pass(f"kernelcast-tile{{tile-sizes={sizes}}}", product(8, 8, 8))
    assert run.status == 1
    assert "three sizes" in run.message


def test_what_was_said_of_the_whole_is_not_said_of_its_pieces(run_pass: RunPass, models: Path) -> None:
    both = f"kernelcast-annotate{{model={models} device={CPU}}},kernelcast-tile{{tile-sizes=8,8,8}}"
    module = run_pass(both, product(64, 64, 64)).module
    assert "kernelcast.latency_s" not in module
    assert "kernelcast.total_latency_s" in module


def whole_program(m: int, n: int, k: int) -> str:
    """A program that fills operands with small whole numbers, multiplies them, and prints the product."""

    def filled(name: str, rows: int, cols: int, by: tuple[int, int]) -> str:
        return f"""
  %{name} = memref.alloc() : memref<{rows}x{cols}xf32>
  linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}}
    outs(%{name} : memref<{rows}x{cols}xf32>) {{
  ^bb0(%o: f32):
    %i = linalg.index 0 : index
    %j = linalg.index 1 : index
    %p = arith.constant {by[0]} : index
    %q = arith.constant {by[1]} : index
    %r = arith.constant 11 : index
    %x = arith.muli %i, %p : index
    %y = arith.muli %j, %q : index
    %z = arith.addi %x, %y : index
    %w = arith.remui %z, %r : index
    %c = arith.index_cast %w : index to i32
    %f = arith.sitofp %c : i32 to f32
    linalg.yield %f : f32
  }}"""

    return f"""
func.func private @printMemrefF32(memref<*xf32>) attributes {{llvm.emit_c_interface}}
func.func @main() {{{filled("a", m, k, (3, 5))}{filled("b", k, n, (7, 2))}
  %c = memref.alloc() : memref<{m}x{n}xf32>
  %zero = arith.constant 0.0 : f32
  linalg.fill ins(%zero : f32) outs(%c : memref<{m}x{n}xf32>)
  linalg.matmul ins(%a, %b : memref<{m}x{k}xf32>, memref<{k}x{n}xf32>) outs(%c : memref<{m}x{n}xf32>)
  %any = memref.cast %c : memref<{m}x{n}xf32> to memref<*xf32>
  call @printMemrefF32(%any) : (memref<*xf32>) -> ()
  return
}}
"""


@pytest.mark.parametrize("options", ["tile-sizes=4,16,2", "tile-sizes=5,7,9", "tile-sizes=5,7,9 peel=false", "model"])
def test_the_tiled_product_is_right(run_pass: RunPass, models: Path, options: str) -> None:
    if shutil.which("mlir-cpu-runner-19") is None or not all(path.is_file() for path in RUNNER_LIBRARIES):
        pytest.skip("mlir-cpu-runner-19 or its libraries are not installed")
    m, n, k = 17, 33, 65
    raw = f"model={models} device={CPU}" if options == "model" else options
    lowered = run_pass(f"kernelcast-tile{{{raw}}}", whole_program(m, n, k), after=LOWERING)
    assert (lowered.status, lowered.message) == (0, "")
    command = ["mlir-cpu-runner-19", "-e", "main", "--entry-point-result=void"]
    done = subprocess.run(
        [*command, *(f"--shared-libs={path}" for path in RUNNER_LIBRARIES)],
        input=lowered.module, capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    printed = re.findall(r"-?\d+(?:\.\d+)?", done.stdout.split("data =", 1)[1])
    i, j = np.indices((m, k)), np.indices((k, n))
    wanted = ((3 * i[0] + 5 * i[1]) % 11) @ ((7 * j[0] + 2 * j[1]) % 11)
    assert np.array_equal(np.array(printed, float).reshape(m, n), wanted)
