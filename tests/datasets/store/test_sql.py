from __future__ import annotations

import io
import signal
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kernelcast.datasets.rows.schema import Measurement, Provenance, arrow_schema
from kernelcast.datasets.store import sql as queries
from kernelcast.datasets.store.parquet_files import METADATA_KEY
from kernelcast.datasets.store.sql import open_query, shared_columns
from kernelcast.datasets.store.store import Store, StoreWarning
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec

Make = Callable[..., Measurement]


def _fill(store: Store, make: Make, provenance: Provenance) -> Store:
    softmax = KernelSpec.of("softmax", "fp16", rows=8, cols=8)
    rows = [make(m, latency_s=m * 1e-5) for m in (1, 2, 3)]
    rows += [make(spec=softmax, device="other"), make(9, status="timeout", latency_s=None)]
    store.append(rows, provenance)
    return store


@pytest.fixture
def filled(store: Store, make: Make, provenance: Provenance) -> Store:
    return _fill(store, make, provenance)


def _asked(store: Store, sql: str) -> list[tuple[object, ...]]:
    with open_query(store) as query:
        return [tuple(row.values()) for row in query.ask(sql).table().to_pylist()]


def test_a_view_per_family_and_one_over_all(filled: Store) -> None:
    assert _asked(filled, "SELECT m, latency_s FROM gemm WHERE status = 'ok' ORDER BY m DESC LIMIT 1") == [
        (3, 3 * 1e-5)
    ]
    counted = _asked(filled, "SELECT family, device, count(*) FROM measurements GROUP BY ALL ORDER BY ALL")
    assert counted == [("gemm", "my-machine", 4), ("softmax", "other", 1)]
    with open_query(filled) as query:
        assert query.views["gemm"] == tuple(arrow_schema("gemm").names)
        assert query.views["measurements"] == tuple(shared_columns())
        assert query.ask("SELECT * FROM gemm").table().schema.names == arrow_schema("gemm").names
    assert {"device", "software", "latency_s", "case_id"} <= set(shared_columns())
    assert "m" not in shared_columns()


@pytest.mark.parametrize("root", ["folder with [brackets] and 'quotes'", "memory"])
def test_wherever_the_store_lies(root: str, tmp_path: Path, make: Make, provenance: Provenance) -> None:
    place = f"memory://{uuid.uuid4().hex}/store" if root == "memory" else tmp_path / root
    store = _fill(Store(place, lower_bounds=lambda specs, devices: np.full(len(specs), np.nan)), make, provenance)
    assert _asked(store, "SELECT sum(m) FROM gemm WHERE device = 'my-machine'") == [(15,)]
    with open_query(store) as query, pytest.raises(SpecError, match="sees the store and nothing else"):
        query.ask("SELECT * FROM read_text('/etc/passwd')")


def test_columns_that_a_file_lacks_are_null(store: Store, make: Make) -> None:
    store.append([make(1)], Provenance("b1", {"versions": {"torch": "2.9.0"}}))
    (path,) = store.files()
    lacking = pq.read_table(path).drop_columns(["software", "registers"])
    pq.write_table(lacking, path.with_name("20990101T000000.000000Z-000000000000.parquet"))
    rows = _asked(store, "SELECT m, software, registers FROM gemm ORDER BY software NULLS LAST")
    assert rows == [(1, "torch=2.9.0", None), (1, None, None)]


def test_a_damaged_file_is_named_and_left_out(filled: Store) -> None:
    folder = filled.root / "family=gemm" / "device=my-machine"
    (folder / "20990101T000000.000000Z-000000000000.parquet").write_bytes(b"PAR1 no longer")
    newer = pa.table({"m": [1]}).replace_schema_metadata({METADATA_KEY: b'{"format_version": 99}'})
    pq.write_table(newer, folder / "20990101T000000.000000Z-000000000001.parquet")
    with pytest.warns(StoreWarning, match="skipped a file") as said:
        assert _asked(filled, "SELECT count(*) FROM gemm") == [(4,)]
    assert sorted("0000000.parquet" in str(item.message) for item in said) == [False, True]
    assert any("format version 99" in str(item.message) for item in said)


