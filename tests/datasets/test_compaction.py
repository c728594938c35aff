from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import threading
import warnings
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
import pytest
from kernelcast.datasets import naming
from kernelcast.datasets.compaction import ROW_GROUP_ROWS, compact_in_place
from kernelcast.datasets.files import provenance_of
from kernelcast.datasets.schema import FORMAT_VERSION, Provenance
from kernelcast.datasets.store import Store, StoreError, StoreWarning
from kernelcast.datasets.verifying import verify
from kernelcast.features.kernel import KernelSpec

FACTS = {"kernel": "6.1", "versions": {"torch": "2.11.0"}}


def fill(store, make, blocks=4, rows=3, start=0, **changes):
    for at in range(start, start + blocks):
        measured = [make(m=100 * at + m, block=f"b{at}", **changes) for m in range(rows, 0, -1)]
        store.append(measured, Provenance(f"b{at}", FACTS | {"at": at}))


def content(store, family="gemm"):
    """Every row, as often as it is there."""
    return Counter(map(str, store.read(family).to_pylist()))


@pytest.fixture
def aged(monkeypatch):
    """Call to let hours pass for everything that is named by the time."""
    passed = timedelta()

    def later(hours):
        nonlocal passed
        passed += timedelta(hours=hours)

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(UTC) + passed

    monkeypatch.setattr(naming, "datetime", Clock)
    return later


def all_names(store):
    return [name for name in store.place.find("") if "/.locks" not in name and not name.startswith(".locks")]


def test_small_files_become_few_sorted_ones_of_bounded_size(store, make):
    fill(store, make, blocks=5, rows=4)
    before = content(store)
    done = compact_in_place(store, target_rows=8)
    assert (done.folders, done.read, done.written, done.rows, done.damaged) == (1, 5, 3, 20, ())
    assert content(store) == before
    sizes = []
    for path in store.files():
        with pq.ParquetFile(path) as file:
            rows = file.read().to_pylist()
            assert [row["m"] for row in rows] == sorted(row["m"] for row in rows)
            sizes.append(len(rows))
    assert sorted(sizes) == [4, 8, 8]


def test_each_family_and_device_is_packed_by_itself(store, make):
    for device in ("one", "two"):
        fill(store, make, device=device)
        fill(store, make, device=device, spec=KernelSpec.of("softmax", "fp32", rows=4, cols=4), start=9)
    assert compact_in_place(store).folders == 4
    assert len(store.names()) == 4


def test_packed_files_are_left_alone_until_there_is_enough_to_do(store, make):
    fill(store, make, blocks=4, rows=4)
    compact_in_place(store, target_rows=8)
    packed = set(store.names())
    assert compact_in_place(store, target_rows=8).read == 0
    fill(store, make, blocks=1, rows=2, start=20)
    # One small file beside full ones is no reason to write anything.
    assert compact_in_place(store, target_rows=8).read == 0
    fill(store, make, blocks=1, rows=2, start=21)
    done = compact_in_place(store, target_rows=8)
    assert (done.read, done.written) == (2, 1)
    assert packed < set(store.names())


def test_provenance_of_all_blocks_goes_along_twice(store, make, aged):
    fill(store, make)
    compact_in_place(store)
    aged(2)
    fill(store, make, blocks=3, start=10)
    compact_in_place(store)
    aged(2)
    assert compact_in_place(store).removed > 0
    expected = {f"b{at}": FACTS | {"at": at} for at in (0, 1, 2, 3, 10, 11, 12)}
    assert provenance_of(store.read("gemm")) == expected
    with pq.ParquetFile(store.files()[0]) as file:
        # Opening a packed file costs the same however many blocks its rows are of.
        assert provenance_of(file.read()) == {}
        assert file.metadata.row_group(0).num_rows <= ROW_GROUP_ROWS
    assert set(store.read("gemm")["software"].to_pylist()) == {"kernel=6.1; torch=2.11.0"}


def test_replaced_files_stay_for_readers_and_go_with_the_next_compaction(store, make, aged):
    fill(store, make)
    before, replaced = content(store), set(store.names())
    compact_in_place(store)
    assert replaced < set(all_names(store))
    assert compact_in_place(store).removed == 0
    aged(2)
    assert compact_in_place(store).removed == len(replaced) + 2
    assert not replaced & set(all_names(store))
    assert content(store) == before
    # Rows, their provenance, and the record twice.
    assert len(all_names(store)) == 4


