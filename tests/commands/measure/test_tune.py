"""`kernelcast tune`: what a user types, gets on both streams, and finds in the folder."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.commands.measure import tune as command
from kernelcast.commands.measure import tune as tune_measuring
from kernelcast.datasets.rows.schema import Measurement
from kernelcast.features.device import catalogue
from kernelcast.features.tuning.formula import equal, less, trace, where
from kernelcast.features.tuning.kind import Candidates, Task, get_kind
from kernelcast.models.tuning.flat_model import FlatModel, write_model
from kernelcast.models.tuning.forest import Forest

pytest.importorskip("iree.compiler")

Run = Callable[..., Any]
NAME = "amd-epyc-9005-vm-2c"
KIND = "iree-contraction"
TEXT = """func.func @main(%a: tensor<32x32xf32>, %b: tensor<32x64xf32>, %c: tensor<32x64xf32>) -> tensor<32x64xf32> {
  %d = linalg.matmul ins(%a, %b : tensor<32x32xf32>, tensor<32x64xf32>) outs(%c : tensor<32x64xf32>) -> tensor<32x64xf32>
  return %d : tensor<32x64xf32>
}
"""


def seconds_laid_down(v: Mapping[str, Any]) -> dict[str, Any]:
    """40 µs for the compiler's own choice, 30 µs for data tiling, 10 µs for tiles of 32 rows, 50 µs for others."""
    tiles = where(equal(v["tile_m"], 32.0), 1e-5, 5e-5)
    return {"bound_s": where(less(0.5, v["inner_m"]), tiles, where(v["data_tiling"], 3e-5, 4e-5))}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `KERNELCAST_HOME` with a model of products."""
    kind = get_kind(KIND)
    facts = kind.facts_of(catalogue().get(NAME), "fp32")
    nothing = Forest(0.0, 1, np.array([0], np.uint32), np.array([0], np.float32), np.array([[0]], np.uint32),
                     np.zeros((1, 2), np.float32))  # fmt: skip
    table = {(NAME, "fp32"): tuple(facts[name] for name in kind.facts)}
    model = FlatModel(KIND, kind.sizes, kind.knobs, kind.facts, table, trace(kind.inputs, seconds_laid_down), nothing)
    (tmp_path / "home" / "tuning").mkdir(parents=True)
    write_model(model, tmp_path / "home" / "tuning" / f"{KIND}.kcm")
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def model(home: Path) -> Path:
    path = home.parent / "layer.mlir"
    path.write_text(TEXT)
    return path


def test_files_and_the_command_to_use(run: Run, model: Path) -> None:
    done = run("tune", "layer.mlir", "--device", NAME)
    assert done.code == 0, done
    folder = model.parent / "layer.tuned"
    assert sorted(path.name for path in folder.iterdir()) == [
        "kernelcast-iree-hook",
        "summary.json",
        "tuning_spec.mlir",
    ]
    line = next(line for line in done.out.splitlines() if line.startswith("compile")).removeprefix("compile").strip()
    assert line == json.loads((folder / "summary.json").read_text())["command"]
    assert "--iree-codegen-tuning-spec-path=layer.tuned/tuning_spec.mlir" in line
    assert "PATH=" in done.out


def test_the_command_told_compiles(run: Run, model: Path) -> None:
    from iree.compiler.tools.binaries import find_tool

    messages = json.loads(run("tune", "layer.mlir", "--device", NAME, "--json").out)
    program, *words = messages["command"].split()
    assert program == "iree-compile"
    subprocess.run([find_tool(program), *words], check=True, capture_output=True, cwd=model.parent)
    assert (model.parent / "layer.vmfb").stat().st_size > 0


def test_json(run: Run, model: Path) -> None:
    messages = json.loads(run("tune", str(model), "--device", NAME, "--out", "there", "--json").out)
    (row,) = messages["tuned"]
    assert (messages["variant"], messages["device"], messages["threads"]) == ("tuned", NAME, 1)
    assert row["config"]["tile_m"] == 32
    assert [row[name] for name in ("default_s", "data_tiling_s", "chosen_s")] == pytest.approx([4e-5, 3e-5, 1e-5])
    assert messages["totals_s"]["default"] == pytest.approx(4e-5)
    assert messages["files"][0] == "there/tuning_spec.mlir"


@pytest.mark.parametrize("broken", ["missing", "damaged"])
def test_without_a_readable_model_the_compiler_decides(run: Run, model: Path, home: Path, broken: str) -> None:
    file = home / "tuning" / f"{KIND}.kcm"
    if broken == "missing":
        file.unlink()
        # The shipped model would stand in.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kernelcast.plugins.cost_model.SHIPPED", home)
            done = run("tune", str(model), "--device", NAME)
    else:
        file.write_bytes(file.read_bytes()[:100])
        done = run("tune", str(model), "--device", NAME)
    assert done.code == 0, done
    assert done.err.count("products are left to the compiler: ") == 1
    assert "Traceback" not in done.err
    assert "nothing to tune" in done.out
    assert "@__kernel_config" in (model.parent / "layer.tuned" / "tuning_spec.mlir").read_text()


@pytest.mark.parametrize(("words", "said"), [
    (("--device", "no-such-cpu"), "no-such-cpu"),
    (("--device", "nvidia-h200-sxm-141gb"), "is a gpu"),
    (("--device", NAME, "--out", "layer.mlir"), "is a file"),
    (("--device", NAME, "--threads", "4000", "--measure", "1"), "cores"),
])  # fmt: skip
def test_what_a_user_can_correct(run: Run, model: Path, words: Sequence[str], said: str) -> None:
    assert said in run("tune", str(model), *words).error


@pytest.mark.parametrize("text", [b"", b"no module", b"\xff\xfe\x00", b"func.func @main("])
def test_text_that_is_no_module(run: Run, model: Path, text: bytes) -> None:
    model.write_bytes(text)
    done = run("tune", str(model), "--device", NAME)
    assert "Traceback" not in done.err
    assert done.code == (0 if not text else 2)


def test_a_file_that_is_not_there(run: Run, home: Path) -> None:
    assert "nowhere.mlir" in run("tune", "nowhere.mlir", "--device", NAME).error


def test_another_machine_is_measured_only_by_force(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "known_machine", lambda known: None)
    assert "add --force" in run("tune", str(model), "--device", NAME, "--measure", "1").error
    monkeypatch.setattr(tune_measuring, "measuring", pretended)
    assert run("tune", str(model), "--device", NAME, "--measure", "1", "--force").code == 0
    assert KEPT.pop() is False


KEPT: list[bool] = []
"""Whether rows were to be kept, for every time that something was measured."""


@contextmanager
def pretended(*_: Any, keep: bool) -> Iterator[Any]:
    """Measurements by which data tiling is the fastest."""
    KEPT.append(keep)

    def measure(tried: Sequence[Candidates]) -> list[list[float]]:
        return [[1e-6 if "data_tiling" in item.config(i) else 2e-6 for i in range(len(item))] for item in tried]

    def race(modules: Mapping[str, Path]) -> dict[str, float]:
        return {name: 1e-6 if name == "data tiling" else 2e-6 for name in modules}

    yield measure, race


def test_measurements_decide_and_are_told(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_measuring, "measuring", pretended)
    done = run("tune", str(model), "--device", NAME, "--measure", "2", "--force", "--json")
    messages = json.loads(done.out)
    assert messages["variant"] == "data tiling"
    assert messages["measured_module_s"] == {"data tiling": 1e-6, "default": 2e-6}
    assert messages["tuned"][0]["measured"] is True


def test_configurations_are_measured_as_rows_of_the_store(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelcast.collectors import kernel_campaign
    from kernelcast.datasets.rows.schema import Provenance
    from kernelcast.datasets.store.store import Store

    class Done:
        interrupted = False

    def run_campaign(specs: Sequence[Any], *, device: str, sink: Any, **_: Any) -> Done:
        rows = [
            Measurement(
                spec=spec, device=device, block="b", status="ok" if spec.config else "failed",
                latency_s=1e-4 if spec.config else None, measured_at="2026-01-01T00:00:00+0000",
                **({"latency_q1_s": 1e-4, "latency_q3_s": 1e-4, "latency_min_s": 1e-4, "n_samples": 9} if spec.config else {}),
            )
            for spec in specs
        ]  # fmt: skip
        sink(rows, Provenance("b", {"kernelcast": "test"}))
        return Done()

    monkeypatch.setattr(kernel_campaign, "run_campaign", run_campaign)
    sizes = {"batch": 1, "m": 32, "n": 64, "k": 32, "a_transposed": 0, "b_transposed": 0, "threads": 1}
    tried = Candidates.of(Task(KIND, sizes, "fp32", NAME), [{}, {"data_tiling": 1}])
    known = catalogue()
    with tune_measuring.measuring(TEXT, "layer", NAME, 1, known, lambda *_: None) as (measure, _):
        ((failed, measured),) = measure([tried])
    assert math.isnan(failed)
    assert measured == 1e-4
    assert len(Store().read("gemm")) == 2
