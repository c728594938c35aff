"""Real kernels under Triton's autotuner, in its interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

H200 = "nvidia-h200-sxm-141gb"


def tile(m, n, k=16, group=1, **launch):
    return {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": group, "num_warps": 4, **launch}


GEMMS = [
    tile(16, 16),
    tile(16, 32),
    tile(32, 16),
    tile(32, 32, 32),
    tile(64, 64, 32, 2),
    tile(128, 128, 32),
    tile(16, 64),
]
ATTENTIONS = [{"BLOCK_M": m, "BLOCK_N": n, "num_warps": 4} for m, n in ((16, 16), (32, 16), (16, 32), (64, 32))]
SCENARIOS = {
    "three of seven": {"kernel": "gemm", "top_k": 3, "device": H200, "configs": GEMMS, "counted": True},
    "attention": {"kernel": "attention", "top_k": 0.5, "device": "h200", "configs": ATTENTIONS, "counted": True},
    "corrupt": {"kernel": "gemm", "top_k": 2, "device": H200, "configs": GEMMS[:3], "model": "corrupt"},
    "no gpu": {"kernel": "gemm", "top_k": 2, "configs": GEMMS[:3]},
    "never measured": {"kernel": "gemm", "top_k": 1, "device": "nvidia-l4", "configs": GEMMS[:3]},
    "benchmark": {"kernel": "benchmark", "device": H200},
    "does not fit": {"kernel": "gemm", "top_k": 2, "device": "nvidia-t4", "configs": [tile(128, 128, 128), *GEMMS[:2]]},
}


@pytest.fixture(scope="module")
def ran(model_files, tmp_path_factory):
    corrupt = tmp_path_factory.mktemp("corrupt") / "triton-gemm.kcm"
    content = bytearray(model_files["triton-gemm"].read_bytes())
    content[len(content) // 2] ^= 0xFF
    corrupt.write_bytes(content)
    scenarios = []
    for scenario in SCENARIOS.values():
        kind = "triton-attention" if scenario["kernel"] == "attention" else "triton-gemm"
        file = corrupt if scenario.get("model") else model_files[kind]
        scenarios.append({**scenario, "model": str(file)})
    done = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).with_name("interpreted.py"))],
        input=json.dumps(scenarios), capture_output=True, text=True, timeout=600,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(SCENARIOS, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "benchmark"])
def test_the_tuned_kernel_is_right(ran, name):
    assert ran[name]["error"] < 1e-4


def test_only_the_best_are_timed_and_one_batch_scored_all(ran):
    result = ran["three of seven"]
    assert len(result["timed"]) == 3
    assert result["batches"] == [7]
    # 33 x 40 results: the tile of 128 x 128 is mostly padding.
    assert all(item["BLOCK_SIZE_M"] < 128 for item in result["timed"])
    # The bench's clock says the first is fastest: what the model likes best is what runs.
    assert result["best"].items() <= result["timed"][0].items()
    assert not result["said"]


def test_attention_keeps_a_fraction(ran):
    result = ran["attention"]
    assert len(result["timed"]) == 2
    assert result["batches"] == [4]
    assert not result["said"]


def test_a_corrupt_model_keeps_all_and_says_why_once(ran):
    result = ran["corrupt"]
    assert len(result["timed"]) == 3
    assert len(result["said"]) == 1
    assert "all are kept" in result["said"][0]
    assert "triton-gemm.kcm" in result["said"][0]


def test_without_a_gpu_all_are_kept(ran):
    result = ran["no gpu"]
    assert len(result["timed"]) == 3
    assert len(result["said"]) == 1
    assert "give prune(device=...)" in result["said"][0]


def test_a_device_never_measured_is_a_note_and_no_warning(ran):
    result = ran["never measured"]
    assert len(result["timed"]) == 1
    assert not result["said"]
    assert "no measurements of nvidia-l4" in result["note"]
    assert ran["three of seven"]["note"] is None


def test_what_cannot_fit_the_device_comes_last(ran):
    # 2 tiles of 128 x 128 in 32 bits are 128 KiB; a T4's block has 64.
    assert all(item["BLOCK_SIZE_M"] < 128 for item in ran["does not fit"]["timed"])


def test_the_benchmark_tunes_small_problems(ran):
    result = ran["benchmark"]
    assert result["summary"]["shapes"] == 2
    product, attention = result["shapes"]
    assert product["n"] == 6
    assert attention["n"] == 2
    assert product["kept"] == product["autotuner_timed"] == 2
    # Every call is slower than the one before, so the fastest of those kept is the first of them.
    assert product["chosen_s"] == product["trials"][min(product["kept_places"])]["latency_s"]
    assert product["best_s"] == product["trials"][0]["latency_s"]
    assert 0.0 < product["kept_wall_s"] < product["all_wall_s"]
