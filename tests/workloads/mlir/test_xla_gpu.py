"""What XLA makes of a program on a GPU, and the host that starts it; judged by programs that XLA ran on two GPUs."""

from __future__ import annotations

from pathlib import Path

import kernelcast
import numpy as np
import pyarrow.parquet as pq
import pytest

MEASURED = Path(__file__).parents[3] / "datasets" / "data" / "programs" / "xla-gpu.parquet"
H100 = "nvidia-h100-sxm-80gb"


def product(precision: str = "") -> str:
    kind = "tensor<4096x4096xf32>"
    asked = f", precision = [{precision}, {precision}]" if precision else ""
    return f"""func.func @main(%a: {kind}, %b: {kind}) -> {kind} {{
      %c = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]{asked} : ({kind}, {kind}) -> {kind}
      return %c : {kind}
    }}"""


def windowed(length: int, window: int) -> str:
    kind, padding = f"tensor<16x{length}xf32>", window - 1
    return f"""func.func @main(%a: {kind}) -> {kind} {{
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %s = "stablehlo.reduce_window"(%a, %zero) <{{padding = dense<[[0, 0], [{padding}, 0]]> : tensor<2x2xi64>,
        window_dimensions = array<i64: 1, {window}>}}> ({{
      ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %z = stablehlo.add %x, %y : tensor<f32>
        stablehlo.return %z : tensor<f32>
      }}) : ({kind}, tensor<f32>) -> {kind}
      return %s : {kind}
    }}"""


TINY = """func.func @main(%a: tensor<64xf32>) -> tensor<64xf32> {
  %b = stablehlo.tanh %a : tensor<64xf32>
  return %b : tensor<64xf32>
}"""


def test_products_of_fp32_run_in_tf32_where_a_gpu_has_it_and_a_text_asks_for_no_more() -> None:
    answer = kernelcast.predict_mlir(product(), H100)
    assert answer.compiler == "xla"
    assert answer.groups[0].spec.endswith(":tf32")
    assert any("TF32" in note for note in answer.notes)
    # Measured 0.39 ms on an H200.
    assert 0.25e-3 < answer.latency_s.value < 0.8e-3
    assert kernelcast.predict_mlir(product("DEFAULT"), H100).latency_s == answer.latency_s
    for other in (
        kernelcast.predict_mlir(product("HIGHEST"), H100),
        kernelcast.predict_mlir(product(), H100, compiler="iree"),
        kernelcast.predict_mlir(product(), "nvidia-v100-sxm-32gb"),
    ):
        assert other.groups[0].spec.endswith(":fp32")
        assert other.latency_s.value > 3 * answer.latency_s.value


def test_a_prefix_sum_is_some_passes_over_its_operand_not_a_window_for_every_place() -> None:
    # Measured 125 µs on an H200; 2^20 additions for each of 2^24 places take seconds.
    answer = kernelcast.predict_mlir(windowed(1 << 20, 1 << 20), "nvidia-h200-sxm-141gb")
    assert answer.bound_s < 125e-6
    assert 60e-6 < answer.latency_s.value < 250e-6
    window = kernelcast.predict_mlir(windowed(1 << 20, 3), "nvidia-h200-sxm-141gb")
    assert window.latency_s.value < answer.latency_s.value


def test_a_call_takes_as_long_as_the_host_that_starts_it() -> None:
    answer = kernelcast.predict_mlir(TINY, H100)
    assert answer.latency_s.value > 30e-6
    assert answer.bound_s < 2e-6
    assert sum(group.time_share for group in answer.groups) == pytest.approx(1.0)
    assert sum(group.latency_s for group in answer.groups) == pytest.approx(answer.latency_s.value)
    waiting = answer.groups[-1]
    assert waiting.kind == "control"
    assert waiting.latency_s > 0.9 * answer.latency_s.value
    assert answer.power_w is not None
    assert answer.energy_j is not None
    assert answer.power_w.value < 200
    assert answer.energy_j.value == pytest.approx(answer.power_w.value * answer.latency_s.value)
    surer = kernelcast.predict_mlir(TINY, H100, coverage=0.5)
    assert surer.latency_s.upper < answer.latency_s.upper
    libraries = kernelcast.predict_mlir(TINY, H100, compiler="iree")
    assert libraries.latency_s.value < 5e-6


def test_a_program_without_a_kernel_takes_what_the_host_takes_for_a_call() -> None:
    kinds = "tensor<4x8xf32>", "tensor<8x4xf32>"
    text = (
        f"func.func @main(%x: {kinds[0]}) -> {kinds[1]} {{\n%r = stablehlo.reshape %x : ({kinds[0]}) -> {kinds[1]}\n"
        f" return %r : {kinds[1]}\n}}"
    )
    empty = f"func.func @main(%x: {kinds[0]}) -> {kinds[0]} {{ return %x : {kinds[0]} }}"
    for answer in (kernelcast.predict_mlir(text, H100, compiler="xla"), kernelcast.predict_mlir(empty, H100)):
        assert 20e-6 < answer.latency_s.value < 60e-6
        assert [(group.kind, group.time_share) for group in answer.groups] == [("control", pytest.approx(1.0))]


@pytest.mark.parametrize("device", ["nvidia-h200-sxm-141gb", H100])
def test_answers_hold_for_programs_that_xla_ran(device: str) -> None:
    rows = [row for row in pq.read_table(MEASURED).to_pylist() if row["device"] == device]
    answers = [kernelcast.predict_mlir(row["text"], device, compiler="xla") for row in rows]
    measured = np.array([row["latency_s"] for row in rows])
    errors = np.abs(np.array([answer.latency_s.value for answer in answers]) / measured - 1)
    inside = [
        answer.latency_s.lower <= value <= answer.latency_s.upper
        for answer, value in zip(answers, measured, strict=True)
    ]
    assert np.median(errors) < 0.28
    assert errors.mean() < 0.4
    assert np.mean(inside) > 0.85
    assert all(answer.bound_s <= value for answer, value in zip(answers, measured, strict=True))
