"""Campaigns over modules with fake compilers in real worker processes."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from kernelcast.collectors.campaign import CampaignError
from kernelcast.collectors.mlir import campaign
from kernelcast.collectors.mlir.campaign import CHUNK, Plan, by_size, ordered, run_modules
from kernelcast.collectors.mlir.compiler import Job
from kernelcast.collectors.mlir.compilers.iree import Compiled
from kernelcast.collectors.mlir.measure.bench import REFERENCES
from kernelcast.collectors.mlir.measure.worker import ModuleWorker, ModuleWorkerOptions
from kernelcast.datasets.records.mlir_modules import ModuleRun, ModuleText, read_runs, read_texts, runs_of
from kernelcast.datasets.store.parquet_files import provenance_of

_SCRIPT = Path(__file__).with_name("fake_compiler.py")


def _imported() -> ModuleType:
    result = importlib.util.spec_from_file_location("fake_compiler", _SCRIPT)
    assert result is not None
    assert result.loader is not None
    module = importlib.util.module_from_spec(result)
    result.loader.exec_module(module)
    return module


fake = _imported()


def text(behaviour: str, size: int = 4, dialect: str = "stablehlo") -> ModuleText:
    code = f"// {behaviour}\nfunc.func @main(%a: tensor<{size}xf32>) -> tensor<{size}xf32> {{ return %a : tensor<{size}xf32> }}"
    return ModuleText(code, f"test/{behaviour}", "test", dialect)


def worker(options: ModuleWorkerOptions) -> ModuleWorker:
    return ModuleWorker(options, silence_s=4.0, command=lambda o: [sys.executable, "-P", str(_SCRIPT), o.to_json()])


def compile_(job: Job, path: Path) -> Compiled:
    if "NOCOMPILE" in job.module.text:
        return Compiled(None, "unsupported", "iree-compile: no such type", 0.1)
    path.write_text("binary")
    return Compiled(path, compile_s=0.25, binary_b=6, dispatches=3)


def run(root: Path, texts: list[ModuleText], **given: object) -> dict[tuple[str, str, int | None], ModuleRun]:
    plan = Plan(texts, [fake.DIRECT, fake.AHEAD], "test-cpu", source="test", **given)  # type: ignore[arg-type]
    done = run_modules(plan, root, collector_for=worker, compile_=compile_)
    rows = runs_of(read_runs(root))
    assert done.left == 0
    programs = {row["module_id"]: row["program"] for row in read_texts(root).to_pylist()}
    return {(programs[row.module_id].removeprefix("test/"), row.compiler, row.threads): row for row in rows}


def test_every_module_is_a_row_whatever_happens_to_it(tmp_path: Path) -> None:
    behaviours = ("WORKS", "CRASH", "HANG", "REFUSE", "NOMEMORY", "NAN", "MOODY", "DIFFERS", "NOCOMPILE", "SLOW")
    rows = run(tmp_path, [*map(text, behaviours), text("ONLY-AHEAD", dialect="linalg")])
    statuses = {key[:2]: row.status for key, row in rows.items()}
    assert {name: status for (name, compiler), status in statuses.items() if compiler == "direct"} == {
        "WORKS": "ok", "CRASH": "crashed", "HANG": "timeout", "REFUSE": "unsupported", "NOMEMORY": "out_of_memory", "NAN": "ok",
        "MOODY": "failed", "DIFFERS": statuses["DIFFERS", "direct"], "NOCOMPILE": "ok", "SLOW": "timeout",
    }  # fmt: skip
    assert statuses["NOCOMPILE", "ahead"] == "unsupported"
    assert statuses["ONLY-AHEAD", "ahead"] == "ok"
    # Which of the two is right nobody knows: the one that was measured second is the odd one.
    assert {statuses["DIFFERS", "ahead"], statuses["DIFFERS", "direct"]} == {"failed", "ok"}
    assert len(rows) == 2 * len(behaviours) + 1


def test_a_row_says_what_it_took_to_compile_and_to_run(tmp_path: Path) -> None:
    rows = run(tmp_path, [text("WORKS"), text("NAN"), text("CRASH"), text("MOODY")])
    works = rows["WORKS", "ahead", 1]
    assert (works.compile_s, works.binary_b, works.dispatches) == (0.25, 6, 3)
    assert works.latency_min_s is not None
    assert works.latency_s is not None
    assert 0.0 < works.latency_min_s <= works.latency_s < 1.0
    assert works.n_samples == 6
    assert works.measured_at
    assert works.energy_source is None
    direct = rows["WORKS", "direct", 1]
    assert (direct.compile_s, direct.binary_b, direct.dispatches) == (0.5, 100, 2)
    assert rows["NAN", "direct", 1].message == "some results are not finite"
    crashed = rows["CRASH", "direct", 1]
    assert crashed.latency_s is None
    assert "something went badly wrong" in str(crashed.message)
    assert "differ" in str(rows["MOODY", "direct", 1].message)
    facts = provenance_of(read_runs(tmp_path))[works.block]
    assert set(facts["references_s"]) == {module.program for module in REFERENCES.values()}
    assert facts["worker"]["versions"] == {"fake": "1.0"}
    assert facts["stopping_rule"]["blocks"] == 3
    assert not {row["program"] for row in read_texts(tmp_path).to_pylist()} & set(facts["references_s"])


def test_a_campaign_goes_on_where_it_stopped(tmp_path: Path) -> None:
    texts = [text("WORKS"), text("REFUSE")]
    first = run(tmp_path, texts)
    again = run(tmp_path, [*texts, text("NEW")])
    assert {again[key].block for key in first} == {row.block for row in first.values()}
    assert again["NEW", "direct", 1].status == "ok"
    plan = Plan([*texts, text("NEW")], [fake.DIRECT, fake.AHEAD], "test-cpu")
    done = run_modules(plan, tmp_path, collector_for=worker, compile_=compile_)
    assert (done.stored, done.skipped, done.left) == ({}, 6, 0)


def test_out_of_time_nothing_is_begun_and_all_is_left(tmp_path: Path) -> None:
    plan = Plan([text("WORKS")], [fake.DIRECT, fake.AHEAD], "test-cpu", until=time.monotonic() - 1.0)
    done = run_modules(plan, tmp_path, collector_for=worker, compile_=compile_)
    assert (done.stored, done.left) == ({}, 2)
    assert "2 left, run the same command again" in str(done)


def test_a_worker_that_cannot_start_is_one_sentence(tmp_path: Path) -> None:
    def broken(options: ModuleWorkerOptions) -> ModuleWorker:
        return ModuleWorker(options, command=lambda _: [sys.executable, "-c", "raise SystemExit('no library')"])

    with pytest.raises(CampaignError, match="no library"):
        run_modules(Plan([text("WORKS")], [fake.DIRECT], "test-cpu"), tmp_path, collector_for=broken, compile_=compile_)


def test_a_fault_of_the_compiling_thread_is_not_lost(tmp_path: Path) -> None:
    def faulty(job: Job, path: Path) -> Compiled:
        if job.module.module_id in REFERENCES:
            return compile_(job, path)
        raise ZeroDivisionError("in the compiling thread")

    with pytest.raises(ZeroDivisionError):
        run_modules(Plan([text("WORKS")], [fake.AHEAD], "test-cpu"), tmp_path, collector_for=worker, compile_=faulty)


class Moody:
    """A collector whose references take longer at first."""

    def __init__(self, slow: int) -> None:
        self.slow, self.calls = slow, 0

    def collect(self, jobs: list[Job]) -> list[campaign.Measured]:
        self.calls += 1
        latency_s = 1.5 if self.calls == self.slow else 1.0
        return [
            campaign.Measured(ModuleRun(job.module.module_id, job.compiler, "d", 1, "ok", "", latency_s))
            for job in jobs
        ]

    def facts(self) -> dict[str, str]:
        return {"worker": "moody"}

    def close(self) -> None:
        pass


def test_a_chunk_that_drifted_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "CHUNK", 1)
    moody = Moody(slow=2)
    plan = Plan([text("WORKS"), text("NAN")], [fake.DIRECT], "d")
    run_modules(plan, tmp_path, collector_for=lambda _: moody)  # type: ignore[arg-type, return-value]
    rows = runs_of(read_runs(tmp_path))
    assert [row.latency_s for row in rows] == [1.0, 1.0]
    assert moody.calls == 3
    assert sorted(facts["drift_first_try"] for facts in provenance_of(read_runs(tmp_path)).values()) == [0.0, 0.5]


def test_order_shows_every_program_first_and_skips() -> None:
    texts = [text(f"P{i}") for i in range(40)] + [text(f"T{i}", dialect="torch") for i in range(10)]
    jobs = ordered(texts, [fake.DIRECT, fake.AHEAD], (1, 2))
    assert jobs == ordered(texts[::-1], [fake.DIRECT, fake.AHEAD], (1, 2))
    item = [job for job in jobs if job.threads == 1]
    assert len(item) == 40 + 50
    assert jobs[: len(item)] == item
    assert 0 < len(jobs) - len(item) < len(item) * 0.6
    # Modules that only one compiler takes are all in the first part, those of half of the others behind them.
    position = [i for i, job in enumerate(item) if job.module.dialect == "torch"]
    assert max(position) < len(item) - 10


def test_chunks_are_bounded_in_number_and_bytes() -> None:
    small = [Job(text("A", i + 1), "direct", 1) for i in range(CHUNK + 1)]
    assert [len(chunk) for chunk in by_size(small)] == [CHUNK, 1]
    large = [Job(text("A", 2**27 + i), "direct", 1) for i in range(3)]
    assert [len(chunk) for chunk in by_size([*large, Job(ModuleText("nonsense", "", "", ""), "direct", 1)])] == [
        1,
        1,
        2,
    ]