@pytest.mark.parametrize(
    "sql",
    [
        "COPY gemm TO '{tmp}/out.csv'",
        "COPY (SELECT 1) TO '{store}/family=gemm/device=my-machine/x.parquet' (FORMAT parquet)",
        "WITH x AS (COPY gemm TO '{tmp}/out.csv') SELECT 1",
        "SELECT * FROM query('COPY gemm TO ''{tmp}/out.csv''')",
        "EXPORT DATABASE '{tmp}/out'",
        "ATTACH '{tmp}/x.db'",
        "ATTACH '{tmp}/x.db' (TYPE sqlite)",
        "INSTALL httpfs",
        "LOAD httpfs",
        "LOAD '{tmp}/evil.duckdb_extension'",
        "PRAGMA memory_limit='99GB'",
        "SET enable_external_access = true",
        "SET memory_limit = '99GB'",
        "RESET memory_limit",
        "CALL pragma_version()",
        "CREATE TABLE t AS SELECT 1",
        "CREATE VIEW gemm2 AS SELECT * FROM gemm",
        "DROP VIEW gemm",
        "INSERT INTO gemm VALUES (1)",
        "EXPLAIN ANALYZE SELECT 1",
        "PREPARE p AS SELECT 1",
        "SELECT 1; COPY gemm TO '{tmp}/out.csv'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_csv('{secret}')",
        "SELECT * FROM read_text('{secret}')",
        "SELECT * FROM read_blob('{store}/../secret.txt')",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM sniff_csv('{secret}')",
        "SELECT * FROM read_parquet('https://127.0.0.1:1/x.parquet')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM glob('{tmp}/*')",
        "SELECT * FROM store",
        "SELECT * FROM duckdb_secrets()",
        "SELECT getenv('HOME')",
        "",
    ],
)
def test_a_query_reads_the_store_and_nothing_else(sql: str, store: Store, filled: Store, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden")
    before = sorted(tmp_path.rglob("*"))
    with open_query(filled) as query:
        with pytest.raises(SpecError) as refused:
            query.ask(sql.format(tmp=tmp_path, store=filled.root, secret=secret)).table()
        assert "\n" not in str(refused.value)
        assert "hidden" not in str(refused.value)
        # What was refused changes nothing for the next question.
        assert query.ask("SELECT count(*) AS n FROM gemm").table().to_pylist() == [{"n": 4}]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT latncy_s FROM gemm", "latncy_s.* columns of gemm: family, device, .*latency_s"),
        ("SELECT * FROM gem", "gem does not exist; views: gemm, softmax, measurements"),
        ("SELCT 1", "SELCT.*; views: gemm, softmax, measurements"),
        ("SELECT 1; SELECT 2", "2 statements were given; a query only reads: give one SELECT"),
        ("COPY gemm TO 'x'", "COPY is not possible here; a query only reads: give one SELECT"),
        ("SELECT CAST(device AS INT) FROM gemm", "my-machine"),
        ("SELECT * FROM read_csv('/etc/passwd')", "sees the store and nothing else"),
    ],
)
def test_errors_say_what_there_is(sql: str, said: str, filled: Store) -> None:
    with open_query(filled) as query, pytest.raises(SpecError, match=said):
        query.ask(sql).table()


