"""Artifacts on disk: what was saved is what is loaded, damage is refused, and an old one survives a failed write."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.models.family_model import artifact_files as module
from kernelcast.models.family_model.artifact import (
    Artifact,
    default_model_dir,
    manifest_sha256,
    read_manifest,
    save_artifact,
)
from kernelcast.models.family_model.artifact_files import ArtifactError, write_manifest
from kernelcast.models.predict.predictor import ArtifactPredictor, load_predictor
from kernelcast.models.training.labelled_cases import LabelledCases
from kernelcast.models.training.training import report_of

MadeUp = Callable[..., LabelledCases]
Train = Callable[..., Artifact]


@pytest.fixture
def copied(model_dir: Path, tmp_path: Path) -> Path:
    """A copy of the trained artifact that a test may damage."""
    return Path(shutil.copytree(model_dir, tmp_path / "model"))


def _edit(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    change(manifest)
    write_manifest(directory, manifest)


def test_the_manifest_says_how_the_model_was_made(model_dir: Path, artifact: Artifact) -> None:
    manifest = read_manifest(model_dir)
    assert manifest["regressor"] == "xgboost"
    assert manifest["seed"] == 0
    assert manifest["data"] == [{"name": "made up", "sha256": "0" * 64}]
    assert set(manifest["families"]) == {"gemm", "softmax"}
    assert manifest["families"]["gemm"]["metrics"] == artifact.families["gemm"].metrics
    assert set(manifest["files"]) == {path.name for path in model_dir.iterdir()} - {"manifest.json"}
    assert report_of(artifact, None).families["gemm"]["rows"] == 400


def test_the_same_seed_gives_the_same_bytes(made_up: MadeUp, train: Train, tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_artifact(train([made_up(120)], seed=3), tmp_path / name)
    save_artifact(train([made_up(120)], seed=4), tmp_path / "c")
    first, second, other = (read_manifest(tmp_path / name)["files"] for name in "abc")
    assert first == second
    assert first != other
    for name in first:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_model_answers_alike_before_and_after_the_disk(
    predictor: ArtifactPredictor, made_up: MadeUp, copied: Path
) -> None:
    cases = made_up(50, seed=2).cases
    first, again = predictor.predict_cases(cases), load_predictor(copied).predict_cases(cases)
    for target, columns in first.targets.items():
        for name in ("value", "lower", "upper"):
            assert np.array_equal(getattr(columns, name), getattr(again.targets[target], name), equal_nan=True)


def test_no_file_can_run_code(model_dir: Path) -> None:
    assert {"".join(path.suffixes[-2:]) for path in model_dir.iterdir()} == {".json", ".onnx.gz"}


def _delete_a_graph(directory: Path) -> None:
    (directory / "gemm.0.onnx.gz").unlink()


def _flip_a_byte(directory: Path) -> None:
    path = directory / "gemm.1.onnx.gz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def _truncate_a_graph(directory: Path) -> None:
    path = directory / "softmax.0.onnx.gz"
    path.write_bytes(path.read_bytes()[:-10])


def _truncate_the_manifest(directory: Path) -> None:
    path = directory / "manifest.json"
    path.write_bytes(path.read_bytes()[:-200])


def _other_schema(manifest: dict[str, Any]) -> None:
    manifest["families"]["gemm"]["schema_hash"] = "0123456789abcdef"


def _other_words(manifest: dict[str, Any]) -> None:
    manifest["families"]["gemm"]["schema"]["impls"].append("torch")


def _drop_a_key(manifest: dict[str, Any]) -> None:
    del manifest["families"]["gemm"]["targets"]


def _short_quantiles(manifest: dict[str, Any]) -> None:
    manifest["families"]["gemm"]["targets"]["latency"]["scores"]["seen"]["quantiles"].pop()


def _change_a_digit(directory: Path) -> None:
    path = directory / "manifest.json"
    text = path.read_text()
    at = text.index('"median_log_ratio": ') + len('"median_log_ratio": -0.')
    path.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])


def _without_checksum(directory: Path) -> None:
    path = directory / "manifest.json"
    path.write_text(
        json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != "sha256"})
    )


def _not_finite(directory: Path) -> None:
    path = directory / "manifest.json"
    path.write_text(path.read_text().replace('"median_log_ratio": ', '"median_log_ratio": NaN, "x": ', 1))


IMPOSSIBLE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a shift that overflows": (lambda gemm: gemm.update(shift="1e999"), "inf is not a number"),
    "no rows": (lambda gemm: gemm.update(n_rows=0), "0.0 is not a number between 1"),
    "a graph that is not there": (lambda gemm: gemm.update(free=99), "names graph 99"),
    "errors that descend": (
        lambda gemm: gemm["targets"]["latency"]["scores"]["seen"]["quantiles"].reverse(), "do not ascend"),
    "points of another shape": (lambda gemm: gemm["domain"].update(points=[[1.0]]), "of the shape (1, 1)"),
    "a reach below nothing": (lambda gemm: gemm["domain"].update(reach=-1.0), "-1.0 is not a number between 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_values_that_cannot_be_are_refused_by_name(name: str, copied: Path) -> None:
    change, says = IMPOSSIBLE[name]
    _edit(copied, lambda manifest: change(manifest["families"]["gemm"]))
    with pytest.raises(ArtifactError, match=rf"entry for gemm is damaged.*{re.escape(says)}"):
        load_predictor(copied).load_all()


def test_what_was_promoted_is_what_serves(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    pointer = {"artifact": str(copied), "version": "1", "sha256": manifest_sha256(copied)}
    (tmp_path / "champion.json").write_text(json.dumps(pointer))
    assert default_model_dir() == copied
    # Whoever changes it rightly, with checksums and all, has still not promoted it.
    _edit(copied, lambda manifest: manifest["families"]["gemm"].update(shift=0.5))
    load_predictor(copied).load_all()
    with pytest.raises(ArtifactError, match="is not the one that was promoted"):
        default_model_dir()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_change_a_digit, "manifest.json does not match its own checksum"),
        (_without_checksum, "manifest.json does not match its own checksum"),
        (_not_finite, "it has the number NaN"),
        (_delete_a_graph, "incomplete: gemm.0.onnx.gz"),
        (_flip_a_byte, "gemm.1.onnx.gz does not match its checksum"),
        (_truncate_a_graph, "softmax.0.onnx.gz does not match its checksum"),
        (_truncate_the_manifest, "manifest.json cannot be read"),
        (lambda directory: (directory / "manifest.json").unlink(), "is no model: it has no manifest.json"),
        (lambda directory: (directory / "manifest.json").write_text("[]"), "has format None"),
        (lambda directory: (directory / "manifest.json").write_bytes(b"\xff\xfe"), "manifest.json cannot be read"),
        (lambda directory: _edit(directory, lambda m: m.update(format_version=99)), "has format 99, this kernelcast reads 2"),
        (lambda directory: _edit(directory, lambda m: m.pop("families")), "manifest.json is damaged"),
        (lambda directory: _edit(directory, lambda m: m.update(files=[])), "manifest.json is damaged"),
        (lambda directory: _edit(directory, _other_schema), "trained on other features"),
        (lambda directory: _edit(directory, _other_words), "trained on other features"),
        (lambda directory: _edit(directory, _drop_a_key), "entry for gemm is damaged"),
        (lambda directory: _edit(directory, _short_quantiles), "entry for gemm is damaged"),
    ],
)  # fmt: skip
def test_damage_is_found_and_named(damage: Callable[[Path], Any], says: str, copied: Path) -> None:
    damage(copied)
    with pytest.raises(ArtifactError, match=says.replace(".", r"\.")):
        load_predictor(copied).load_all()


def test_an_unharmed_family_of_a_damaged_artifact_still_answers(copied: Path, made_up: MadeUp) -> None:
    _truncate_a_graph(copied)
    assert len(load_predictor(copied).predict_cases(made_up(5).cases)) == 5


def test_an_old_artifact_survives_a_failed_write(
    copied: Path, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    written: list[Path] = []

    def full_disk(path: Path, content: bytes) -> None:
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        written.append(path)
        path.write_bytes(content)

    monkeypatch.setattr(module, "write_whole", full_disk)
    with pytest.raises(ArtifactError, match=r"cannot write the model to .*: No space left on device"):
        save_artifact(artifact, copied)
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before
    assert [path.name for path in copied.parent.iterdir()] == [copied.name], "nothing half-written stays behind"


def test_a_new_artifact_replaces_the_old_one_whole(copied: Path, made_up: MadeUp, train: Train) -> None:
    save_artifact(train([made_up(60, power=0.0)]), copied)
    assert load_predictor(copied).families == ("gemm",)
    assert not list(copied.glob("softmax*"))
    assert [path.name for path in copied.parent.iterdir()] == [copied.name]


@pytest.mark.parametrize("what", ["file", "folder"])
def test_something_else_is_never_overwritten(what: str, tmp_path: Path, artifact: Artifact) -> None:
    target = tmp_path / "precious"
    if what == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "thesis.tex").write_text("mine")
    with pytest.raises(ArtifactError, match="exists and is no model directory"):
        save_artifact(artifact, target)
    assert "mine" in (target if what == "file" else target / "thesis.tex").read_text()


def test_an_unreadable_champion_pointer_is_an_error_not_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    (tmp_path / "champion.json").write_text("{")
    with pytest.raises(SpecError, match=r"champion pointer .* is unreadable"):
        default_model_dir()


_SERVE = """
import sys
from pathlib import Path
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.predict.predictor import load_predictor

predictor = load_predictor(Path(sys.argv[1]))
predictor.load_all()
spec = KernelSpec.of("gemm", "fp16", m=64, n=64, k=64)
assert predictor.predict([spec], ["nvidia-t4"])[0].latency_s.value > 0
heavy = {"torch", "sklearn", "scipy", "pandas", "mlflow", "xgboost", "onnx", "matplotlib", "duckdb"}
print(sorted(heavy & set(sys.modules)))
"""


def test_serving_imports_no_training_library(model_dir: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SERVE, str(model_dir)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.stderr == ""
    assert done.stdout.strip() == "[]"


def test_a_manifest_cannot_name_files_outside_its_folder(copied: Path) -> None:
    _edit(copied, lambda manifest: manifest["files"].update({"../outside": "0" * 64}))
    with pytest.raises(ArtifactError, match=r"names '\.\./outside', which is no file of its folder"):
        read_manifest(copied)
