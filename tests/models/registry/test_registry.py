"""Tracking and the registry on a real database of SQLite; test_registry_postgresql.py has PostgreSQL."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kernelcast.models.family_model.artifact import Artifact, default_model_dir, manifest_sha256, save_artifact
from kernelcast.models.family_model.artifact_files import ArtifactError
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.models.registry import mlflow_tracking as tracking
from kernelcast.models.registry import registry
from kernelcast.models.registry.mlflow_tracking import RegistryError, open_tracking
from kernelcast.models.registry.registry import promote, promote_directory, register, versions
from kernelcast.models.training.labelled_cases import LabelledCases

MadeUp = Callable[..., LabelledCases]
Train = Callable[..., Artifact]


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with MLflow's tables, which take seconds to make."""
    path = tmp_path_factory.mktemp("registry") / "mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(tracking.URI_ENV, f"sqlite:///{path}")
        open_tracking()
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Path) -> Path:
    """A KERNELCAST_HOME of its own, with an empty registry; the current folder is another one."""
    place = tmp_path / "home"
    place.mkdir()
    shutil.copy(empty_database, place / "mlflow.db")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("KERNELCAST_HOME", str(place))
    for name in (tracking.URI_ENV, tracking.ARTIFACT_ROOT_ENV):
        monkeypatch.delenv(name, raising=False)
    return place


