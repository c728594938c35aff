"""Measured choices in the journal at once, and in the store in batches."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernelcast.cli import main
from kernelcast.datasets.store.errors import StoreError
from kernelcast.datasets.store.parquet_files import provenance_of
from kernelcast.datasets.store.store import Store
from kernelcast.features.kernel import KernelSpec
from kernelcast.plugins.cost_model import PluginWarning
from kernelcast.plugins.inductor import row_store
from kernelcast.plugins.inductor.ranking import Measured
from kernelcast.plugins.inductor.row_store import StoredRows

DEVICE = "my-gpu"
FACTS = {"device": DEVICE, "versions": {"torch": "2.13.0"}, "kind": "inductor autotuning"}


def row(m: int = 64, latency_s: float | None = 1e-3, *, device: str = DEVICE, at: str = "t0", **knobs: int) -> Measured:
    spec = KernelSpec.of("gemm", "bf16", m=m, n=64, k=64, impl="triton", cache_state="cold", config=knobs)
    return Measured(
        spec, device, "ok" if latency_s else "failed", latency_s, "mm: BLOCK_M=16", "torch 2.13.0", at, True
    )


def test_rows_are_in_the_journal_at_once_and_in_the_store_at_the_end(tmp_path: Path) -> None:
    keeper = StoredRows(tmp_path)
    for m in (16, 32, 64):
        keeper.keep([row(m, tile_m=16), row(m, None)], FACTS)
    assert len(keeper.journal.read_text().splitlines()) == 6
    assert Store(tmp_path).files() == []
    keeper.flush()
    keeper.flush()
    assert keeper.journal.read_text() == ""
    (file,) = Store(tmp_path).files()
    table = Store(tmp_path).read("gemm")
    assert table.num_rows == 6
    assert sorted(table["status"].to_pylist()) == ["failed"] * 3 + ["ok"] * 3
    assert set(table["source"].to_pylist()) == {"inductor"}
    (facts,) = provenance_of(table).values()
    assert facts == FACTS
    assert file.parent.name == f"device={DEVICE}"


def test_what_comes_back_is_what_was_kept(tmp_path: Path) -> None:
    rows = [row(16, tile_m=16), row(32, None)]
    keeper = StoredRows(tmp_path)
    keeper.keep(rows, FACTS)
    keeper.flush()
    back = StoredRows(tmp_path).remembered(DEVICE)
    assert sorted(back, key=str) == sorted((rows[0], Measured(**{**_fields(rows[1]), "least": False})), key=str)
    assert StoredRows(tmp_path).remembered("another") == []


def _fields(one: Measured) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__slots__}


def test_a_full_batch_is_stored_without_waiting_for_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_store, "BATCH", 4)
    keeper = StoredRows(tmp_path)
    for m in range(1, 7):
        keeper.keep([row(m)], FACTS)
    assert Store(tmp_path).read("gemm").num_rows == 4
    assert len(Store(tmp_path).files()) == 1
    keeper.flush()
    assert Store(tmp_path).read("gemm").num_rows == 6


def test_hundreds_of_lists_are_few_files(tmp_path: Path) -> None:
    keeper = StoredRows(tmp_path)
    for m in range(1, 301):
        keeper.keep([row(m), row(m, 2e-3, tile_m=16)], FACTS)
    keeper.flush()
    assert Store(tmp_path).read("gemm").num_rows == 600
    assert len(Store(tmp_path).files()) == 2


def test_times_inductor_hands_back_again_from_its_cache_are_stored_once(tmp_path: Path) -> None:
    for _ in range(2):
        keeper = StoredRows(tmp_path)
        for at in ("t1", "t2"):
            keeper.keep([row(16, at=at), row(32, None, at="t0")], FACTS)
        keeper.flush()
    assert Store(tmp_path).read("gemm").num_rows == 2
    keeper = StoredRows(tmp_path)
    # Measured anew, and failed anew.
    keeper.keep([row(16, 1.1e-3), row(32, None, at="t9")], FACTS)
    keeper.flush()
    assert Store(tmp_path).read("gemm").num_rows == 4


def test_rows_of_several_devices_have_their_own_files_and_facts(tmp_path: Path) -> None:
    keeper = StoredRows(tmp_path)
    keeper.keep([row(16)], FACTS)
    keeper.keep([row(16, device="other")], {**FACTS, "device": "other"})
    keeper.flush()
    assert len(Store(tmp_path).files()) == 2
    assert provenance_of(Store(tmp_path).read("gemm", ["other"])).popitem()[1]["device"] == "other"


_KILLED = """
import os, signal, sys
from pathlib import Path
from kernelcast.features.kernel import KernelSpec
from kernelcast.plugins.inductor.ranking import Measured
from kernelcast.plugins.inductor.row_store import StoredRows
keeper = StoredRows(Path(sys.argv[1]))
for m in (16, 32):
    spec = KernelSpec.of("gemm", "bf16", m=m, n=64, k=64, impl="triton", cache_state="cold")
    keeper.keep([Measured(spec, "my-gpu", "ok", 1e-3, "", "torch 2.13.0", "t0")], {"device": "my-gpu"})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_loses_no_row_and_the_next_one_stores_them(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-P", "-c", _KILLED, str(tmp_path)], timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert Store(tmp_path).files() == []
    assert len(StoredRows(tmp_path).remembered(DEVICE)) == 2
    assert sorted(Store(tmp_path).read("gemm")["m"].to_pylist()) == [16, 32]


def test_two_processes_share_the_journal(tmp_path: Path) -> None:
    one, other = StoredRows(tmp_path), StoredRows(tmp_path)
    one.keep([row(16)], FACTS)
    other.keep([row(32)], {**FACTS, "started": "later"})
    one.flush()
    other.keep([row(64)], FACTS)
    other.flush()
    assert sorted(Store(tmp_path).read("gemm")["m"].to_pylist()) == [16, 32, 64]


def test_rows_stored_before_the_journal_was_emptied_are_stored_once(tmp_path: Path) -> None:
    keeper = StoredRows(tmp_path)
    keeper.keep([row(16), row(32, None)], FACTS)
    text = keeper.journal.read_text()
    keeper.flush()
    keeper.journal.write_text(text)
    keeper.flush()
    assert Store(tmp_path).read("gemm").num_rows == 2


@pytest.mark.parametrize("end", ['{"row": {"family": "ge', "null", "[]", "\x00\x01", '{"row": {"family": "x"}}'])
def test_a_journal_cut_short_or_spoilt_gives_what_can_be_read(tmp_path: Path, end: str) -> None:
    keeper = StoredRows(tmp_path)
    keeper.keep([row(16)], FACTS)
    keeper.journal.write_text(keeper.journal.read_text() + end)
    with pytest.warns(PluginWarning, match="1 lines of .* cannot be read"):
        assert len(keeper.remembered(DEVICE)) == 1


def test_a_journal_that_cannot_be_stored_stays_and_is_told(tmp_path: Path) -> None:
    keeper = StoredRows(tmp_path)
    keeper.keep([row(16, device="../../evil")], FACTS)
    with pytest.warns(PluginWarning, match="stay in .*inductor.jsonl: device name"):
        keeper.remembered(DEVICE)
    assert keeper.journal.read_text()
    assert not (tmp_path.parent.parent / "evil").exists()


def test_a_time_that_beats_physics_is_not_kept_and_that_is_said(tmp_path: Path) -> None:
    device = "nvidia-h200-sxm-141gb"
    impossible = KernelSpec.of("gemm", "bf16", m=8192, n=8192, k=8192, impl="triton")
    keeper = StoredRows(tmp_path)
    keeper.keep([Measured(impossible, device, "ok", 1e-9, "", "", "t0"), row(16, device=device)], FACTS)
    with pytest.warns(PluginWarning, match="1 of 2 times .* cannot be true"):
        keeper.flush()
    assert Store(tmp_path).read("gemm").num_rows == 1


def test_rows_others_measured_are_not_taken_for_inductors(tmp_path: Path) -> None:
    from kernelcast.datasets.rows.schema import Measurement, Provenance

    spec = KernelSpec.of("gemm", "bf16", m=16, n=16, k=16, impl="triton")
    Store(tmp_path).append([Measurement(spec, DEVICE, "ok", "b", latency_s=1.0)], Provenance("b", {"a": 1}))
    assert StoredRows(tmp_path).remembered(DEVICE) == []


def test_a_full_disk_leaves_the_rows_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = StoredRows(tmp_path)
    keeper.keep([row(16)], FACTS)

    def full(*_: Any, **__: Any) -> Any:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "append", full)
        with pytest.raises(StoreError):
            keeper.flush()
    keeper.flush()
    assert Store(tmp_path).read("gemm").num_rows == 1


def test_the_command_line_reads_the_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keeper = StoredRows()
    keeper.keep([row(16), row(32, None)], FACTS)
    keeper.flush()
    assert Path(os.environ["KERNELCAST_HOME"]) in keeper.store.root.parents
    assert main(["data", "list", "--json"]) == 0
    assert {(one["device"], one["status"], one["rows"]) for one in json.loads(capsys.readouterr().out)} == {
        (DEVICE, "ok", 1), (DEVICE, "failed", 1)
    }  # fmt: skip
    assert main(["data", "compact", "--out", str(tmp_path / "packed")]) == 0
