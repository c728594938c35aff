"""Pools and pairs that are drawn, and real pairs of processes with a fake library in them."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelcast.collectors.cpu.pairs.campaign import FAMILIES, PairBench, pairs, pool, two_cores
from kernelcast.collectors.cpu.worker import WorkerOptions
from kernelcast.datasets.records.kernel_pairs import PairRow, read_pairs, write_pairs
from kernelcast.features.kernel import KernelSpec

_SCRIPT = Path(__file__).with_name("fake_pair_worker.py")
_spec = importlib.util.spec_from_file_location("fake_pair_worker", _SCRIPT)
assert _spec is not None
assert _spec.loader is not None
fake = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake)


def case(rows: int) -> KernelSpec:
    return KernelSpec.of("copy", "fp32", impl="fake", threads=1, rows=rows, cols=3)


def command(options: WorkerOptions) -> list[str]:
    return [sys.executable, "-P", str(_SCRIPT), options.to_json()]


@pytest.fixture
def bench() -> Iterator[PairBench]:
    cores = sorted(os.sched_getaffinity(0))
    with PairBench("test", (cores[0], cores[-1]), "fake", command=command) as it:
        yield it


def measured(bench: PairBench, a: KernelSpec, b: KernelSpec) -> PairRow:
    """A row of a pair, again while no turn counts, as where other programs take the cores."""
    return next(row for _ in range(30) if (row := bench.measure(a, b)).status != "failed")


def test_a_pool_has_every_family_in_small_and_in_large() -> None:
    kernels = pool(seed=1, per_family=6)
    assert Counter(spec.family for spec in kernels) == dict.fromkeys(FAMILIES, 6)
    assert pool(seed=1, per_family=6) == kernels != pool(seed=2, per_family=6)
    assert {spec.cache_state for spec in kernels} == {"hot"}
    assert {spec.threads for spec in kernels} == {1}


def test_pairs_are_drawn_once_each_and_alike_for_equal_seeds() -> None:
    kernels = [case(rows) for rows in range(1, 9)]
    drawn = list(pairs(kernels, 3))
    assert len(drawn) == len({frozenset(pair) for pair in drawn}) == 28
    assert drawn == list(pairs(kernels, 3))
    assert drawn != list(itertools.islice(pairs(kernels, 4), 28))


def test_a_pair_is_measured_and_kept_in_a_file(bench: PairBench, tmp_path: Path) -> None:
    row = measured(bench, case(2000), case(30_000))
    assert row.status == "ok", row.message
    assert row.a_alone_s is not None
    assert row.b_alone_s is not None
    assert row.b_alone_s > 5 * row.a_alone_s
    # Loops of Python share nothing; other work on the cores does not count.
    assert 0.5 < (row.a_slowdown or 0) < 2
    path = tmp_path / "pairs.parquet"
    write_pairs(path, [row], {"block": {"cores": 2}})
    assert read_pairs(path) == ([row], {"block": {"cores": 2}})


@pytest.mark.parametrize(
    ("rows", "status", "words"),
    [(fake.UNSUPPORTED, "unsupported", "no such kernel"), (fake.CRASH, "crashed", "SIGSEGV"),
     (fake.LONG, "unsupported", "slots hold calls of at most")],
)  # fmt: skip
def test_a_pair_without_times_is_a_row_and_spoils_nothing_else(
    bench: PairBench, rows: int, status: str, words: str
) -> None:
    row = measured(bench, case(5), case(rows))
    assert row.status == status
    assert words in (row.message or "")
    assert row.a_slowdown is None
    assert measured(bench, case(2000), case(3000)).status == "ok"


def test_two_cores_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    with pytest.raises(ValueError, match="two cores"):
        two_cores()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 1, 2})
    assert two_cores() == (1, 3)
