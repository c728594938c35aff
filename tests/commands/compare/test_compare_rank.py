"""`kernelcast compare rank`: the configurations that are known of a kernel, the fastest first."""

from __future__ import annotations

import json

import pytest

GEMM = ("gemm", "4096x4096x4096", "fp16", "--device", "h200-sxm")


def test_the_fastest_configurations_are_listed(run, fake):
    done = run("compare", "rank", *GEMM, "--top", "3")
    assert done.code == 0, done.err
    assert sum(line.startswith(("●", "○")) for line in done.out.splitlines()) == 3
    assert "configurations of triton" in done.out
    assert "tuning model triton-gemm" in done.out


def test_json_is_the_ranking_of_the_service(run, fake):
    ranking = json.loads(run("compare", "rank", *GEMM, "--top", "2", "--json").out)
    latency = [item["latency_s"]["value"] for item in ranking["ranked"]]
    assert latency == sorted(latency)
    assert len(latency) == 2 < ranking["considered"]


def test_configurations_of_a_file_are_ranked(run, fake, tmp_path):
    table = tmp_path / "mine.csv"
    table.write_text("tile_m,tile_n,tile_k,warps,stages\n64,64,32,4,3\n128,128,64,8,3\n")
    done = run("compare", "rank", *GEMM, "--configs", str(table))
    assert done.code == 0, done.err
    assert "2 configurations of" in done.out
    table.with_suffix(".json").write_text('{"kernels": []}')
    assert "no list of configs" in run("compare", "rank", *GEMM, "--configs", str(table.with_suffix(".json"))).error


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((*GEMM, "tile_m=64"), "tile_m is what is ranked; leave it out"),
        (("gemm", "8x8x8", "fp16", "impl=cutlass", "--device", "h200-sxm"), "no configurations are known of this gemm"),
        (("gemm", "8x8x8", "fp16"), "Missing option '--device'"),
    ],
)
def test_what_is_wrong_is_one_sentence(run, fake, args, said):
    assert said in run("compare", "rank", *args).error
