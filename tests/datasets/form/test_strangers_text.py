"""Text that strangers wrote: one rule for what is kept, and nothing that a terminal or a spreadsheet acts on is written."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kernelcast.commands import console
from kernelcast.datasets.form.export import row_file, without_formulas
from kernelcast.datasets.form.form import read_form
from kernelcast.datasets.form.import_form import import_form
from kernelcast.datasets.form.importer import read_sheet
from kernelcast.datasets.rows.table_columns import MAX_COLUMNS
from kernelcast.datasets.store.store import Store
from kernelcast.features.device import CATALOGUE_DIR, catalogue_with, parse_device
from kernelcast.features.errors import SpecError, check_text, is_plain, printable

ODD = ("\x1b[2J", "a\x07", "\u202etxt.exe", "\x9b31m", "a\x7f", "\u200b", "a\nb", "x" * 401)
HEAD = "family,device,dtype,rows,cols,latency_s"
ROW = "softmax,nvidia-l4,fp32,64,64,0.001"
FORMULAS = ("=1+1", "+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1")


@pytest.mark.parametrize("text", ODD)
def test_what_cannot_be_printed_is_not_kept(text: str) -> None:
    assert not is_plain(text)
    with pytest.raises(SpecError, match="at most 400 characters, all of which can be printed") as refused:
        check_text(text, "title")
    assert str(refused.value).isprintable()
    assert printable(text).replace("\n", "").isprintable()


def write(path: Path, **columns: str) -> Path:
    if path.suffix == ".csv":
        names = ",".join([HEAD, *columns])
        path.write_text(f"{names}\n{','.join([ROW, *columns.values()])}\n{ROW}{',' * len(columns)}\n")
        return path
    cells = dict(zip(HEAD.split(","), ["softmax", "nvidia-l4", "fp32", 64, 64, 0.001], strict=True)) | columns
    pq.write_table(pa.table({name: [cell, None if name in columns else cell] for name, cell in cells.items()}), path)
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
@pytest.mark.parametrize("column", ["source", "impl", "message", "split", "device"])
@pytest.mark.parametrize("odd", ["\x1b[31mred", "\u202ereversed", "\x9bm"])
def test_no_row_with_such_text_is_stored(tmp_path: Path, name: str, column: str, odd: str) -> None:
    if column == "device":
        path = tmp_path / "device.csv"
        path.write_text(f"{HEAD}\n{ROW.replace('nvidia-l4', odd)}\n{ROW}\n")
    else:
        path = write(tmp_path / name, **{column: odd})
    form = read_form(path, skip_bad_rows=True)
    (refused,) = form.refused
    assert (refused.row, refused.column) == (0, column)
    assert "can be printed" in str(refused)
    assert str(refused).isprintable()


def test_a_source_and_a_licence_are_such_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv")
    for source, licence in (("\x1b]0;x\x07", None), ("me", "\x1b[2J")):
        with pytest.raises(SpecError, match="can be printed"):
            import_form(path, Store(tmp_path / "store"), source, licence=licence)


def test_thousands_of_columns_are_refused_at_once(tmp_path: Path) -> None:
    names = ",".join(f"c{i}" for i in range(20_000))
    (tmp_path / "wide.csv").write_text(f"{HEAD},{names}\n{ROW},{',' * 19_999}\n")
    pq.write_table(pa.table({f"c{i}": [1] for i in range(2000)}), tmp_path / "wide.parquet")
    started = time.process_time()
    for path in (tmp_path / "wide.csv", tmp_path / "wide.parquet"):
        for read in (read_form, read_sheet):
            with pytest.raises(SpecError, match=f"columns; at most {MAX_COLUMNS} are read"):
                read(path)
    assert time.process_time() - started < 5


def test_a_column_s_name_is_such_a_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"{HEAD},\x1b[2J\n{ROW},1\n")
    with pytest.raises(SpecError, match="the name of a column is"):
        read_form(tmp_path / "t.csv")


def test_no_exported_text_is_a_formula(tmp_path: Path) -> None:
    table = pa.table({"message": [*FORMULAS, "fine", None], "power_w": [-1.0] * 8})
    with row_file(tmp_path / "out.csv", table.schema) as file:
        file.write_table(table)
    lines = (tmp_path / "out.csv").read_text()
    assert all(f"\"'{formula}" in lines for formula in FORMULAS if "\r" not in formula)
    assert without_formulas(table)["message"].to_pylist() == [*(f"'{formula}" for formula in FORMULAS), "fine", None]
    assert ",-1" in lines


def test_the_command_line_prints_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\x1b[2Jb\x9bm\u202e\x7f"
    console.show_table(["head"], [[evil]])
    console.note(evil)
    console.print_json({"name": evil})
    for said in capsys.readouterr():
        assert said.replace("\n", "").isprintable(), said
        assert "a" in said


SHIPPED = (CATALOGUE_DIR / "nvidia-l4.yaml").read_text()


@pytest.mark.parametrize(
    "name", ["../../x", "<script>", "a b", "a/b", "x" * 65, "-x", "a\\n", ".hidden", "[1, 2]", "12"]
)
def test_a_device_s_name_is_a_name(name: str) -> None:
    with pytest.raises(SpecError, match="name"):
        parse_device(
            SHIPPED.replace("name: nvidia-l4", f'name: "{name}"' if name not in ("12", "[1, 2]") else f"name: {name}"),
            origin="x",
        )


def test_a_device_file_says_no_odd_text() -> None:
    with pytest.raises(SpecError, match="vendor is"):
        parse_device(SHIPPED.replace("vendor: nvidia", 'vendor: "\\e[2J"'), origin="x")


def test_a_device_file_takes_no_shipped_device_s_place_unseen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(SHIPPED)
    with caplog.at_level(logging.WARNING):
        catalogue_with([mine])
    assert "takes the place of the shipped device nvidia-l4" in caplog.text
    mine.write_text(SHIPPED.replace("name: nvidia-l4", "name: mine"))
    with pytest.raises(SpecError, match="is a name of the shipped device nvidia-l4"):
        catalogue_with([mine])
