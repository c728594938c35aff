"""The same store in a folder, in memory and in a bucket of a server that speaks S3's protocol."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pytest
from kernelcast.datasets.form.export import export
from kernelcast.datasets.rows.checks import as_failed
from kernelcast.datasets.rows.schema import Provenance, from_row
from kernelcast.datasets.store.location import LocalLocation, location_of
from kernelcast.datasets.store.parquet_files import provenance_of
from kernelcast.datasets.store.store import Store, StoreError
from kernelcast.datasets.store.verify import quarantine, verify
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec

APPEND = """
import sys
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.store.store import Store
from kernelcast.features.kernel import KernelSpec

root, who, blocks = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = Store(root)
print("ready", flush=True)
for block in range(blocks):
    name = f"{who}-{block}"
    rows = [Measurement(KernelSpec.of("gemm", "fp32", m=m, n=8, k=8), "shared", "ok", name, latency_s=1e-3)
            for m in range(1, 6)]
    store.append(rows, Provenance(name, {"who": who}))
"""
FACTS = {"kernel": "6.1", "versions": {"torch": "2.11.0"}}


def read_bytes(store: Store, name: str) -> bytes:
    with store.location.open(name) as file:
        return file.read()


def test_rows_come_back(root, open_store, make):
    store = open_store(root)
    assert (store.names(), store.families(), store.read("gemm").num_rows) == ([], [], 0)
    softmax = KernelSpec.of("softmax", "fp32", rows=4, cols=4)
    rows = [make(m=3), make(m=1, device="other"), make(spec=softmax)]
    written = store.append(rows, Provenance("b1", FACTS))
    store = open_store(root)
    assert len(written) == len(store.names()) == 3
    assert store.families() == ["gemm", "softmax"]
    table = store.read("gemm")
    assert {from_row(row).spec for row in table.to_pylist()} == {rows[0].spec, rows[1].spec}
    assert provenance_of(table) == {"b1": FACTS}
    assert set(table["software"].to_pylist()) == {"kernel=6.1; torch=2.11.0"}
    assert store.read("gemm", ["other"], ["m"]).to_pylist() == [{"m": 1}]
    assert store.read("gemm", [""]).num_rows == store.read("gemm", ["nobody"]).num_rows == 0


def test_a_campaign_resumes_by_its_cases(root, open_store, make):
    rows = [make(m=1), make(m=2, status="crashed", latency_s=None), as_failed(make(m=3), "x"),
            make(m=4, status="unsupported", latency_s=None)]  # fmt: skip
    open_store(root).append(rows, Provenance("b1", FACTS))
    assert open_store(root).case_ids("my-machine") == {rows[0].case_id, rows[3].case_id}
    assert open_store(root).case_ids("another") == set()


def test_a_scan_gives_what_reading_gives_in_small_batches(root, open_store, make):
    store = open_store(root)
    for block in ("b1", "b2"):
        store.append([make(m=m, block=block) for m in range(1, 8)], Provenance(block, FACTS))
    batches = list(store.scan("gemm", batch_rows=3))
    assert [batch.num_rows for batch in batches] == [3, 3, 1, 3, 3, 1]
    whole = store.read("gemm").replace_schema_metadata(None)
    assert [row for batch in batches for row in batch.to_pylist()] == whole.to_pylist()
    few = list(
        store.scan("gemm", ["my-machine"], ["m", "latency_s"], (pc.field("m") > 5) & (pc.field("block") == "b2"))
    )
    assert [row for batch in few for row in batch.to_pylist()] == [{"m": m, "latency_s": 1e-3} for m in (6, 7)]


def test_two_collectors_at_once(root, open_store, make, tmp_path):
    def collect(who: str) -> None:
        for block in range(6):
            rows = [make(m=m, block=f"{who}-{block}", device="shared") for m in range(1, 6)]
            open_store(root).append(rows, Provenance(f"{who}-{block}", {"who": who}))

    if root.startswith("memory"):
        threads = [threading.Thread(target=collect, args=(who,)) for who in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        other = subprocess.Popen(
            [sys.executable, "-c", APPEND, root, "a", "6"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
        )
        # Begun when the other one is about to write: starting takes it longer than writing.
        other.stdout.readline()
        collect("b")
        _, errors = other.communicate(timeout=120)
        assert other.returncode == 0, errors
    table = open_store(root).read("gemm")
    assert table.num_rows == 2 * 6 * 5
    assert Counter(facts["who"] for facts in provenance_of(table).values()) == {"a": 6, "b": 6}
    assert open_store(root).leftovers() == []


def test_killed_between_the_files_of_a_block_no_file_is_half_there(root, open_store, make, dying):
    store = open_store(root)
    location = store.location
    softmax = make(spec=KernelSpec.of("softmax", "fp32", rows=4, cols=4))
    # In a folder a block is one step; elsewhere each of its files is.
    whole = isinstance(location, LocalLocation)
    store.location = dying(location, 0 if whole else 1)
    with pytest.raises(dying.killed):
        store.append([make(), softmax], Provenance("b1", FACTS))
    assert open_store(root).families() == ([] if whole else ["gemm"])
    assert verify(open_store(root)).clean
    store.location = location
    again = [make(block="b2"), make(spec=softmax.spec, block="b2")]
    fresh = [item for item in again if item.case_id not in open_store(root).case_ids("my-machine")]
    store.append(fresh, Provenance("b2", FACTS))
    assert {name: table.num_rows for name, table in store.read_all().items()} == {"gemm": 1, "softmax": 1}


def test_many_blocks_are_read_in_order_and_clean(root, open_store, make):
    store = open_store(root)
    for at in range(5):
        rows = [make(m=10 * at + m, block=f"b{at}") for m in (1, 2, 3)]
        store.append(rows, Provenance(f"b{at}", FACTS | {"at": at}))
    result = verify(open_store(root))
    assert (result.clean, result.rows, result.leftovers) == (True, 15, [])
    table = open_store(root).read("gemm")
    assert table["m"].to_pylist() == sorted(table["m"].to_pylist())
    assert provenance_of(table) == {f"b{at}": FACTS | {"at": at} for at in range(5)}


def test_collectors_append_and_readers_read_meanwhile(root, open_store, make):
    stop, seen, errors = threading.Event(), [], []

    def read():
        try:
            while not stop.is_set():
                seen.append(sum(batch.num_rows for batch in open_store(root).scan("gemm", columns=["m"])))
                seen.append(open_store(root).read("gemm", columns=["m"]).num_rows)
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for at in range(8):
        open_store(root).append([make(m=m, block=f"b{at}") for m in (1, 2, 3)], Provenance(f"b{at}", FACTS))
    stop.set()
    thread.join()
    assert errors == []
    # Appended blocks come whole.
    assert seen == sorted(seen)
    assert {count % 3 for count in seen} <= {0}
    assert open_store(root).read("gemm").num_rows == 24


def test_damage_is_found_and_moved_away(root, open_store, make):
    store = open_store(root)
    store.append([make(m=1)], Provenance("b1", FACTS))
    store.append([make(m=2, block="b2")], Provenance("b2", FACTS))
    name = store.names()[0]
    content = bytearray(read_bytes(store, name))
    content[len(content) // 2] ^= 4
    store.location.write([(name, bytes(content))])
    result = verify(open_store(root))
    assert result.damaged == [(name, "its content is not what its name says")]
    assert quarantine(store, result.damaged) == [f".quarantine/{name}"]
    assert b"not what its name says" in read_bytes(store, f".quarantine/{name}.reason.json")
    assert open_store(root).read("gemm")["m"].to_pylist() == [2]
    assert verify(open_store(root)).clean


def test_a_device_is_locked_on_this_machine(root, open_store):
    with open_store(root).lock("gpu0"):
        with (
            pytest.raises(StoreError, match=f"gpu0 is being measured by process {os.getpid()}"),
            open_store(root).lock("gpu0"),
        ):
            pass
        with open_store(root).lock("gpu1"):
            pass
    with open_store(root).lock("gpu0"):
        pass


def test_other_filesystems_get_their_files_by_renaming(tmp_path, open_store, make):
    store = open_store(f"local://{tmp_path}/rows")
    store.append([make()], Provenance("b1", FACTS))
    assert store.read("gemm").num_rows == 1
    assert store.leftovers() == []
    assert store.location.protocol == "local"


def test_what_is_no_file_is_not_waited_for_nor_missed(tmp_path, make):
    store = Store(tmp_path)
    store.append([make()], Provenance("b1", FACTS))
    folder = tmp_path / "family=gemm" / "device=my-machine"
    os.mkfifo(folder / "pipe.parquet")
    (folder / "dangling.parquet").symlink_to(tmp_path / "nowhere")
    (folder / "below").mkdir()
    (folder / "below" / "x.parquet").write_bytes(b"not ours")
    assert store.read("gemm").num_rows == 1
    assert verify(store).clean
    assert (folder / "below" / "x.parquet").exists()


def test_nothing_is_written_for_others_among_the_rows(tmp_path, make):
    store = Store(tmp_path / "rows")
    store.append([make()], Provenance("b1", FACTS))
    folder = tmp_path / "rows" / "family=gemm" / "device=my-machine"
    (tmp_path / "link").symlink_to(tmp_path / "rows")
    for out in (tmp_path / "rows", folder, tmp_path / "link" / "x"):
        with pytest.raises(SpecError, match="lies in the store"):
            store.compact(out)
    for out in (folder / "x.parquet", tmp_path / "rows" / "x.csv"):
        with pytest.raises(SpecError, match="lies in the store"):
            export(store, out, families=["gemm"])
    assert store.read("gemm").num_rows == 1


def test_a_folder_needs_no_fsspec(tmp_path):
    code = (
        "import sys; sys.modules['fsspec'] = None\n"
        "from kernelcast.datasets.store.store import Store, StoreError\n"
        f"assert Store({str(tmp_path)!r}).names() == []\n"
        "try: Store('s3://bucket/x')\n"
        "except StoreError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True, text=True)
    assert "the package for s3:// is not installed; pip install 'kernelcast[storage]'" in done.stdout


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("nothing://bucket", "fsspec knows no protocol 'nothing'"),
        ("s3://user:secret-word@bucket/x", "holds a password; give credentials by the environment"),
        ("file://relative/path", "names no folder"),
        (Path("s3://bucket/x"), "is a URL that was made a path"),
        ("s3://", "s3:// names no place for a store; give s3://bucket/prefix"),
        ("s3:///prefix", "names no place"),
        ("memory://", "names no place"),
        ("://", "names no place"),
        ("simplecache::s3://bucket/x", "names no place"),
        ("dir://x", "which is no place for a store"),
        ("reference://x", "which is no place for a store"),
        ("", "'' names no folder"),
        ("a\0b", "names no folder"),
        ("~nobody-of-this-name/x", "this machine has no such user"),
        (__file__, "is a file; a store is a folder or a URL"),
    ],
)
def test_roots_that_cannot_be(given, words):
    with pytest.raises(StoreError, match=words) as caught:
        location_of(given)
    assert "secret-word" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"url": "s3://no-such-bucket/x"}, "there is no such bucket"),
        (
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"},
            "the server does not answer.*AWS_ENDPOINT_URL",
        ),
        ({"AWS_ENDPOINT_URL": "nonsense"}, "the endpoint that is set is no URL; check AWS_ENDPOINT_URL"),
        ({"url": "s3://No_bucket!/x"}, "no bucket can have that name"),
        ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "no credentials were found.*AWS_ACCESS_KEY_ID"),
    ],
)
def test_what_goes_wrong_at_a_bucket_is_one_sentence(s3_bucket, open_store, make, monkeypatch, change, words):
    import fsspec

    # No file and no server of this machine may give the credentials that the test takes away.
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    url = change.get("url", f"s3://{s3_bucket}/x")
    for name, value in change.items():
        if name.startswith("AWS"):
            monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    fsspec.filesystem("s3", use_listings_cache=False).clear_instance_cache()
    store = open_store(url)
    query = (store.names, lambda: store.case_ids("gpu0"), lambda: store.append([make()], Provenance("b1", FACTS)))
    for ask in query:
        with pytest.raises(StoreError, match=words) as caught:
            ask()
        assert "hidden-key" not in str(caught.value)
        assert caught.value.__cause__ is None
    # The next test's clients must not be these.
    fsspec.filesystem("s3", use_listings_cache=False).clear_instance_cache()


def test_a_refusal_of_the_server_is_told_as_one(s3_bucket, open_store, make, monkeypatch):
    store = open_store(f"s3://{s3_bucket}/x")

    def forbidden(*given, **named):
        raise PermissionError("Access Denied: signed request with hidden-key")

    monkeypatch.setattr(store.location._fs, "pipe_file", forbidden)
    with pytest.raises(StoreError, match="permission denied; check that the credentials") as caught:
        store.append([make()], Provenance("b1", FACTS))
    assert "hidden-key" not in str(caught.value)


def test_a_network_lost_while_reading_is_not_taken_for_damage(root, open_store, make, monkeypatch):
    store = open_store(root)
    if isinstance(store.location, LocalLocation):
        pytest.skip("a folder has no network")
    store.append([make()], Provenance("b1", FACTS))
    opened = store.location._fs.open

    def lost(*given, **named):
        file = opened(*given, **named)
        file.read = lambda *count: (_ for _ in ()).throw(TimeoutError("slow"))
        return file

    monkeypatch.setattr(store.location._fs, "open", lost)
    for reading in (lambda: store.read("gemm"), lambda: list(store.scan("gemm")), lambda: verify(store)):
        with pytest.raises(StoreError, match="the server does not answer"):
            reading()
