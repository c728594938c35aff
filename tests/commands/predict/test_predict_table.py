"""`kernelcast predict --table`: rows and order kept, labels never read, nothing half written."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

ADDED = [
    "pred_latency_s", "pred_latency_lo_s", "pred_latency_hi_s", "pred_power_w", "pred_power_lo_w", "pred_power_hi_w",
    "pred_energy_j", "pred_energy_lo_j", "pred_energy_hi_j", "in_domain", "bound", "method",
]  # fmt: skip


def rows(**changes: list[object]) -> pa.Table:
    columns = {
        "family": ["gemm"] * 4, "device": ["nvidia-t4", "H100-SXM", "nvidia-t4", "nvidia-l4"], "dtype": ["fp32"] * 4,
        "m": [64, 128, 1, 7], "n": [64] * 4, "k": [64] * 4, "latency_s": [1e-5, 2e-5, None, 3e-5],
        "my_note": ["a", "b", "c", None],
    }  # fmt: skip
    return pa.table(columns | changes)


@pytest.fixture
def predict(run, fake, tmp_path):
    """Writes a table, predicts it, reads what came out."""

    def predict(table: pa.Table, *options: object, suffix: str = ".parquet"):
        source, out = tmp_path / f"in{suffix}", tmp_path / f"out{suffix}"
        pq.write_table(table, source) if suffix == ".parquet" else pa_csv.write_csv(table, source)
        done = run("predict", "--model", tmp_path, "--table", source, "--out", out, *options)
        read = pq.read_table if suffix == ".parquet" else pa_csv.read_csv
        return done, read(out) if out.exists() else None

    return predict


def test_rows_order_and_columns_are_kept(predict, tmp_path):
    table = rows()
    done, result = predict(table)
    assert done.code == 0
    assert result.column_names == [*table.column_names, *ADDED]
    assert result.select(table.column_names).equals(table)
    assert result["pred_latency_s"].null_count == 0
    for name, unit in (("latency", "s"), ("power", "w"), ("energy", "j")):
        low, value, high = (result[f"pred_{name}{end}_{unit}"].to_pylist() for end in ("_lo", "", "_hi"))
        assert all(a <= b <= c for a, b, c in zip(low, value, high, strict=True))
    assert result.schema.field("in_domain").type == pa.bool_()
    assert set(result["bound"].to_pylist()) <= {"compute", "dram", "cache", "launch"}
    assert "4 rows predicted" in done.err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_json_says_what_was_written(predict, tmp_path):
    done, _ = predict(rows(), "--json")
    assert json.loads(done.out) == {"out": str(tmp_path / "out.parquet"), "rows": 4, "predicted": 4, "refused": 0}


@pytest.mark.parametrize("labels", [[9.0] * 4, ["x", "y", "z", ""], [-1, 0, None, 5], None])
def test_labels_are_never_read(predict, labels):
    plain = predict(rows())[1]
    table = rows(latency_s=labels) if labels else rows().drop_columns("latency_s")
    done, result = predict(table)
    assert done.code == 0
    assert result.select(ADDED).equals(plain.select(ADDED))


def test_families_may_be_mixed_and_several_batches_long(predict, monkeypatch):
    from kernelcast.commands.predict import predict_table

    monkeypatch.setattr(predict_table, "_BATCH_ROWS", 3)
    table = pa.table({"family": ["gemm", "copy"] * 10, "device": ["nvidia-t4"] * 20, "dtype": ["fp32"] * 20,
                      "m": [8, None] * 10, "n": [8, None] * 10, "k": [8, None] * 10,
                      "rows": [None, 8] * 10, "cols": [None, 8] * 10})  # fmt: skip
    done, result = predict(table)
    assert done.code == 0, done.err
    assert result["pred_latency_s"].null_count == 0
    assert result["family"].to_pylist() == table["family"].to_pylist()


def test_csv_in_and_out(predict):
    done, result = predict(rows(), suffix=".csv")
    assert done.code == 0
    assert result["pred_latency_s"].to_pylist() == predict(rows())[1]["pred_latency_s"].to_pylist()
    assert result["in_domain"].to_pylist()[0] in (True, False)


def test_power_that_is_not_known_is_null(predict):
    result = predict(rows(dtype=["fp64"] * 4))[1]
    assert result["pred_power_w"].null_count == result["pred_energy_hi_j"].null_count == 4
    assert result["pred_latency_s"].null_count == 0


def test_the_family_can_be_given_on_the_command_line(predict):
    assert predict(rows().drop_columns("family"), "--family", "gemm")[0].code == 0
    assert "family" in predict(rows().drop_columns("family"))[0].error


def test_rows_that_cannot_be_predicted_are_listed(predict):
    done, result = predict(rows(device=["nvidia-t4", "h900", "nvidia-t4", "nvidia-l4"], m=[64, 128, 0, 7]))
    assert result is None
    assert "row 2: device" in done.error
    assert "row 3: m" in done.error
    assert "--skip-bad-rows" in done.error


def test_keep_good_keeps_them_with_the_reason(predict):
    table = rows(device=["nvidia-t4", "h900", "nvidia-t4", "nvidia-l4"])
    done, result = predict(table, "--skip-bad-rows")
    assert done.code == 0
    assert result.num_rows == 4
    assert result["pred_latency_s"].is_null().to_pylist() == [False, True, False, False]
    assert result["in_domain"].is_null().to_pylist() == [False, True, False, False]
    assert result["refused"].is_null().to_pylist() == [True, False, True, True]
    assert "h900" in result["refused"][1].as_py()


def test_a_family_the_model_does_not_know_is_refused_row_by_row(predict):
    table = pa.table({"family": ["conv2d", "gemm"], "device": ["nvidia-t4"] * 2, "dtype": ["fp32"] * 2,
                      **{name: [8, None] for name in ("batch", "in_channels", "out_channels", "height", "width")},
                      "kernel": [3, None], **{name: [None, 8] for name in ("m", "n", "k")}})  # fmt: skip
    table = table.set_column(table.column_names.index("batch"), "batch", pa.array([8, 1]))
    assert "row 1: family: the model was not trained on conv2d" in predict(table)[0].error
    assert predict(table, "--skip-bad-rows")[1]["pred_latency_s"].is_null().to_pylist() == [True, False]


def test_columns_of_an_earlier_prediction_are_replaced(predict):
    done, result = predict(rows().append_column("method", pa.array(["old"] * 4)))
    assert result.column_names.count("method") == 1
    assert result["method"].to_pylist() == ["fake"] * 4
    assert "replaced" in done.err


@pytest.mark.parametrize(
    ("out", "said"),
    [("in.parquet", "is the table that is read"), ("no/out.parquet", "does not exist"), ("out.xlsx", "must end in"),
     ("folder.parquet", "is a folder")],
)  # fmt: skip
def test_an_output_without_a_place(run, fake, tmp_path, out, said):
    pq.write_table(rows(), tmp_path / "in.parquet")
    (tmp_path / "folder.parquet").mkdir()
    assert (
        said in run("predict", "--model", tmp_path, "--table", tmp_path / "in.parquet", "--out", tmp_path / out).error
    )


def test_a_table_that_is_not_there_or_broken(run, fake, tmp_path):
    (tmp_path / "in.parquet").write_bytes(b"PAR1 broken")
    for name, said in (
        ("in.parquet", "not a readable Parquet"),
        ("none.parquet", "cannot read"),
        ("in.txt", "does not end in"),
    ):
        assert (
            said in run("predict", "--model", tmp_path, "--table", tmp_path / name, "--out", tmp_path / "o.csv").error
        )


def test_a_full_disk_leaves_the_old_file(run, fake, tmp_path, monkeypatch):
    pq.write_table(rows(), tmp_path / "in.parquet")
    out = tmp_path / "out.parquet"
    out.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    done = run("predict", "--model", tmp_path, "--table", tmp_path / "in.parquet", "--out", out)
    assert "no space left" in done.error
    assert out.read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} <= {"in.parquet", "out.parquet", "home"}


def test_rows_may_have_a_power_limit_or_a_clock(predict):
    devices = ["nvidia-t4", "H100-SXM", "H100-SXM", "H100-SXM"]
    plain, limited = rows(device=devices, m=[4096] * 4, n=[4096] * 4, k=[4096] * 4), {
        "power_limit_w": [70.0, 700.0, 300.0, None], "clock_hz": [None, None, None, 1.0e9]
    }  # fmt: skip
    _, usual = predict(plain)
    for name, cells in limited.items():
        plain = plain.append_column(name, pa.array(cells, pa.float64()))
    done, result = predict(plain)
    assert done.code == 0, done.err
    seconds, usual_s = (table["pred_latency_s"].to_pylist() for table in (result, usual))
    assert seconds[:2] == usual_s[:2]
    assert seconds[3] > 1.5 * usual_s[3]
    assert result["method"].to_pylist()[3].endswith("under 1000 MHz")


def test_rows_with_impossible_settings_are_refused_by_name(predict):
    table = rows(device=["nvidia-t4", "H100-SXM", "amd-epyc-9654", "nvidia-t4"])
    table = table.append_column("power_limit_w", pa.array([400.0, 30.0, 200.0, None]))
    table = table.append_column("clock_hz", pa.array([None, None, None, 9e9]))
    done, result = predict(table, "--skip-bad-rows")
    assert done.code == 0
    reasons = result["refused"].to_pylist()
    for reason, words in zip(reasons, ("70 W", "117 to 700 W", "is a CPU", "above its boost clock"), strict=True):
        assert words in reason
