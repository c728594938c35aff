"""The plug-in in torch itself: Inductor's own classes and hooks, and compilations on this machine's CPU.

One child process does it all, because torch's state is global and its import is slow; the tests look at what it found.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernelcast.datasets.store.parquet_files import provenance_of
from kernelcast.datasets.store.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles for CPUs with g++, which is not here"),
]


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    home = tmp_path_factory.mktemp("home")
    program = Path(__file__).parent / "real_compilations.py"
    # Asking g++ for each instruction set takes Inductor longer than all the rest.
    environment = {**os.environ, "KERNELCAST_HOME": str(home), "TORCHINDUCTOR_VEC_ISA_OK": "1",
                   "TORCHINDUCTOR_CACHE_DIR": str(home / "cache")}  # fmt: skip
    ran = subprocess.run([sys.executable, "-P", program, home], capture_output=True, text=True, timeout=900,
                         env=environment, cwd=home)  # fmt: skip
    lines = [line for line in ran.stdout.splitlines() if line.startswith("FOUND")]
    assert lines, ran.stderr[-3000:]
    return json.loads(lines[0].removeprefix("FOUND")), home


def test_torch_s_own_templates_are_ranked_in_one_batch(child: tuple[dict[str, Any], Path]) -> None:
    gpu = child[0]["gpu"]
    assert gpu["offered"] > 10
    assert (len(gpu["kept"]), gpu["kept"][0]) == (5, "mm")
    assert gpu["kept areas"] == gpu["largest"]


def test_torch_s_own_feedback_becomes_rows(child: tuple[dict[str, Any], Path]) -> None:
    table = Store(child[1] / "measurements").read("gemm", ["nvidia-h200-sxm-141gb"])
    rows = table.to_pylist()
    # ATen and four templates, of which one was marked as one that did not compile.
    assert sorted((row["impl"], row["status"]) for row in rows) == [
        ("torch", "ok"), ("triton", "failed"), ("triton", "ok"), ("triton", "ok"), ("triton", "ok")
    ]  # fmt: skip
    assert {(row["m"], row["n"], row["k"], row["dtype"], row["variant"], row["cache_state"]) for row in rows} == {
        (512, 768, 1024, "bf16", "nt", "cold")
    }
    assert all(row["tile_m"] and row["warps"] and row["stages"] for row in rows if row["impl"] == "triton")
    assert sorted(row["latency_s"] for row in rows if row["latency_s"]) == pytest.approx([1e-5, 2e-5, 3e-5, 4e-5])
    (facts,) = provenance_of(table).values()
    assert facts["versions"]["torch"].startswith("2.")
    assert facts["statistic"].startswith("min ")


def test_what_inductor_spent_is_read_from_torch(child: tuple[dict[str, Any], Path]) -> None:
    assert "left out" in child[0]["gpu"]["report"]


def test_a_compilation_on_this_cpu_fills_the_store(child: tuple[dict[str, Any], Path]) -> None:
    first = child[0]["first"]
    assert first["right"]
    assert (first["lists"], first["choices"], first["measured"], first["failed"], first["pruned_by_memory"]) == (
        1,
        2,
        2,
        0,
        0,
    )
    assert first["not_kept"] == 0
    rows = Store(child[1] / "measurements").read("gemm", [child[0]["device"]]).to_pylist()
    assert {row["impl"]: row["status"] for row in rows} == {"torch": "ok", "cpp": "ok"}
    assert {(row["batch"], row["m"], row["n"], row["k"], row["variant"], row["threads"]) for row in rows} == {
        (4, 48, 40, 96, "batched", 1)
    }
    assert all(1e-7 < row["latency_s"] < 1 for row in rows)
    assert child[0]["remembered"] == 2


def test_a_later_compilation_leaves_out_what_lost_before(child: tuple[dict[str, Any], Path]) -> None:
    second = child[0]["second"]
    assert second["right"]
    # One choice is left, so Inductor takes it without compiling or timing anything.
    assert (second["choices"], second["pruned_by_memory"], second["measured"]) == (2, 1, 0)


def test_inductor_is_left_as_it_was(child: tuple[dict[str, Any], Path]) -> None:
    assert child[0]["as before"]


def test_the_command_line_reads_what_inductor_measured(child: tuple[dict[str, Any], Path]) -> None:
    command = [shutil.which("kernelcast", path=Path(sys.executable).parent) or "kernelcast", "data", "list", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True,
                         env={**os.environ, "KERNELCAST_HOME": str(child[1])})  # fmt: skip
    counts = {(row["device"], row["status"]): row["rows"] for row in json.loads(ran.stdout)}
    assert counts[(child[0]["device"], "ok")] == 2
