"""`kernelcast predict … --beside`: a table for people, JSON for programs, and what is refused."""

from __future__ import annotations

import json

import pytest

CPU = "amd-epyc-7003-vm-2c"
COPY = ("copy", "2048x2048", "fp32", "threads=1")
GEMM = "gemm m=16 n=2560 k=2048 fp32 threads=1"


def test_a_person_reads_how_much_slower_both_are(run):
    done = run("predict", *COPY, "--device", CPU, "--beside", GEMM)
    assert done.code == 0, done.err
    assert "2 kernels beside each other on AMD EPYC 7003" in done.out
    assert done.out.count(" x\n") == 2
    assert "law: " in done.out


def test_a_program_reads_json_and_a_gpu_has_a_law_of_two_kernels_and_bounds_of_more(run):
    copy = ("predict", "copy", "2048x2048", "fp32", "--device", "h100-sxm", "--beside", "gemm 512x512x512 bf16")
    result = json.loads(run(*copy, "--json").out)
    assert result["method"] == "law"
    assert len(result["kernels"]) == 2
    more = run(*copy, "--beside", "gemm 64x64x64 bf16")
    assert "unknown" in more.out
    assert "bounds" in more.out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((*COPY, "--device", CPU, "--beside", "gemm m=16 n=16 k=16 fp32"), "threads of at most 2 together"),
        ((*COPY, "--device", CPU, "--beside", "brew 16 fp32"), "beside[0]: no kernel family 'brew'"),
        ((*COPY, "--device", CPU, "--beside", ""), "give a kernel in words"),
        ((*COPY, "--device", CPU, "--beside", GEMM, "--grid", "de"), "--beside goes with one kernel"),
    ],
)
def test_what_does_not_fit_is_refused(run, args, words):
    done = run("predict", *args)
    assert done.code == 2
    assert words in done.error
