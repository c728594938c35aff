from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from kernelcast.datasets.rows.schema import Provenance, arrow_schema, case_ids_of
from kernelcast.datasets.shipped import SHIPPED_DIR, TILES_DIR, read_shipped, shipped_families
from kernelcast.datasets.store.location import digest_of, new_name
from kernelcast.datasets.store.parquet_files import METADATA_KEY, parquet_bytes, read_file
from kernelcast.datasets.store.store import Store, StoreError
from kernelcast.datasets.store.verify import quarantine, verify
from kernelcast.features.kernel import KernelSpec

FACTS = {"kernel": "6.1", "versions": {"torch": "2.11.0"}}


def fill(store, make, blocks=3):
    for at in range(blocks):
        store.append([make(m=10 * at + m, block=f"b{at}") for m in (1, 2, 3)], Provenance(f"b{at}", FACTS))
    return store.names()


def rewritten(store, name, change):
    """The file with its table changed, under a name whose digest is right again; the new name."""
    table = change(read_file(store.root / name, arrow_schema("gemm")))
    content = parquet_bytes(table)
    new = f"{name.rpartition('/')[0]}/{new_name(digest_of([content]))}"
    (store.root / name).unlink()
    store.location.write([(new, content)])
    return new


def with_column(name, values):
    return lambda table: table.set_column(table.schema.get_field_index(name), name, pa.array(values))


def test_a_sound_store_is_clean(store, make):
    fill(store, make)
    result = verify(store)
    assert result.clean
    assert (result.files, result.rows, result.unnamed) == (3, 9, 0)


def test_a_flipped_bit_is_found_wherever_it_is(store, make):
    path = store.root / fill(store, make)[0]
    sound = path.read_bytes()
    places = {*np.linspace(0, len(sound) - 1, 25).astype(int).tolist(), 0, 3, 4, *range(len(sound) - 5, len(sound))}
    for place in places:
        bad = bytearray(sound)
        bad[place] ^= 1 << (place % 8)
        path.write_bytes(bad)
        result = verify(store)
        assert [name for name, _ in result.damaged] == [str(path.relative_to(store.root))], f"at byte {place}"
    path.write_bytes(sound)
    assert verify(store).clean


def test_cut_and_empty_files_are_found(store, make):
    names = fill(store, make)
    for name, length in zip(names, (0, 10, 3000), strict=True):
        (store.root / name).write_bytes((store.root / name).read_bytes()[:length])
    assert sorted(name for name, _ in verify(store).damaged) == names


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_column("m", [1, 2, 4]), "row 3 is called .* but its columns are those of"),
        (with_column("case_id", ["0" * 16] * 3), "row 1 is called 0000000000000000"),
        (
            with_column("device", ["elsewhere"] * 3),
            "rows of device 'elsewhere' but lies in family=gemm/device=my-machine",
        ),
        (with_column("family", ["softmax"] * 3), "rows of family 'softmax'"),
        (with_column("latency_s", ["fast"] * 3), "column latency_s holds string, its format has double"),
        (lambda table: table.drop_columns(["status"]), "it has no column status"),
        (lambda table: table.replace_schema_metadata(None), "has no format version"),
    ],
)
def test_a_file_that_is_not_what_its_format_says_is_damaged(store, make, change, words):
    fill(store, make)
    name = rewritten(store, store.names()[0], change)
    ((result, reason),) = verify(store).damaged
    assert result == name
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(reason)


def test_rows_that_cannot_be_true_are_told_of_and_stay(store, make):
    fill(store, make)
    name = rewritten(store, store.names()[0], with_column("latency_s", [1e-3, -1.0, 0.0]))
    result = verify(store)
    ((refused, reason),) = result.refused
    assert (refused, result.damaged, result.clean) == (name, [], False)
    assert reason == "2 of 3 rows cannot be true, the first: row 2: latency_s: must be a positive number, got -1"


def test_rows_faster_than_the_catalogue_allows_are_told_of(tmp_path, make):
    loose = Store(tmp_path, lower_bounds=lambda specs, devices: np.full(len(specs), np.nan))
    spec = KernelSpec.of("gemm", "fp32", m=8192, n=8192, k=8192)
    loose.append([make(spec=spec, device="nvidia-t4", latency_s=1e-6)], Provenance("b1", FACTS))
    ((_, reason),) = verify(Store(tmp_path)).refused
    assert "below the lower bound" in reason


def test_rows_that_are_there_twice_are_counted(store, make):
    fill(store, make)
    name = store.names()[0]
    content = (store.root / name).read_bytes()
    store.location.write([(f"{name.rpartition('/')[0]}/{new_name(digest_of([content]))}", content)])
    result = verify(store)
    assert (result.twice, result.clean) == ([("family=gemm/device=my-machine", 3)], False)


