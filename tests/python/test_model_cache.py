"""The model stays loaded: a warm question takes no reading, and one on disk that changed is read again."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kernelcast
import pytest
from kernelcast.models.family_model.artifact import CHAMPION_POINTER, manifest_sha256
from kernelcast.models.pretrained import KERNELS
from kernelcast.python import model_cache

GEMM = {"device": "h100-sxm", "dtype": "bf16", "m": 512, "n": 512, "k": 512}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A model directory that only this test changes; its files are links."""
    shutil.copytree(KERNELS, tmp_path / "model", copy_function=os.link)
    manifest = tmp_path / "model" / "manifest.json"
    content = manifest.read_bytes()
    manifest.unlink()
    manifest.write_bytes(content)
    return tmp_path / "model"


def touch(model: Path, second: int) -> None:
    os.utime(model / "manifest.json", (second, second))


def test_a_model_is_read_once(monkeypatch):
    first = kernelcast.load()
    monkeypatch.setattr(model_cache, "load_predictor", None)
    assert kernelcast.load() is first
    kernelcast.predict("gemm", **GEMM)


def test_a_model_that_changed_is_read_again_and_others_are_not(copied):
    first = kernelcast.load(copied)
    assert kernelcast.load(str(copied)) is first
    touch(copied, 1_000_000_000)
    second = kernelcast.load(copied)
    assert second is not first
    assert kernelcast.load(copied) is second
    assert kernelcast.load() is kernelcast.load()


def test_a_promotion_and_its_end_change_the_default(copied, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path / "home"))
    assert kernelcast.load().directory == KERNELS
    pointer = tmp_path / "home" / CHAMPION_POINTER
    pointer.parent.mkdir()
    pointer.write_text(json.dumps({"artifact": str(copied), "version": "1", "sha256": manifest_sha256(copied)}))
    assert kernelcast.load().directory == copied
    pointer.unlink()
    assert kernelcast.load().directory == KERNELS


def test_a_champion_that_was_changed_is_refused(copied, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path / "home"))
    pointer = tmp_path / "home" / CHAMPION_POINTER
    pointer.parent.mkdir()
    pointer.write_text(json.dumps({"artifact": str(copied), "version": "1", "sha256": manifest_sha256(copied)}))
    kernelcast.load()
    manifest = copied / "manifest.json"
    manifest.write_text(manifest.read_text() + " ")
    with pytest.raises(kernelcast.ArtifactError, match="is not the one that was promoted"):
        kernelcast.load()


def test_a_directory_that_is_gone_is_no_model(copied):
    kernelcast.load(copied)
    shutil.rmtree(copied)
    with pytest.raises(kernelcast.ArtifactError):
        kernelcast.load(copied)


def test_threads_read_a_model_once(copied, monkeypatch):
    read, real = [], model_cache.load_predictor

    def counted(path: Path) -> object:
        read.append(path)
        return real(path)

    monkeypatch.setattr(model_cache, "load_predictor", counted)
    with ThreadPoolExecutor(8) as threads:
        predictors = set(threads.map(lambda _: id(kernelcast.load(copied)), range(64)))
    assert len(predictors) == len(read) == 1


def test_few_models_stay_loaded(tmp_path, monkeypatch):
    class Predictor:
        def __init__(self, path: Path) -> None:
            self.path = path

    monkeypatch.setattr(model_cache, "load_predictor", Predictor)
    for i in range(3 * model_cache._MOST):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "manifest.json").write_text("{}")
        kernelcast.load(tmp_path / str(i))
    assert len(model_cache._models) == model_cache._MOST


def test_what_is_made_of_a_model_stays_with_it():
    assert model_cache.programs(None) is model_cache.programs(None)
    assert model_cache.services(None).predictor is kernelcast.load()