@pytest.fixture(scope="module")
def other_dir(made_up: MadeUp, train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another artifact."""
    directory = tmp_path_factory.mktemp("other") / "model"
    save_artifact(train([made_up(60, power=0.0)], seed=9), directory)
    return directory


def champions() -> list[int]:
    """The versions called champion, one at most."""
    return [version.version for version in versions() if "champion" in version.aliases]


def test_a_training_is_logged_whole(home: Path, model_dir: Path) -> None:
    register(model_dir)
    run_id = versions()[0].run_id
    run = open_tracking().client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["regressor"] == "xgboost"
    assert run.data.params["data.0.sha256"] == "0" * 64
    assert run.data.params["seed"] == "0"
    assert run.data.metrics["gemm.rows"] == 400
    assert run.data.metrics["gemm.held_out.latency.median_ape_pct"] > 0
    logged = home / "mlruns" / run_id / "artifacts" / "model"
    assert {path.name: path.read_bytes() for path in logged.iterdir()} == {
        path.name: path.read_bytes() for path in model_dir.iterdir()
    }


def test_nothing_is_written_where_one_stands(home: Path, model_dir: Path) -> None:
    register(model_dir)
    assert list(Path.cwd().iterdir()) == []
    assert {path.name for path in home.iterdir()} == {"mlflow.db", "mlruns"}


def test_versions_count_up_and_the_same_model_keeps_its_own(home: Path, model_dir: Path, other_dir: Path) -> None:
    assert versions() == []
    assert champions() == []
    assert register(model_dir) == 1
    assert register(other_dir) == 2
    assert register(model_dir) == 1
    first, second = versions()
    assert (first.version, second.version) == (1, 2)
    assert first.sha256 == manifest_sha256(model_dir)
    assert first.families == ("gemm", "softmax")
    assert first.regressor == "xgboost"


def test_promotion_moves_the_alias_and_what_serves(home: Path, model_dir: Path, other_dir: Path) -> None:
    register(model_dir)
    promoted = promote(1)
    assert promoted.artifact == home / "models" / "1"
    assert default_model_dir() == promoted.artifact
    pointer = json.loads((home / "champion.json").read_text())
    assert pointer["artifact"] == str(promoted.artifact)
    assert pointer["version"] == "1"
    assert pointer["promoted_at"].endswith("+00:00")
    load_predictor(default_model_dir()).load_all()

    promote(other_dir)
    assert default_model_dir() == home / "models" / "2"
    assert [item.aliases for item in versions()] == [(), ("champion",)]
    promote(1)
    assert champions() == [1]
    assert sorted(path.name for path in (home / "models").iterdir()) == ["1", "2"]


def test_the_promoted_copy_outlives_its_source(home: Path, model_dir: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(model_dir, tmp_path / "source"))
    promote(source)
    shutil.rmtree(source)
    shutil.rmtree(home / "mlruns")
    load_predictor(default_model_dir()).load_all()


def test_a_damaged_artifact_is_neither_registered_nor_promoted(home: Path, model_dir: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(model_dir, tmp_path / "damaged"))
    (damaged / "gemm.0.onnx.gz").write_bytes(b"")
    promote(model_dir)
    for refuse in (register, promote, promote_directory):
        with pytest.raises(ArtifactError, match="does not match its checksum"):
            refuse(damaged)
    assert len(versions()) == 1
    assert default_model_dir() == home / "models" / "1"


def test_damage_in_the_registry_is_found_before_anything_moves(home: Path, model_dir: Path, other_dir: Path) -> None:
    promote(model_dir)
    register(other_dir)
    run_id = versions()[1].run_id
    (home / "mlruns" / run_id / "artifacts" / "model" / "gemm.0.onnx.gz").write_bytes(b"")
    with pytest.raises(ArtifactError, match="does not match its checksum"):
        promote(2)
    assert champions() == [1]
    assert default_model_dir() == home / "models" / "1"
    assert [path.name for path in (home / "models").iterdir()] == ["1"], "nothing half-pinned stays behind"


def test_another_registry_s_version_never_overwrites_what_serves(home: Path, model_dir: Path, other_dir: Path) -> None:
    promote(model_dir)
    served = home / "models" / "1"
    before = manifest_sha256(served)
    (home / "mlflow.db").rename(home / "old.db")
    shutil.copy(home / "old.db", home / "mlflow.db")
    pinned = registry.pin(other_dir, "1")
    assert pinned == home / "models" / f"1-{manifest_sha256(other_dir)[:8]}"
    assert manifest_sha256(served) == before


def test_without_a_registry_a_directory_is_promoted_just_so(home: Path, model_dir: Path) -> None:
    promoted = promote_directory(model_dir)
    assert promoted.version == manifest_sha256(model_dir)[:12]
    assert default_model_dir() == promoted.artifact == home / "models" / promoted.version
    assert promote_directory(model_dir) == promoted


def test_a_version_that_is_not_there_lists_those_that_are(home: Path, model_dir: Path) -> None:
    register(model_dir)
    with pytest.raises(RegistryError, match="kernelcast has no version 7; versions: 1"):
        promote(7)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("mysql://me@host/db", "is neither sqlite:///FILE nor postgresql"),
        ("not a uri", "is neither sqlite:///FILE nor postgresql"),
        ("postgresql://me:secret@127.0.0.1:1/db", "me@127.0.0.1:1/db cannot be used: .*refused"),
        ("sqlite:////proc/nowhere/mlflow.db", "cannot be used: No such file or directory"),
    ],
)
def test_an_unusable_address_is_one_clear_sentence(
    home: Path, monkeypatch: pytest.MonkeyPatch, uri: str, says: str
) -> None:
    monkeypatch.setenv(tracking.URI_ENV, uri)
    with pytest.raises(RegistryError, match=says) as caught:
        versions()
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_database_is_one_clear_sentence(home: Path) -> None:
    (home / "mlflow.db").write_bytes(b"no database" * 100)
    with pytest.raises(RegistryError, match=r"cannot be used: .*file is not a database$"):
        versions()


def test_a_locked_database_is_one_clear_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_CONNECT_TIMEOUT_S", 0.2)
    holder = sqlite3.connect(home / "mlflow.db", isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RegistryError, match=f"sqlite:///{home}/mlflow.db cannot be used: database is locked$"):
            versions()
    finally:
        holder.close()


def test_mlflow_missing_says_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(RegistryError, match=r"pip install 'kernelcast\[train\]'"):
        versions()


_QUIET = """
import sys
from pathlib import Path
from kernelcast.models.registry.registry import promote
promote(Path(sys.argv[1]))
"""


def test_it_is_quiet_and_loads_no_pickle(home: Path, model_dir: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    done = subprocess.run(
        [sys.executable, "-c", _QUIET, str(model_dir)], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.environ["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] == "false"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert not [path for path in home.rglob("*") if path.suffix in (".pkl", ".pickle", ".joblib")]


def test_a_promotion_waits_for_another_and_not_for_ever(
    home: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl", reason="this system has no file locks of this kind")
    monkeypatch.setattr(registry, "_LOCK_WAIT_S", 0.1)
    with (home / ".promoting.lock").open("w") as stored:
        fcntl.flock(stored, fcntl.LOCK_EX)
        with pytest.raises(ArtifactError, match=r"another promotion has held .*promoting.lock for 0.1 s; end it first"):
            promote_directory(model_dir)
        assert not (home / "champion.json").exists()
    promote_directory(model_dir)
    assert (home / "champion.json").exists()