@pytest.mark.parametrize(("version", "advice"), [(99, "install the newer kernelcast"), (2, "kernelcast data import")])
def test_another_format_is_no_damage(store, make, version, advice):
    fill(store, make)
    note = {METADATA_KEY: f'{{"format_version": {version}}}'.encode()}
    name = rewritten(store, store.names()[0], lambda table: table.replace_schema_metadata(note))
    result = verify(store)
    ((other, reason),) = result.other_format
    assert (other, result.damaged, result.clean) == (name, [], False)
    assert f"format version {version}, this kernelcast reads 3" in reason
    assert advice in reason
    assert quarantine(store, result.damaged) == []


def test_what_is_no_measurement_is_told_of(store, make):
    (name, *_) = fill(store, make)
    folder = store.root / "family=fft" / "device=x"
    folder.mkdir(parents=True)
    shutil.copy(store.root / name, folder)
    leftover = store.root / name.replace("/20", "/.20")
    leftover.with_name(leftover.name + ".1.tmp").write_bytes(b"PAR1")
    result = verify(store)
    assert result.unknown_families == ["fft"]
    assert [Path(item).name for item in result.leftovers] == [leftover.name + ".1.tmp"]


def test_a_file_without_a_digest_in_its_name_is_checked_by_reading(store, make):
    fill(store, make, blocks=1)
    path = store.files()[0].rename(store.files()[0].with_name("20250131T101500.123456Z-9f86d081884c.parquet"))
    result = verify(store)
    assert (result.clean, result.unnamed, result.rows) == (True, 1, 3)
    path.write_bytes(path.read_bytes()[:-100])
    assert len(verify(store).damaged) == 1


def test_a_damaged_file_is_moved_away_with_the_reason(store, make):
    fill(store, make)
    path = store.files()[0]
    path.write_bytes(b"")
    moved = quarantine(store, verify(store).damaged)
    reason = json.loads((store.root / f"{moved[0]}.reason.json").read_text())
    assert reason["file"] == str(path.relative_to(store.root))
    assert reason["reason"] == "its content is not what its name says"
    assert store.read("gemm").num_rows == 6
    assert verify(store).clean
    assert set(store.location.find(".quarantine")) == {moved[0], f"{moved[0]}.reason.json"}


@pytest.mark.parametrize("ending", [".packed.parquet", ".blocks.parquet", ".replaces.json"])
def test_a_store_packed_in_place_by_an_earlier_kernelcast_is_refused_with_what_to_do(store, make, ending):
    (name, *_) = fill(store, make)
    (store.root / name).with_name(f"20250131T101500.123456Z-{'0' * 32}-{'0' * 8}{ending}").write_bytes(b"")
    for read in (store.names, lambda: store.read("gemm"), lambda: list(store.scan("gemm")), lambda: verify(store)):
        with pytest.raises(
            StoreError, match=r"packed in place by an earlier kernelcast.*--format form.*kernelcast data import"
        ):
            read()


def test_progress_is_told_file_by_file(store, make):
    fill(store, make)
    seen = []
    verify(store, progress=lambda what, done, total: seen.append((what, done, total)))
    assert seen == [("family=gemm/device=my-machine", at, 3) for at in (1, 2, 3)]


@pytest.mark.parametrize("directory", [SHIPPED_DIR, TILES_DIR])
def test_cases_are_named_as_specs_name_them(directory):
    for family in shipped_families(directory):
        table = read_shipped(family, directory=directory)
        assert case_ids_of(table, family) == table["case_id"].to_pylist()
        assert case_ids_of(table.slice(0, 0), family) == []


def test_rows_of_version_3_are_sound(store, make):
    (name,) = fill(store, make, blocks=1)
    rewritten(store, name, lambda table: table.drop_columns(["timing"]).replace_schema_metadata(
        {METADATA_KEY: table.schema.metadata[METADATA_KEY].replace(b'"format_version": 4', b'"format_version": 3')}
    ))  # fmt: skip
    assert verify(store).clean
    assert [batch["timing"].null_count for batch in store.scan("gemm")] == [3]


@pytest.mark.parametrize("timing", ["", "device", "call"])
def test_a_timing_is_part_of_a_case_s_name(store, make, timing):
    row = make(spec=KernelSpec.of("gemm", "fp32", m=64, n=64, k=64, timing=timing))
    store.append([row], Provenance("b1", FACTS))
    table = store.read("gemm")
    assert case_ids_of(table, "gemm") == table["case_id"].to_pylist() == [row.case_id]
    assert verify(store).clean