def half_compacted(store, make, aged):
    """A store with packed files, replaced ones that are due, and new small files of two devices; its rows and provenance."""
    fill(store, make, blocks=3)
    compact_in_place(store, target_rows=6)
    fill(store, make, blocks=2, start=10)
    fill(store, make, blocks=2, start=20, device="another")
    aged(2)
    return content(store), provenance_of(store.read("gemm"))


def killed_after(steps, store, dying, keep_s):
    """Compact and be killed; whether it came to its end before that."""
    place = store.place
    store.place = dying(place, steps)
    try:
        compact_in_place(store, target_rows=6, keep_s=keep_s)
    except dying.killed:
        return False
    finally:
        store.place = place
    return True


def holds(store, rows, blocks, *, verified=True):
    table = store.read("gemm")
    assert Counter(map(str, table.to_pylist())) == rows
    assert provenance_of(table) == blocks
    assert sum(batch.num_rows for batch in store.scan("gemm", columns=["m"])) == rows.total()
    assert not verified or verify(store).clean


@pytest.mark.parametrize("keep_s", [0, 3600])
def test_killed_at_any_step_rows_are_neither_lost_nor_counted_twice(tmp_path, make, dying, aged, keep_s):
    rows, blocks = half_compacted(Store(tmp_path / "start"), make, aged)
    steps, finished = 0, False
    while not finished:
        shutil.copytree(tmp_path / "start", tmp_path / str(steps))
        finished = killed_after(steps, Store(tmp_path / str(steps)), dying, keep_s)
        # Verifying takes longer than all the rest.
        holds(Store(tmp_path / str(steps)), rows, blocks, verified=steps % 4 == 0)
        steps += 1
    assert steps > 10
    # Each of them is put in order by the next compaction, once what was left over is old enough.
    aged(26)
    for at in range(1, steps, 5):
        store = Store(tmp_path / str(at))
        compact_in_place(store, target_rows=6, keep_s=0)
        holds(store, rows, blocks, verified=False)
        found = verify(store)
        assert (found.clean, found.leftovers, found.replaced) == (True, (), 0)


def test_killed_again_and_again_a_compaction_still_gets_done(root, open_store, make, dying, aged):
    rows, blocks = half_compacted(open_store(root), make, aged)
    steps = 1
    while not killed_after(steps, open_store(root), dying, 0):
        holds(open_store(root), rows, blocks, verified=False)
        # A bucket takes longer for each step.
        steps += 7 if root.startswith("s3") else 1
    holds(open_store(root), rows, blocks)


def test_killed_from_outside_it_leaves_what_the_next_removes(tmp_path, make, aged):
    store = Store(tmp_path)
    fill(store, make, blocks=6)
    code = (
        "import os, sys\nfrom kernelcast.datasets import compaction\nfrom kernelcast.datasets.store import Store\n"
        "publish = compaction._Packing._publish\n"
        "def die(self, path, kind):\n    if kind == '.blocks.parquet': os.kill(os.getpid(), 9)\n"
        "    return publish(self, path, kind)\n"
        "compaction._Packing._publish = die\n"
        f"compaction.compact_in_place(Store({str(tmp_path)!r}))\n"
    )  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == -9
    assert store.read("gemm").num_rows == 18
    assert len(verify(store).leftovers) == 2
    aged(25)
    assert compact_in_place(store).removed == 2
    assert store.read("gemm").num_rows == 18


