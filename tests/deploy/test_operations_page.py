"""Every command of docs/operations.md that can run here runs, in the order of the page; the others name what exists."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from kernelcast import cli
from kernelcast.api.settings import PREFIX, Settings
from kernelcast.commands import app
from kernelcast.files import HOME_ENV
from kernelcast.models.engine.runtime import ENGINE_ENV
from kernelcast.models.registry.mlflow_tracking import ARTIFACT_ROOT_ENV, URI_ENV

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
KNOWN = {PREFIX + name.upper() for name in Settings.__slots__} | {HOME_ENV, URI_ENV, ARTIFACT_ROOT_ENV, ENGINE_ENV}

# What changes a machine, or needs a cluster, a container engine or somebody's database.
_ELSEWHERE = {"sudo", "journalctl", "podman", "kubectl", "pg_dump", "python3", "/opt/kernelcast/bin/pip", "export"}


def lines() -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands run: with a model of one's own."""
    place = tmp_path_factory.mktemp("operations")
    shutil.copytree(ROOT / "models" / "pretrained" / "kernels", place / "my-model")
    (place / "home").mkdir()
    return place


def test_commands_are_run_or_known_to_be_for_elsewhere() -> None:
    assert {words[0] for words in lines()} == _ELSEWHERE | {"kernelcast", "curl", "tar"}


def test_keys_are_made_and_the_service_is_asked(
    folder: Path, serving: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (make,) = [words for words in lines() if words[:3] == ["kernelcast", "serve", "keys"]]
    assert cli.main(make[1:]) == 0
    key = capsys.readouterr().out.split()[0]
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    (serve,) = [words for words in lines() if "--keys" in words]
    asks = [words for words in lines() if words[0] == "curl"]
    assert len(asks) == 3
    # Of a port that is given twice the last counts; the page's may be taken.
    with serving(folder, {}, *serve[2:], "--port", "0") as port:
        for ask in asks:
            command = [curl, *(word.replace(":8000/", f":{port}/") for word in ask[1:]), "-H"]
            done = subprocess.run(
                [*command, f"authorization: Bearer {key}"], capture_output=True, check=False, timeout=20
            )
            assert (done.returncode, done.stdout[:1]) == (0, b"{"), ask


def test_every_option_of_serve_is_one() -> None:
    command = typer.main.get_command(app)
    groups = ("keys", "models")
    serves = [words[1:] for words in lines() if words[:2] == ["kernelcast", "serve"] and not {*words[2:3]} & {*groups}]
    assert len(serves) == 4
    for words in serves:
        with command.make_context("kernelcast", list(words)) as context:
            name, serve, options = command.resolve_command(context, words)
            assert serve.make_context(name, options, parent=context).params


def test_models_are_promoted_and_backed_up(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv(HOME_ENV, str(folder / "home"))
    monkeypatch.delenv(URI_ENV, raising=False)
    monkeypatch.delenv(ARTIFACT_ROOT_ENV, raising=False)
    commands = [words for words in lines() if words[:3] == ["kernelcast", "serve", "models"]]
    assert [words[3] for words in commands] == ["list", "promote", "register", "promote", "versions"]
    for words in commands:
        assert cli.main(words[1:]) == 0, f"{words}: {capsys.readouterr().err}"
    assert "champion" in capsys.readouterr().out
    (pack,) = re.findall(r"^tar .*$", PAGE, re.MULTILINE)
    subprocess.run(["bash", "-c", pack], check=True, timeout=240, env=os.environ | {HOME_ENV: str(folder / "home")})
    listing = subprocess.run(
        ["tar", "-tzf", "kernelcast-home.tar.gz"], capture_output=True, text=True, check=True, timeout=60
    )
    assert {"./champion.json", "./mlflow.db", "./models/1/manifest.json"} <= set(listing.stdout.split())


def test_paths_and_variables_exist() -> None:
    for name in set(re.findall(r"\b(deploy/[\w./-]+\w)", PAGE)):
        assert (ROOT / name).exists(), name
    named = set(re.findall(r"KERNELCAST_[A-Z_]*[A-Z]", PAGE))
    assert named <= KNOWN, sorted(named - KNOWN)
    extras = set(re.findall(r"`\.\[(\w+)\]`", PAGE)) | set(re.findall(r"EXTRAS=(\w+)", PAGE))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in extras:
        assert f"\n{extra} = [" in project


# Words of the troubleshooting table, and the file that says them.
_SAID = {
    "in use": "api/server.py",
    "others can reach": "api/middleware/access.py",
    "this service does not allow the host name": "api/middleware/access.py",
    "the model registry at": "models/registry/mlflow_tracking.py",
    "another promotion has held": "models/registry/registry.py",
    "begins like the service's own": "api/middleware/proxy.py",
}


@pytest.mark.parametrize("words", _SAID)
def test_symptoms_are_the_words_that_are_said(words: str) -> None:
    assert words in PAGE
    assert words in (ROOT / _SAID[words]).read_text(encoding="utf-8")
