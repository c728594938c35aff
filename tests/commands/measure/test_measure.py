"""`kernelcast measure`: the cases of a table, measured on this machine by workers that answer at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from kernelcast.collectors import host, runner
from kernelcast.collectors.meters import find, nvml
from kernelcast.commands.measure import measure as command
from kernelcast.datasets.form.form import read_form
from kernelcast.datasets.store.store import Store, StoreError

DEVICE = "amd-epyc-9005-vm-2c"


def write(path: Path, n: int = 3, **columns: object) -> Path:
    """A table of `n` softmax cases; `columns` replace its own."""
    content = {"family": ["softmax"] * n, "device": [DEVICE] * n, "dtype": ["fp32"] * n, "impl": ["torch"] * n,
               "threads": [1] * n, "rows": [64 + i for i in range(n)], "cols": [128] * n, "latency_s": [None] * n}  # fmt: skip
    table = pa.table({**content, **columns})
    (pa_csv.write_csv if path.suffix == ".csv" else pq.write_table)(table, path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_rows_keep_their_order_and_a_failed_one_says_why(run, workers, tmp_path, suffix):
    table = write(tmp_path / f"cases{suffix}", 4, cols=[512, 13, 128, 256], note=["a", "b", "c", "d"])
    done = run("measure", table)
    assert done.code == 0, done.err
    assert "row 2: failed: too busy" in done.err
    assert "3 of 4 rows measured, 1 without a time, 0 refused" in done.err
    out = tmp_path / f"cases-measured{suffix}"
    rows = (pa_csv.read_csv if suffix == ".csv" else pq.read_table)(out).to_pylist()
    assert [row["note"] for row in rows] == ["a", "b", "c", "d"]
    assert [row["status"] for row in rows] == ["ok", "failed", "ok", "ok"]
    assert rows[0]["latency_s"] > rows[3]["latency_s"] > rows[2]["latency_s"] > 5e-6
    # Ready to calibrate: the row without a time is no bad row.
    assert len(read_form(out).parts["softmax"]) == 3


def test_what_a_row_leaves_out_is_written_as_it_was_measured(run, workers, tmp_path):
    table = write(tmp_path / "cases.csv", 1, impl=[None], threads=[None])
    assert run("measure", table).code == 0
    row = pa_csv.read_csv(tmp_path / "cases-measured.csv").to_pylist()[0]
    assert (row["impl"], row["threads"]) == ("torch", 2)


def test_stored_cases_are_not_measured_again(run, workers, tmp_path):
    table = write(tmp_path / "cases.csv", 3)
    assert run("measure", table, "--out", tmp_path / "one.csv").code == 0
    count = len(workers.measured)
    done = run("measure", table, "--out", tmp_path / "two.csv", "--json")
    assert len(workers.measured) == count
    assert "3 of 3 cases" in done.err
    assert json.loads(done.out)["measured"] == 3
    assert (tmp_path / "one.csv").read_text() == (tmp_path / "two.csv").read_text()


def test_stopped_by_ctrl_c_it_keeps_what_was_measured_and_resumes(run, workers, tmp_path):
    table = write(tmp_path / "cases.csv", 40)
    workers.most = 30
    done = run("measure", table)
    assert done.code == 130
    assert "run the same command again" in done.err
    first = pa_csv.read_csv(tmp_path / "cases-measured.csv")
    counts = {status: first["status"].to_pylist().count(status) for status in ("ok", "not measured")}
    assert counts["ok"] == len(workers.measured) > 0
    assert sum(counts.values()) == 40
    workers.most = None
    assert run("measure", table).code == 0
    assert len(workers.measured) == 40, "a case was measured twice"
    assert pa_csv.read_csv(tmp_path / "cases-measured.csv")["status"].to_pylist() == ["ok"] * 40


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ended_by_a_signal_it_resumes_and_loses_no_stored_row(run, workers, tmp_path, number):
    table = write(tmp_path / "cases.csv", 120)
    script = Path(__file__).with_name("ended_measure.py")
    ended = subprocess.run(
        [sys.executable, "-P", script, table, "70", str(int(number))], env=os.environ, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert "Traceback" not in ended.stderr
    assert ended.returncode in (-number, 130, 143)
    stored = Store(tmp_path / "home" / "measurements").read("softmax")["case_id"].to_pylist()
    # SIGKILL costs the block under way, the others nothing that was measured.
    assert len(stored) == len(set(stored))
    assert len(stored) >= (50 if number == signal.SIGKILL else 60)
    assert run("measure", table).code == 0
    assert len(workers.measured) == 120 - len(stored)
    assert pa_csv.read_csv(tmp_path / "cases-measured.csv")["status"].to_pylist() == ["ok"] * 120
    again = Store(tmp_path / "home" / "measurements").read("softmax")["case_id"].to_pylist()
    assert sorted(again) == sorted(set(again))
    assert set(again) >= set(stored)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"impl": ["torch", "vllm-0.24.0"]}, "row 2: impl: is 'vllm-0.24.0'; kernelcast measures iree, torch on a CPU"),
        ({"dtype": ["fp32", "fp8"]}, "row 2: dtype: is fp8; torch on a CPU is measured in"),
        ({"dtype": ["fp64", "fp32"]}, "row 1: dtype: is fp64; torch on a CPU is measured in fp32, bf16"),
        ({"threads": [1, 64]}, "row 2: threads: is 64; this process may use 2 cores"),
        (
            {"device": [DEVICE, "amd-epyc-9004-vm-2c"]},
            "row 2: device: is amd-epyc-9004-vm-2c, and this machine's CPU is",
        ),
        ({"device": ["l4", DEVICE]}, "row 1: device: no driver here"),
        ({"timing": ["", "call"]}, "row 2: timing: is 'call'"),
        ({"rows": [64, 2**39]}, "row 2: sizes: need"),
    ],
)
def test_cases_that_cannot_run_here_are_refused_before_measuring(run, workers, monkeypatch, tmp_path, columns, reason):
    def missing(index: int, *, uuid: str | None = None) -> None:
        raise nvml.NvmlMissingError("no driver here")

    monkeypatch.setattr(find, "nvml_reader", missing)
    table = write(tmp_path / "cases.csv", 2, **columns)
    message = run("measure", table).error
    assert "1 of 2 rows cannot be measured on this machine" in message
    assert reason in message
    assert "Nothing was measured" in message
    assert not workers.measured
    assert not (tmp_path / "cases-measured.csv").exists()
    done = run("measure", table, "--skip-bad-rows")
    assert done.code == 0, done.err
    assert len(workers.measured) == 1
    assert sorted(pa_csv.read_csv(tmp_path / "cases-measured.csv")["status"].to_pylist()) == ["ok", "unsupported"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_rows_without_a_result_keep_their_cells(run, workers, tmp_path, suffix):
    other = "amd-epyc-9004-vm-2c"
    table = write(tmp_path / f"cases{suffix}", 4, device=[DEVICE, other, other, other], latency_s=[None, 0.25, None, None],
                  status=["", "ok", "failed", ""], message=["", "", "too busy there", ""], threads=[1, 2, 2, 2])  # fmt: skip
    done = run("measure", table, "--skip-bad-rows")
    assert done.code == 0, done.err
    read = pa_csv.read_csv if suffix == ".csv" else pq.read_table
    rows = read(tmp_path / f"cases-measured{suffix}").to_pylist()
    assert [row["status"] for row in rows] == ["ok", "ok", "failed", "unsupported"]
    assert rows[0]["latency_s"] < rows[1]["latency_s"] == 0.25
    assert rows[2]["message"] == "too busy there"
    assert f"is {other}, and this machine's CPU is {DEVICE}" in rows[3]["message"]


def test_what_was_measured_before_an_error_is_in_the_table(run, workers, monkeypatch, tmp_path):
    table = write(tmp_path / "cases.csv", 3)
    campaign = command._campaign

    def full_disk(specs, *rest, **options):
        campaign(specs[:2], *rest, **options)
        raise StoreError("the disk is full")

    monkeypatch.setattr(command, "_campaign", full_disk)
    assert "the disk is full" in run("measure", table).error
    rows = pa_csv.read_csv(tmp_path / "cases-measured.csv").to_pylist()
    assert sorted(row["status"] for row in rows) == ["not measured", "ok", "ok"]


def test_advice_to_install_is_given_for_a_missing_package_alone(run, workers, monkeypatch, tmp_path):
    def reason(error: Exception) -> str:
        def versions() -> dict[str, str]:
            raise error

        command.refusal_of.cache_clear()
        monkeypatch.setattr(runner, "runners", lambda: {"torch": replace(torch, versions=versions)})
        message = run("measure", write(tmp_path / "cases.csv", 1)).error
        command.refusal_of.cache_clear()
        return message

    torch = runner.runners()["torch"]
    wanted = "impl: is 'torch', which cannot run here: "
    assert f"{wanted}it needs torch; run: pip install 'kernelcast[collect]'" in reason(PackageNotFoundError("torch"))
    message = reason(runner.UnsupportedCaseError("the driver is too old"))
    assert f"{wanted}the driver is too old\n" in message
    assert "pip install" not in message
    assert "kernelcast measure suggest --device NAME --out cases.csv" in message


def test_another_cpu_under_the_same_name_is_refused(run, workers, monkeypatch, tmp_path):
    assert run("measure", write(tmp_path / "cases.csv")).code == 0
    monkeypatch.setattr(host, "cpu_info", lambda: {"model name": "Another CPU", "cpu family": "26", "model": "2"})
    message = run("measure", write(tmp_path / "more.csv", rows=[1000, 1001, 1002])).error
    assert "cpu_model AMD EPYC 9V45 before, Another CPU now" in message
    assert "rows of two machines must not mix" in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none.csv",), "cannot read none.csv"),
        (("cases.csv", "--out", "x.txt"), "must end in .csv or .parquet"),
        (("cases.csv", "--out", "nowhere/x.csv"), "does not exist"),
    ],
)
def test_bad_input_is_one_clear_sentence(run, workers, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "cases.csv")
    assert message in run("measure", *words).error


def test_a_machine_without_a_device_file_says_what_to_do(run, workers, machine, tmp_path):
    machine["model"] = "99"
    assert "kernelcast measure machine" in run("measure", write(tmp_path / "cases.csv")).error
