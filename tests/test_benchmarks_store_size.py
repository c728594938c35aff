"""The made-up store of any size: as the store reads it, and every question answered in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pyarrow.compute as pc
import pytest
from kernelcast.datasets.store.location import location_of
from kernelcast.datasets.store.store import Store

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "store_size.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("store_size", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["store_size"] = module
    spec.loader.exec_module(module)
    return module


def test_a_made_up_store_reads_as_a_store(script: ModuleType, tmp_path: Path) -> None:
    written = script.build(location_of(tmp_path / "made"), 3000)
    store = Store(tmp_path / "made")
    tables = store.read_all()
    assert sum(table.num_rows for table in tables.values()) == written == pytest.approx(3000, rel=0.02)
    assert sorted(tables) == sorted(script.SHARES)
    gemm = tables["gemm"]
    # Every case under both softwares, cases apart from each other.
    of_software = {word: set(gemm.filter(pc.equal(gemm["software"], word))["case_id"].to_pylist())
                   for word in script.SOFTWARE}  # fmt: skip
    assert of_software[script.SOFTWARE[0]] == of_software[script.SOFTWARE[1]]
    assert len(of_software[script.SOFTWARE[0]]) == pytest.approx(gemm.num_rows / 2.2, rel=0.05)
    assert {len(item) for item in gemm["case_id"].to_pylist()} == {16}
    assert min(value for value in gemm["latency_s"].to_pylist() if value is not None) > 0


@pytest.mark.slow
def test_questions_are_asked_and_put_on_the_page(script: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{script.START}\nold\n{script.END}\nafter\n")
    query = ["rows by family and device", "cases to skip on one device", "rows to train on"]
    done = subprocess.run(
        [sys.executable, "-P", str(SCRIPT), "--rows", "3e3", "--dir", str(tmp_path / "made"), "--page", str(page),
         "--questions", *query],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.startswith(f"before\n{script.START}\n2,9")
    assert text.endswith(f"{script.END}\nafter\n")
    assert "old" not in text
    for question in query:
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {question} |")]
        rows, seconds, peak = (cell.split()[0] for cell in line.split("|")[2:5])
        assert int(rows.replace(",", "")) > 0
        assert float(seconds) >= 0
        assert 0.05 < float(peak) < 2
    # Nothing is left behind.
    assert [item.name for item in tmp_path.iterdir()] == ["page.md"]


def test_a_folder_that_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    done = subprocess.run(
        [sys.executable, "-P", str(SCRIPT), "--dir", str(tmp_path / "mine")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "exists; name a folder to be made" in done.stderr
    assert (tmp_path / "mine" / "file").read_text() == "x"
