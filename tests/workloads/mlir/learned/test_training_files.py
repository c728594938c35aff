"""From stored texts and rows to a model on disk, by the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.commands import app
from kernelcast.datasets.records.mlir_modules import ModuleRun, ModuleText, append_runs, append_texts
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.mlir.understanding import read, understand
from kernelcast.models.family_model.artifact import default_model_dir
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.workloads.mlir.learned.measured_programs import measured_programs, read_modules
from kernelcast.workloads.mlir.predictor import load_module_predictor
from typer.testing import CliRunner

CPU = "amd-epyc-9005-vm-2c"
TEXT = """module {{
  func.func public @main(%arg0: tensor<{m}x{k}xf32>, %arg1: tensor<{k}x{n}xf32>) -> tensor<{m}x{n}xf32> {{
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<{m}x{k}xf32>, tensor<{k}x{n}xf32>) -> tensor<{m}x{n}xf32>
    %1 = stablehlo.{operator} %0 : tensor<{m}x{n}xf32>
    return %1 : tensor<{m}x{n}xf32>
  }}
}}
"""  # noqa: E501 - a line of MLIR is one operation


def text_of(m: int, k: int, n: int, operator: str = "tanh") -> str:
    return TEXT.format(m=m, k=k, n=n, operator=operator)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    rng = np.random.default_rng(0)
    texts, runs = [], []
    for i in range(40):
        m, k, n = (int(2 ** rng.uniform(3, 9)) for _ in range(3))
        operator = ("tanh", "exponential", "abs", "negate")[i % 4]
        text = ModuleText(text_of(m, k, n, operator), f"made/up-{i // 2}", "generated", "stablehlo")
        texts.append(text)
        for compiler in ("iree", "xla"):
            latency_s = 5e-6 + 2.0 * m * k * n / 6e10 + m * n / 2e9
            runs.append(ModuleRun(
                module_id=text.module_id, compiler=compiler, device=CPU, threads=1, status="ok", block="made-up",
                latency_s=latency_s, latency_q1_s=0.99 * latency_s, latency_q3_s=1.01 * latency_s, code_instructions=300 + i,
            ))  # fmt: skip
        failed: dict[str, Any] = {
            "compiler": "xla",
            "device": CPU,
            "threads": 2,
            "status": "failed",
            "block": "made-up",
        }
        runs.append(ModuleRun(module_id=text.module_id, **failed))
    append_texts(root, texts, {"made": "up"})
    append_runs(root, runs, {"made": "up"})
    return root


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["train-mlir", *words])


def test_the_command_trains_a_model_that_answers(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    done = run("--data", str(store), "--out", str(out), "--folds", "2", "--epochs", "0.02", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["n_programs"] == {CPU: 20}
    assert report["n_rows"] == {CPU: 80}
    assert report["settings"] == {CPU: ["iree, 1 threads", "xla, 1 threads"]}
    assert report["errors"][CPU]["blend"]["all"]["n"] == 80
    predictor = load_module_predictor(load_predictor(default_model_dir()), out)
    assert predictor.measured == {CPU: ("iree", "xla")}
    program = understand(read(text_of(128, 128, 128)))
    result = predictor.predict(program, CPU)
    # All cores were asked for; one thread is what was measured.
    assert (result.compiler, result.threads) == ("xla", 1) or (result.compiler, result.threads) == ("iree", 1)
    assert 2e-6 < result.latency_s.value < 2e-3
    two = predictor.predict(program, CPU, compiler="xla", threads=2)
    assert two.method == "composition"
    assert any("not 2" in note for note in two.notes)


def test_the_table_names_members_and_slices(store: Path, tmp_path: Path) -> None:
    done = run("--data", str(store), "--out", str(tmp_path / "model"), "--folds", "2", "--epochs", "0.02")
    assert done.exit_code == 0, done.output
    for word in ("analytic", "group trees", "group network", "blend", "source generated", "Kendall"):
        assert word in done.output


def test_texts_nobody_understands_are_left_out_and_told(store: Path) -> None:
    texts, runs = read_modules([store])

    def understand_most(text: str) -> Any:
        if "abs" in text:
            raise SpecError("no way")
        return understand(read(text))

    measured, refusals = measured_programs(texts, runs, catalogue().get(CPU), understand_most)
    assert len(measured) == 30
    assert len(refusals) == 10
    assert refusals[0].endswith("no way")


def test_a_device_never_measured_is_refused(store: Path) -> None:
    texts, runs = read_modules([store])
    with pytest.raises(SpecError, match="rows are of: amd-epyc"):
        measured_programs(texts, runs, catalogue().get("nvidia-t4"), lambda text: understand(read(text)))