def test_memory_is_bounded_and_what_spills_is_removed(filled: Store, tmp_path: Path) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    with open_query(filled, memory_b=120e6, spill=spill) as query:
        (made,) = spill.iterdir()
        big = "SELECT max(b) AS b FROM (SELECT a, hash(a)::VARCHAR || repeat('x', 90) AS b FROM range(1500000) t(a) ORDER BY b)"
        assert len(query.ask(big).table().to_pylist()) == 1
        with pytest.raises(SpecError, match=r"more memory than it may use .*raise --memory"):
            query.ask("SELECT list(a::VARCHAR || repeat('x', 100)) AS l FROM range(3000000) t(a)").table()
        assert made.exists()
    assert not list(spill.iterdir())
    with pytest.raises(SpecError, match="too little memory"), open_query(filled, memory_b=5e6):
        pass
    with pytest.raises(SpecError, match="is no folder"), open_query(filled, spill=tmp_path / "nowhere"):
        pass


def test_ctrl_c_stops_a_query_that_would_run_for_hours(filled: Store) -> None:
    with open_query(filled) as query:
        timer = threading.Timer(0.2, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
        timer.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            query.ask(
                "SELECT max(c) FROM (SELECT count(*) AS c FROM range(100000000000) t(a) GROUP BY a % 1000)"
            ).table()
        assert time.monotonic() - began < 30
        assert query.ask("SELECT count(*) AS n FROM gemm").table().to_pylist() == [{"n": 4}]


def test_columns_of_one_name_are_told_apart(filled: Store) -> None:
    asked = "SELECT a.m, b.m, 7 AS m_1 FROM gemm a JOIN gemm b USING (case_id) WHERE a.m = 2"
    with open_query(filled) as query:
        assert query.ask(asked).table().to_pylist() == [{"m": 2, "m_2": 2, "m_1": 7}]


def test_a_question_without_an_end_is_left_when_nobody_reads_on(filled: Store) -> None:
    with open_query(filled) as query:
        endless = "WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM t) SELECT * FROM t"
        answer = query.ask(endless, batch_rows=2048)
        assert next(answer.batches)["x"][0].as_py() == 1


def test_rows_come_in_batches(filled: Store) -> None:
    with open_query(filled) as query:
        answer = query.ask("SELECT a FROM range(10000) t(a)", batch_rows=2048)
        assert max(batch.num_rows for batch in answer.batches) <= 2048


def test_an_empty_store_says_so(store: Store) -> None:
    with open_query(store) as query, pytest.raises(SpecError, match=r"no rows in .*measurements; measure some"):
        query.ask("SELECT 1")


def test_a_file_that_goes_away_while_it_is_read(filled: Store) -> None:
    with open_query(filled) as query:
        for path in filled.files("gemm"):
            path.unlink()
        with pytest.raises(SpecError, match="the store changed or cannot be read"):
            query.ask("SELECT sum(m) FROM gemm").table()


def test_the_filesystem_for_duckdb_only_reads(filled: Store) -> None:
    files = queries._store_filesystem(filled.location)
    (name,) = filled.names("softmax")
    assert pq.read_metadata(io.BytesIO(files.cat_file(name))).num_rows == 1
    assert files.info(f"{queries.PROTOCOL}://{name}")["size"] == (filled.root / name).stat().st_size
    with pytest.raises(PermissionError):
        files.open(name, "wb")


def test_threads_that_share_a_file_read_what_they_asked_for(tmp_path: Path) -> None:
    from kernelcast.datasets.store.sql import SharedFile

    class Slow(io.BytesIO):
        """Lets another thread in between seeking and reading, as a file on a network does."""

        def read(self, size: int | None = -1) -> bytes:
            time.sleep(0.0005)
            return super().read(size)

    content = np.arange(20000, dtype="<u4").tobytes()
    file = SharedFile(lambda: pa.PythonFile(Slow(content), mode="r"), len(content))

    def asked(number: int) -> bool:
        file.seek(4 * number)
        return file.read(8) == content[4 * number : 4 * number + 8]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(asked, range(0, 20000, 97)))
    assert file.seek(-4, io.SEEK_END) == len(content) - 4
    assert (file.read(), file.read(), file.tell()) == (content[-4:], b"", len(content))
    file.close()
