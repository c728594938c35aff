"""The C++ reader gives what Python gives, and one sentence for every file that it cannot use."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.features.tuning.kind import Candidates
from kernelcast.models.tuning.flat_model import FlatModel, encode, write_model
from kernelcast.plugins.cost_model import CostModel

from ..models.tuning.made_up import DEVICE, broken_files, law_s, model, random_forest, space, task

SOURCE = Path(__file__).parents[2] / "plugins" / "cpp"
STRICT = ["-std=c++17", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
Ask = Callable[..., "subprocess.CompletedProcess[str]"]


def build(source: Path, target: Path, *flags: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    command = ["g++", *STRICT, *flags, f"-I{SOURCE}", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def score(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Run the command line scorer on a file and lines of text."""
    target = tmp_path_factory.mktemp("score") / "score"
    build(SOURCE.parents[1] / "benchmarks" / "score.cpp", target, "-O1")

    def ask(path: Path, lines: Sequence[str], *flags: str) -> subprocess.CompletedProcess[str]:
        text = "\n".join(lines) + "\n"
        return subprocess.run(
            [target, path, *flags], input=text, capture_output=True, text=True, check=False, timeout=60
        )

    return ask


def question(candidates: Candidates) -> list[str]:
    raw = candidates.task

    def pairs(values: Any) -> str:
        return " ".join(f"{name}={value}" for name, value in values.items())

    head = [f"device {raw.device}", f"dtype {raw.dtype}", f"sizes {pairs(raw.sizes)}"]
    return [*head, *(f"config {pairs(candidates.config(i))}" for i in range(len(candidates)))]


def numbers(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return np.array([[float(word) for word in line.split()] for line in done.stdout.splitlines()])


@pytest.mark.parametrize(
    "flat",
    [
        model(energy=True),
        model(latency=random_forest(depth=9, trees=8), energy=True),
        model(latency=random_forest(depth=0, trees=2), energy=True),
        model(latency=random_forest(trees=0), energy=True),
    ],
    ids=["usual", "deep", "leaves only", "no trees"],
)
def test_python_and_cpp_agree(flat: FlatModel, score: Ask, tmp_path: Path) -> None:
    write_model(flat, tmp_path / "x.kcm")
    python = CostModel(flat, DEVICE)
    query, expected = [], []
    for m, n, k, dtype in ((300, 200, 500, "fp32"), (64, 64, 64, "bf16"), (1, 2**40, 7, "fp32"), (1000, 3, 1, "fp32")):
        for rows in (slice(None), slice(0, 1), slice(3, 10), slice(0, 64), slice(40, 105)):
            these = space(task(m, n, k, dtype)).take(rows)
            query += question(these)
            expected.append(np.column_stack([python.predict(these), python.predict_energy(these)]))
    np.testing.assert_allclose(numbers(score(tmp_path / "x.kcm", query, "--energy")), np.vstack(expected), rtol=1e-12)


def test_measured_configurations_have_their_median(score: Ask, tmp_path: Path) -> None:
    learner = CostModel(model(energy=True), DEVICE)
    these = space(task())
    learner.update(these.take([0, 5, 5, 5, 9, 9]), [1e-3, 3e-3, 1e-3, 2e-3, 1.0, 2.0])
    learner.update(space(task(64, 64, 64)).take([4]), [9.0])
    learner.save(tmp_path / "x.kcm")
    result = numbers(score(tmp_path / "x.kcm", question(these)))[:, 0]
    remembered = [0, 5, 9]
    assert result[remembered].tolist() == learner.predict(these)[remembered].tolist() == [1e-3, 2e-3, 1.5]
    plain = CostModel(model(), DEVICE).predict(these)
    others = np.setdiff1d(np.arange(len(these)), remembered)
    np.testing.assert_allclose(result[others], plain[others], rtol=1e-12)
    joules = numbers(score(tmp_path / "x.kcm", question(these), "--energy"))[:, 1]
    np.testing.assert_allclose(joules[remembered], learner.predict_energy(these)[remembered], rtol=1e-12)


LEARNT = CostModel(model(energy=True), DEVICE)
LEARNT.update(space(task()).take([0, 5]), law_s(space(task()))[[0, 5]])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "made-up.kcm"
    LEARNT.save(path)
    return path


def test_a_file_that_cannot_be_used_gives_one_sentence(score: Ask, whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "made-up.kcm"
    for name, (content, says) in broken_files(whole.read_bytes()).items():
        path.write_bytes(content)
        done = score(path, question(space(task())))
        assert done.returncode == 1, name
        assert done.stdout == "", name
        assert re.fullmatch(f"{re.escape(str(path))} .*\n", done.stderr), (name, done.stderr)
        assert re.search(says, done.stderr), (name, done.stderr)


def test_missing_files_and_folders_have_their_own_sentence(score: Ask, tmp_path: Path) -> None:
    assert "there is no model file" in score(tmp_path / "gone.kcm", []).stderr
    assert "cannot read the model file" in score(tmp_path, []).stderr


@pytest.mark.slow
def test_damage_that_a_new_checksum_hides_is_never_read_outside(whole: Path, tmp_path: Path) -> None:
    sanitizers = ["-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    build(Path(__file__).with_name("hostile.cpp"), tmp_path / "hostile", *sanitizers)
    done = subprocess.run(
        [tmp_path / "hostile", whole, "500"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    refused, answered = map(int, done.stdout.split())
    assert refused > 50
    assert answered > 50


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["device toaster"], f"does not know the device 'toaster'; it knows: {DEVICE}, nvidia-t4"),
        (["dtype fp64"], f"does not know fp64 on {DEVICE}; it knows: bf16, fp32"),
        (["sizes m=1 n=2"], "made-up needs the size k; sizes: m, n, k"),
        (["sizes m=1 n=2 k=3 q=1"], "made-up has no size 'q'; sizes: m, n, k"),
        (["sizes m=-1 n=2 k=3"], "m must be a whole number from 0 to 2**40, got -1"),
        (["config warps=3"], "made-up has no knob 'warps'; knobs: tile_m, tile_n, unroll"),
        (["config tile_m=-3"], "the knob tile_m must be from 0 to 2**40"),
        (["config tile_m=x"], "cannot read the line 'config tile_m=x'"),
        (["nonsense"], "cannot read the line 'nonsense'"),
    ],
)
def test_questions_it_cannot_answer_are_refused(lines: list[str], says: str, score: Ask, whole: Path) -> None:
    head = [f"device {DEVICE}", "dtype fp32", "sizes m=1 n=2 k=3"]
    done = score(whole, [*head, *lines, "config tile_m=4"])
    assert done.returncode == 1
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_energy_of_a_model_without_it_and_times_too_large_are_refused(score: Ask, tmp_path: Path) -> None:
    write_model(model(), tmp_path / "x.kcm")
    these = space(task()).take([1])
    assert "predicts no energy" in score(tmp_path / "x.kcm", question(these), "--energy").stderr
    huge = model(latency=random_forest(bias=1e6), table={(DEVICE, "fp32"): (1e-300, 1.0, 1.0)})
    (tmp_path / "x.kcm").write_bytes(encode(huge))
    assert "has no time for these sizes" in score(tmp_path / "x.kcm", question(these)).stderr


def test_no_configurations_give_no_lines(score: Ask, whole: Path) -> None:
    done = score(whole, question(space(task()).take([])))
    assert (done.returncode, done.stdout) == (0, "")
