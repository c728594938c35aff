"""`kernelcast predict code` and `train-triton`: Triton IR in, what it compiles to out."""

from __future__ import annotations

import io
import json
import sys

import pytest
from kernelcast.models.pretrained import TRITON_CODE

KERNEL = """\
module {
  tt.func public @scale(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32}) attributes {noinline = false} {
    %r = tt.make_range {end = 1024 : i32, start = 0 : i32} : tensor<1024xi32>
    %p = tt.splat %x : !tt.ptr<f32> -> tensor<1024x!tt.ptr<f32>>
    %a = tt.addptr %p, %r : tensor<1024x!tt.ptr<f32>>, tensor<1024xi32>
    %v = tt.load %a : tensor<1024x!tt.ptr<f32>>
    %e = math.exp %v : tensor<1024xf32>
    tt.store %a, %e : tensor<1024x!tt.ptr<f32>>
    tt.return
  }
}
"""

shipped = pytest.mark.skipif(not TRITON_CODE.exists(), reason="no model of compiled code is shipped")


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "scale.ttir"
    path.write_text(KERNEL)
    return path


@shipped
def test_a_person_reads_what_the_code_will_be_like(run, written):
    done = run("predict-code", written, "--target", "sm_90", "--num-warps", "4", "--num-stages", "2")
    assert (done.code, done.err) == (0, "")
    for word in ("scale.ttir: scale for sm_90, 4 warps, 2 stages", "registers", "per thread, of 255", "spilling",
                 "shared memory", "instructions", "occupancy", "blocks at once", "90 % of functions"):  # fmt: skip
        assert word in done.out, word


@shipped
def test_json_says_the_same_of_every_target(run, written):
    done = run("predict-code", written, "--target", "sm_90", "--target", "sm_80", "--json")
    assert done.code == 0
    result = json.loads(done.out)["predictions"]
    assert [item["target"] for item in result] == ["sm_90", "sm_80"]
    for item in result:
        assert 8 <= item["registers"]["lower"] <= item["registers"]["value"] <= item["registers"]["upper"] <= 255
        assert 0 <= item["spill_probability"] <= 1
        assert item["shared_b"]["value"] == 0


@shipped
def test_text_comes_from_standard_input_too(run, monkeypatch):
    class Stdin:
        buffer = io.BytesIO(KERNEL.encode())

    monkeypatch.setattr(sys, "stdin", Stdin())
    done = run("predict-code", "-", "--target", "sm_90")
    assert done.code == 0
    assert "stdin: scale" in done.out


@shipped
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--target", "sm_75"), "sm_80, sm_90"),
        (("--target", "sm_90", "--num-warps", "3"), "num_warps"),
        (("--target", "sm_90", "--num-stages", "0"), "num_stages"),
        (("--target", "sm_90", "--function", "other"), "scale"),
        (("--target", "sm_90", "--coverage", "2"), "coverage"),
    ],
)
def test_what_there_is_none_of_is_one_sentence(run, written, options, said):
    done = run("predict-code", written, *options)
    assert done.code != 0
    assert said in done.err
    assert "Traceback" not in done.err


@shipped
def test_files_that_are_no_triton_ir_are_refused(run, tmp_path):
    (tmp_path / "f.mlir").write_text("func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }")
    for name in ("f.mlir", "missing.ttir"):
        done = run("predict-code", tmp_path / name, "--target", "sm_90")
        assert done.code != 0
        assert done.err.startswith("error: ")


def test_training_without_programs_is_refused(run, tmp_path):
    (tmp_path / "empty").mkdir()
    done = run("train-triton", "--data", tmp_path / "empty", "--out", tmp_path / "model")
    assert done.code != 0
    assert "kernelcast measure triton" in done.err
