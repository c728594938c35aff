"""Where the predictor comes from, and what happens when the artifact on disk changes. Needs no training: a stub loads."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelcast.api import model_source as module
from kernelcast.api.model_source import DirectorySource, Watcher, summary
from kernelcast.api.settings import Settings
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.models.family_model.artifact_files import ArtifactError


class Stub:
    """What `load_predictor` gives for a directory whose manifest is any JSON object; `bad` in it fails by that name."""

    def __init__(self, path: Path) -> None:
        self.manifest = json.loads((path / "manifest.json").read_text())
        self.families = tuple(self.manifest["families"])
        self.devices = catalogue()

    def load_all(self) -> None:
        if self.manifest.get("bad") == "artifact":
            raise ArtifactError("a file does not match its checksum")

    def predict(self, specs: Any, devices: Any, *, coverage: float = 0.9) -> list[Any]:
        if self.manifest.get("bad") == "graph":
            raise RuntimeError("node 3 has no kernel")
        return []


@pytest.fixture(autouse=True)
def _stub(monkeypatch):
    monkeypatch.setattr(module, "load_predictor", lambda path, devices: Stub(path))


def write(directory: Path, **facts: Any) -> None:
    directory.mkdir(exist_ok=True)
    manifest = {"families": {"gemm": {"devices": ["nvidia-h100-sxm-80gb"]}}} | facts
    temporary = directory / "new"
    temporary.write_text(json.dumps(manifest))
    temporary.replace(directory / "manifest.json")


def test_it_is_loaded_once_and_again_when_it_changes(tmp_path):
    write(tmp_path / "m", made="first")
    source = DirectorySource(lambda: tmp_path / "m", catalogue())
    assert source.current is None
    assert source.refresh()
    assert not source.refresh()
    assert source.current.manifest["made"] == "first"
    write(tmp_path / "m", made="second one")
    assert source.refresh()
    assert source.current.manifest["made"] == "second one"


@pytest.mark.parametrize("bad", ["artifact", "graph"])
def test_a_bad_artifact_does_not_replace_a_good_one(tmp_path, bad, caplog):
    write(tmp_path / "m", made="good")
    source = DirectorySource(lambda: tmp_path / "m", catalogue())
    source.refresh()
    write(tmp_path / "m", bad=bad)
    assert not source.refresh()
    assert source.current.manifest["made"] == "good"
    assert "checksum" in source.problem or "no kernel" in source.problem
    assert not source.refresh()
    assert caplog.text.count("goes on serving") == 1
    write(tmp_path / "m", made="good again")
    assert source.refresh()
    assert source.problem is None


def test_a_promotion_moves_to_another_directory(tmp_path):
    write(tmp_path / "a", made="a")
    write(tmp_path / "b", made="b")
    places = [tmp_path / "a", tmp_path / "b"]
    source = DirectorySource(lambda: places[0], catalogue())
    source.refresh()
    places.pop(0)
    assert source.refresh()
    assert source.current.manifest["made"] == "b"


def test_a_pointer_that_could_not_be_read_is_forgotten_once_it_can(tmp_path):
    write(tmp_path / "m")
    broken = False

    def locate() -> Path:
        if broken:
            raise ArtifactError("the champion pointer is unreadable")
        return tmp_path / "m"

    source = DirectorySource(locate, catalogue())
    source.refresh()
    broken = True
    assert not source.refresh()
    assert source.problem == "the champion pointer is unreadable"
    broken = False
    source.refresh()
    assert source.current is not None
    assert source.problem is None


def test_no_artifact_is_a_problem_that_passes(tmp_path):
    source = DirectorySource(lambda: tmp_path / "m", catalogue())
    assert not source.refresh()
    assert source.current is None
    assert "manifest.json" in source.problem
    write(tmp_path / "m")
    assert source.refresh()


def test_a_running_service_takes_a_new_artifact(tmp_path, serve):
    source = DirectorySource(lambda: tmp_path / "m", catalogue())
    with serve(source, Settings(reload_s=0.05)) as client:
        assert client.get("/readyz").status_code == 503
        write(tmp_path / "m", made="late")
        deadline = time.monotonic() + 60
        while client.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert client.get("/v1/models").json()["models"][0]["manifest"]["made"] == "late"


def test_a_copy_that_is_finished_later_is_looked_at_again_though_its_manifest_is_the_same(tmp_path, monkeypatch):
    write(tmp_path / "m", bad="artifact")
    source = DirectorySource(lambda: tmp_path / "m", catalogue())
    assert not source.refresh()
    loads: list[Path] = []
    monkeypatch.setattr(module, "load_predictor", lambda path, devices: loads.append(path) or Stub(path))
    source.refresh()
    assert loads == []
    (tmp_path / "m" / "gemm.0.onnx.gz").write_bytes(b"the rest")
    source.refresh()
    assert len(loads) == 1


def test_what_was_refused_is_tried_again_after_a_while(tmp_path, monkeypatch):
    write(tmp_path / "m", made="good")
    full = True

    def load(path: Path, devices: Any) -> Stub:
        if full:
            raise OSError(24, "Too many open files")
        return Stub(path)

    monkeypatch.setattr(module, "load_predictor", load)
    now = 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    source = DirectorySource(lambda: tmp_path / "m", catalogue())
    assert not source.refresh()
    assert "Too many open files" in source.problem
    full = False
    now += module.RETRY_S - 1
    assert not source.refresh()
    now += 2
    assert source.refresh()
    assert source.problem is None


def test_a_model_that_was_replaced_is_freed_with_what_it_refers_to(tmp_path, monkeypatch):
    missing: list[weakref.ref[Stub]] = []

    def load(path: Path, devices: Any) -> Stub:
        made = Stub(path)
        made.itself = made  # as a memoised method refers to its object
        missing.append(weakref.ref(made))
        return made

    monkeypatch.setattr(module, "load_predictor", load)
    source = DirectorySource(lambda: tmp_path / "m", catalogue())
    gc.disable()
    try:
        for made in ("first", "second one", "the third one"):
            write(tmp_path / "m", made=made)
            assert source.refresh()
    finally:
        gc.enable()
    assert [result() is None for result in missing] == [True, True, False]


def test_the_watch_outlives_a_look_that_fails_and_waits_for_no_look_that_hangs():
    looks: list[float] = []
    hang = threading.Event()

    def look() -> None:
        looks.append(time.monotonic())
        if len(looks) == 1:
            raise RuntimeError("a look failed, on purpose")
        if len(looks) == 3:
            hang.wait(200)

    async def watched() -> float:
        watcher = Watcher(look, 0.01)
        await watcher.start()
        while len(looks) < 3:
            await asyncio.sleep(0.01)
        started = time.monotonic()
        watcher.stop()
        return time.monotonic() - started

    try:
        assert asyncio.run(watched()) < 60
    finally:
        hang.set()


def test_the_start_waits_for_a_look_only_so_long():
    hang = threading.Event()

    async def started() -> None:
        watcher = Watcher(lambda: hang.wait(200), 1.0)
        await watcher.start(wait_s=0.05)
        watcher.stop()

    begin = time.monotonic()
    try:
        asyncio.run(started())
    finally:
        hang.set()
    assert time.monotonic() - begin < 60


def test_a_summary_leaves_out_what_only_a_machine_reads():
    assert summary({"a": {"points": list(range(1000))}, "b": [1, 2]}) == {"a": {"points": "1000 entries"}, "b": [1, 2]}


def test_settings_come_from_the_environment():
    env = {"KERNELCAST_PORT": "9000", "KERNELCAST_MODEL": "/m", "KERNELCAST_ACCESS_LOG": "yes", "KERNELCAST_RELOAD_S": "0.5",
           "KERNELCAST_DEVICE_FILES": "a.yaml:b.yaml", "KERNELCAST_HOST": ""}  # fmt: skip
    result = Settings.from_env(env)
    assert (result.host, result.port, result.model, result.access_log) == ("127.0.0.1", 9000, Path("/m"), True)
    assert result.device_files == (Path("a.yaml"), Path("b.yaml"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "70000"),
        ("PORT", "x"),
        ("ACCESS_LOG", "maybe"),
        ("RELOAD_S", "0"),
        ("MAX_BODY_B", "-1"),
        ("WORKERS", "0"),
        ("WORKERS", "257"),
        ("START_S", "x"),
    ],
)
def test_a_bad_setting_is_named(name, value):
    with pytest.raises(SpecError, match=f"KERNELCAST_{name} is '{value}'"):
        Settings.from_env({f"KERNELCAST_{name}": value})
