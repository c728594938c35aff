"""The process that reads measured rows: its life and death, the user's store, and what it makes of damaged files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.api.browse.measurements import MeasuredRows
from kernelcast.api.browse.measurements_wire import LikeDevice, LikeQuestion, RowsQuestion, SetsQuestion
from kernelcast.api.transport.problems import ProblemError
from kernelcast.datasets.rows.schema import Measurement, Provenance
from kernelcast.datasets.store.store import Store
from kernelcast.features.kernel import KernelSpec

Fill = Callable[..., Store]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def fill(home: Path) -> Fill:
    """Stores rows of a 64 x 64 copy, one per latency."""

    def fill(*latencies_s: float, device: str = "my-machine", block: str = "b1", **changes: Any) -> Store:
        store = Store(home / "measurements", lower_bounds=lambda specs, devices: np.full(len(specs), np.nan))
        spec = KernelSpec.of(
            "copy", "fp32", rows=64, cols=64, threads=changes.pop("threads", None), timing=changes.pop("timing", "")
        )
        rows = [Measurement(spec=spec, device=device, status="ok", block=block, latency_s=item, **changes)
                for item in latencies_s]  # fmt: skip
        store.append(rows, Provenance(block, {"host": "test"}))
        return store

    return fill


@pytest.fixture
def reader() -> Iterator[MeasuredRows]:
    with closing(MeasuredRows()) as reader:
        yield reader


def child_of(reader: MeasuredRows) -> subprocess.Popen[bytes]:
    process = reader.child.process
    assert process is not None
    return process


def sets(reader: MeasuredRows) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in json.loads(reader.ask(SetsQuestion()))["sets"]}


def rows(reader: MeasuredRows, **filters: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(reader.ask(RowsQuestion(filters, None, False, 0, 50)))
    return result


def like(
    reader: MeasuredRows, device: LikeDevice, threads: int | None = None, timing: str = "device"
) -> list[dict[str, Any]]:
    question = LikeQuestion("copy", "fp32", None, "", "", {"rows": 64}, {}, threads, "hot", timing, [device], "cols")
    points: list[dict[str, Any]] = json.loads(reader.ask(question))["points"]
    return points


MINE = LikeDevice("my-machine", ["my-machine", "mine"], 4)


def test_an_empty_store_says_how_to_fill_it(reader: MeasuredRows) -> None:
    result = sets(reader)["store"]
    assert result["rows"] == 0
    assert result["cards"] == []
    assert "kernelcast measure cpu" in result["notes"][0]
    assert rows(reader, set=["store"])["rows"] == []
    with pytest.raises(ProblemError, match="there are no rows yet"):
        rows(reader, set=["store"], dtype=["fp32"])


def test_rows_stored_while_it_runs_are_answered(reader: MeasuredRows, fill: Fill) -> None:
    fill(1e-3)
    assert rows(reader, set=["store"])["total"] == 1
    fill(2e-3, 3e-3, block="b2")
    assert rows(reader, set=["store"])["total"] == 3
    result = sets(reader)["store"]
    assert (result["rows"], result["families"], result["devices"], result["impls"]) == (
        3,
        ["copy"],
        ["my-machine"],
        ["none"],
    )
    assert result["cards"][0]["text"].startswith("# Your own measurements")
    assert reader.child.starts == 1


def test_a_damaged_file_is_named_and_the_others_are_answered(reader: MeasuredRows, fill: Fill, home: Path) -> None:
    store = fill(1e-3)
    folder = store.files()[0].parent
    (folder / "damaged.parquet").write_bytes(b"PAR1 no more")
    strange = store.root / "family=sorting" / "device=my-machine" / "x.parquet"
    strange.parent.mkdir(parents=True)
    strange.write_bytes(store.files()[0].read_bytes())
    result = sets(reader)["store"]
    assert result["rows"] == 1
    assert len(result["notes"]) == 2
    assert "family=copy/device=my-machine/damaged.parquet" in result["notes"][0]
    assert "'sorting'" in result["notes"][1]
    # Where the store lies is not told.
    assert str(home) not in json.dumps(result)
    (folder / "damaged.parquet").unlink()
    assert len(sets(reader)["store"]["notes"]) == 1


def test_repeats_are_one_point_at_their_median(reader: MeasuredRows, fill: Fill) -> None:
    fill(1e-3, 2e-3, 9e-3, device="mine")
    (point,) = like(reader, MINE)
    assert point == {"device": "my-machine", "value": 64, "latency_s": 2e-3, "power_w": None, "energy_j": None,
                     "threads": 4, "cache_state": "hot", "impl": "", "runs": 3}  # fmt: skip


def test_a_row_in_two_blocks_of_the_store_is_one_run_each_and_a_copy_of_it_none(
    reader: MeasuredRows, fill: Fill
) -> None:
    store = fill(1e-3)
    fill(1e-3, block="b2")
    original = store.files()[0]
    original.with_name("copied.parquet").write_bytes(original.read_bytes())
    assert [point["runs"] for point in like(reader, MINE)] == [2]


def test_all_cores_and_their_number_are_one_case(reader: MeasuredRows, fill: Fill) -> None:
    fill(1e-3)
    fill(3e-3, threads=4, block="b2")
    fill(8e-3, threads=1, block="b3")
    for threads in (None, 4):
        assert [(point["latency_s"], point["runs"]) for point in like(reader, MINE, threads)] == [(2e-3, 2)]
    assert [(point["threads"], point["runs"]) for point in like(reader, MINE, 1)] == [(1, 1)]
    assert like(reader, LikeDevice("other", ["other"], 4)) == []


def test_a_child_killed_between_two_questions_is_not_noticed(reader: MeasuredRows) -> None:
    before = rows(reader, family=["copy"])
    os.kill(child_of(reader).pid, signal.SIGKILL)
    assert rows(reader, family=["copy"]) == before
    assert reader.child.starts == 2


def test_a_hang_is_an_error_and_the_next_question_gets_a_new_process() -> None:
    with closing(MeasuredRows(deadline_s=2.0)) as reader:
        sets(reader)
        process = child_of(reader)
        os.kill(process.pid, signal.SIGSTOP)
        start_s = time.monotonic()
        with pytest.raises(ProblemError, match=r"took longer than 2 s; try again") as caught:
            sets(reader)
        assert caught.value.status == 503
        assert time.monotonic() - start_s < 60
        assert process.returncode == -signal.SIGKILL
    with closing(MeasuredRows()) as reader:
        assert sets(reader)["shipped"]["rows"] > 0


def test_a_child_killed_over_a_question_is_asked_again(reader: MeasuredRows) -> None:
    sets(reader)
    process = child_of(reader)
    os.kill(process.pid, signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (process.pid, signal.SIGKILL)).start()
    assert sets(reader)["shipped"]["rows"] > 0
    assert reader.child.starts == 2


def test_closing_does_not_wait_for_a_question(reader: MeasuredRows) -> None:
    sets(reader)
    os.kill(child_of(reader).pid, signal.SIGSTOP)
    result: list[str] = []

    def ask() -> None:
        try:
            sets(reader)
        except ProblemError as error:
            result.append(error.detail)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.2)
    start_s = time.monotonic()
    reader.close()
    asking.join(timeout=240)
    assert time.monotonic() - start_s < 60
    assert "SIGKILL" in result[0]
    assert reader.child.starts == 1
    assert sets(reader)["shipped"]["rows"] > 0


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("/bin/false", "ended with status 1; the server's log says why"),
        ("/nowhere/python", "could not be started: No such file"),
    ],
)
def test_a_child_that_cannot_start_is_an_error(
    reader: MeasuredRows, monkeypatch: pytest.MonkeyPatch, program: str, said: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(reader.child, "_command", [program])
        with pytest.raises(ProblemError, match=said) as caught:
            sets(reader)
    assert caught.value.status == 503
    assert sets(reader)["shipped"]["rows"] > 0


def test_an_idle_child_ends_and_another_takes_its_place() -> None:
    with closing(MeasuredRows(idle_s=1.0)) as reader:
        sets(reader)
        assert child_of(reader).wait(timeout=240) == 0
        assert sets(reader)["tiles"]["rows"] > 0
        assert reader.child.starts == 2


def test_a_child_ends_with_its_parent() -> None:
    script = (
        "from kernelcast.api.browse.measurements import MeasuredRows\n"
        "from kernelcast.api.browse.measurements_wire import SetsQuestion\n"
        "reader = MeasuredRows(); reader.ask(SetsQuestion()); print(reader.child.process.pid, flush=True)\n"
        "import os, sys; assert 'pyarrow' not in sys.modules; os._exit(9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 9, done.stderr
    child = Path("/proc") / done.stdout.strip()
    until = time.monotonic() + 60
    while child.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not child.exists()


def test_a_question_that_makes_no_sense_is_refused_and_ends_nothing(reader: MeasuredRows) -> None:
    with pytest.raises(ProblemError) as caught:
        reader.ask(RowsQuestion({"nonsense": ["x"]}, "nonsense", False, 0, 1))
    assert caught.value.status == 422
    assert reader.child.starts == 1


def test_points_of_a_gpu_have_the_timing_asked_for(reader: MeasuredRows, fill: Fill) -> None:
    fill(1e-3)
    fill(1.2e-3, block="b2", timing="device")
    fill(9e-3, block="b3", timing="call")
    gpu = LikeDevice("my-machine", ["my-machine"], None)
    (alone,), (call,) = like(reader, gpu), like(reader, gpu, timing="call")
    # A row that does not say is of the kernel alone.
    assert (alone["runs"], alone["latency_s"]) == (2, pytest.approx(1.1e-3))
    assert (call["runs"], call["latency_s"]) == (1, 9e-3)
    (all_of_a_cpu,) = like(reader, MINE)
    assert all_of_a_cpu["runs"] == 3


def test_rows_say_their_timing(reader: MeasuredRows, fill: Fill) -> None:
    fill(9e-3, timing="call")
    page = rows(reader, set=["store"])
    assert [row[page["columns"].index("timing")] for row in page["rows"]] == ["call"]