def test_collectors_append_and_readers_read_meanwhile(root, open_store, make):
    fill(open_store(root), make, blocks=5)
    stop, seen, errors = threading.Event(), [], []

    def read():
        try:
            while not stop.is_set():
                seen.append(sum(batch.num_rows for batch in open_store(root).scan("gemm", columns=["m"])))
                seen.append(open_store(root).read("gemm", columns=["m"]).num_rows)
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            errors.append(error)

    def collect():
        fill(open_store(root), make, blocks=6, start=50)

    threads = [threading.Thread(target=read), threading.Thread(target=collect)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        compact_in_place(open_store(root))
    threads[1].join()
    stop.set()
    threads[0].join()
    assert errors == []
    # Appended blocks come whole, and no compaction adds or takes a row.
    assert seen == sorted(seen)
    assert {count % 3 for count in seen} == {0}
    assert seen[0] >= 15
    compact_in_place(open_store(root))
    assert open_store(root).read("gemm").num_rows == 33
    assert len(open_store(root).names()) == 1


def test_a_reader_whose_files_were_removed_reads_again_or_says_so(store, make, monkeypatch):
    fill(store, make)
    listed = store.listing.folders("gemm")
    compact_in_place(store, keep_s=0)
    real = store.listing.folders
    stale = iter([listed])
    monkeypatch.setattr(store.listing, "folders", lambda *given: next(stale, None) or real(*given))
    assert store.read("gemm").num_rows == 12
    stale = iter([listed])
    assert sum(batch.num_rows for batch in store.scan("gemm")) == 12
    monkeypatch.undo()
    fill(store, make, start=30)
    rows = store.scan("gemm")
    next(rows)
    compact_in_place(store, keep_s=0)
    with pytest.raises(StoreError, match=r"compacted while it was being read.*--keep-minutes"):
        list(rows)


def test_two_compactions_of_one_store(store, make, aged):
    fill(store, make)
    before, inputs = content(store), store.names()
    code = (
        "import sys\nfrom kernelcast.datasets.locking import held\nfrom pathlib import Path\n"
        f"with held(Path({str(store.place.lock_file('.compaction'))!r}), ''):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(StoreError, match=f"is being compacted by process {holder.pid}"):
        compact_in_place(store)
    holder.communicate()
    # From two machines, at a URL, nothing holds the second back: its record comes second, and is void.
    compact_in_place(store)
    record = next(name for name in all_names(store) if name.endswith(".replaces.json"))
    packed = {name: store.place.open(name).read() for name in all_names(store) if ".packed." in name}
    ((name, rows),) = packed.items()
    copy = f"{name.rpartition('/')[0]}/{naming.new_name(naming.digest_of([rows]), naming.PACKED)}"
    second = (store.root / record).read_text().replace(name.rpartition("/")[2], copy.rpartition("/")[2]).encode()
    named = f"{name.rpartition('/')[0]}/{naming.new_name(naming.digest_of([second]), naming.RECORD)}"
    store.place.write([(copy, rows), (named, second)])
    assert content(store) == before
    aged(2)
    compact_in_place(store)
    assert content(store) == before
    assert not set(inputs) & set(all_names(store))
    assert named not in all_names(store)


def test_damaged_files_are_left_where_they_are(store, make):
    fill(store, make)
    bad = store.files()[1]
    bad.write_bytes(bad.read_bytes()[:-30])
    done = compact_in_place(store)
    assert [name for name, _ in done.damaged] == [str(bad.relative_to(store.root))]
    assert done.read == 3
    assert bad.exists()
    with pytest.warns(StoreWarning, match=bad.name):
        assert store.read("gemm").num_rows == 9


def test_a_damaged_record_costs_nothing_as_long_as_its_copy_is_sound(store, make, aged):
    fill(store, make)
    compact_in_place(store, keep_s=0)
    records = [store.root / name for name in all_names(store) if name.endswith(".replaces.json")]
    records[0].write_bytes(records[0].read_bytes().replace(b"packed", b"pocked"))
    with pytest.warns(StoreWarning, match="its content is not what its name says"):
        assert Store(store.root).read("gemm").num_rows == 12
    records[1].unlink()
    with pytest.warns(StoreWarning, match="rows of the packed files it names are not read"):
        assert Store(store.root).read("gemm").num_rows == 0
    # The packed files look unused now, and must not be taken for leftovers.
    aged(48)
    fill(store, make, start=9)
    with pytest.warns(StoreWarning, match="its content is not"):
        compact_in_place(Store(store.root), keep_s=0)
    assert sum(".packed." in name for name in all_names(store)) == 2


def test_a_full_disk_leaves_the_store_as_it_was(store, make, monkeypatch):
    fill(store, make)
    before, names = content(store), set(all_names(store))

    def full(*given):
        raise StoreError("no space left to write it")

    monkeypatch.setattr(store.place, "publish", full)
    with pytest.raises(StoreError, match="no space left"):
        compact_in_place(store)
    assert content(store) == before
    assert set(all_names(store)) == names


def test_a_disk_that_is_full_while_rows_are_packed_is_one_sentence(store, make, monkeypatch):
    fill(store, make)
    names = set(all_names(store))

    def full(*given, **named):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(StoreError, match=r"no space left to write .*earlier rows are safe"):
        compact_in_place(store)
    assert set(all_names(store)) == names


def test_packing_writes_the_newest_format(store, make):
    fill(store, make)
    compact_in_place(store)
    for path in store.files():
        with pq.ParquetFile(path) as file:
            assert f'"format_version": {FORMAT_VERSION}'.encode() in file.schema_arrow.metadata[b"kernelcast"]


def test_a_store_of_nothing_has_nothing_to_pack(store):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compact_in_place(store).read == 0
