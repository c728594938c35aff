"""The registry in a real PostgreSQL of our own: what is promoted serves, also while the database is away."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kernelcast.models.family_model.artifact import Artifact, default_model_dir, save_artifact
from kernelcast.models.registry import mlflow_tracking as tracking
from kernelcast.models.registry.mlflow_tracking import RegistryError, open_tracking
from kernelcast.models.registry.registry import promote, register, versions
from kernelcast.models.training.labelled_cases import LabelledCases

pytestmark = pytest.mark.slow

MadeUp = Callable[..., LabelledCases]
Train = Callable[..., Artifact]
SPEC = {"family": "gemm", "device": "nvidia-t4", "dtype": "fp16", "sizes": {"m": 64, "n": 64, "k": 64}}


def _programs() -> Path | None:
    result = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return result[-1].parent if result else Path(on_path).parent if on_path else None


class Cluster:
    """A PostgreSQL server of our own in `folder`, reached by a socket in it."""

    def __init__(self, programs: Path, folder: str) -> None:
        self._programs, self._folder = programs, folder
        self._options: dict[str, Any] = {"cwd": "/", "check": True, "capture_output": True, "timeout": 60}
        if os.geteuid() == 0:
            # It refuses to run as root.
            names = {user.pw_name: user for user in pwd.getpwall()}
            user = names.get("postgres") or names.get("nobody")
            if user is None:
                pytest.skip("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
            self._options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            os.chown(folder, user.pw_uid, user.pw_gid)
        # The socket is for every user of this machine; its folder is ours.
        Path(folder).chmod(0o755)
        self._run("initdb", "-A", "trust", "-U", "kernelcast", "--no-sync", "-E", "UTF8", "--locale=C")

    def uri(self, database: str) -> str:
        return f"postgresql://kernelcast@/{database}?host={self._folder}"

    def create(self, database: str) -> str:
        """The address of a new, empty database."""
        command = [self._programs / "createdb", "-h", self._folder, "-U", "kernelcast", database]
        subprocess.run(command, **self._options)
        return self.uri(database)

    def start(self) -> None:
        flags = f"-k {self._folder} -c listen_addresses='' -c fsync=off -c full_page_writes=off"
        self._run("pg_ctl", "-o", flags, "-l", f"{self._folder}/log", "-w", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-m", "immediate", "-w", "stop")

    def _run(self, program: str, *options: str) -> None:
        subprocess.run([self._programs / program, "-D", f"{self._folder}/data", *options], **self._options)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL's server programs are not installed (apt-get install postgresql)")
    pytest.importorskip("psycopg2", reason="psycopg2 is not installed (pip install psycopg2-binary)")
    # The path of its socket must be short, and pytest's own folders are closed to other users.
    with tempfile.TemporaryDirectory(prefix="kc-pg-") as folder:
        it = Cluster(programs, folder)
        it.start()
        try:
            yield it
        finally:
            with contextlib.suppress(subprocess.CalledProcessError):
                it.stop()


@pytest.fixture(scope="module")
def other_dir(made_up: MadeUp, train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("other") / "model"
    save_artifact(train([made_up(60, power=0.0)], seed=9), directory)
    return directory


@pytest.fixture(scope="module")
def two_versions(cluster: Cluster, model_dir: Path, other_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A KERNELCAST_HOME whose registry, in the database `two`, has the versions 1 and 2 and no champion yet."""
    home = tmp_path_factory.mktemp("two") / "home"
    home.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELCAST_HOME", str(home))
        patch.setenv(tracking.URI_ENV, cluster.create("two"))
        assert versions() == []
        assert register(model_dir) == 1
        assert register(other_dir) == 2
    return home


@pytest.fixture
def home(two_versions: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELCAST_HOME", str(two_versions))
    monkeypatch.setenv(tracking.URI_ENV, cluster.uri("two"))
    monkeypatch.delenv(tracking.ARTIFACT_ROOT_ENV, raising=False)
    return two_versions


def ask(address: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{address}{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The address of a server that looks at its model ten times a second."""
    command = [sys.executable, "-P", "-m", "kernelcast", "serve", "--port", "0", "--json"]
    process = subprocess.Popen(command, env=os.environ | {"KERNELCAST_RELOAD_S": "0.1"}, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=120)[1][-2000:]
        yield json.loads(line)["address"]
    finally:
        process.terminate()
        process.communicate(timeout=120)


def served(address: str) -> Path:
    (model,) = ask(address, "/v1/models")["models"]
    return Path(model["path"])


def wait_for(address: str, path: Path) -> None:
    end = time.monotonic() + 10
    while served(address) != path:
        assert time.monotonic() < end, f"{served(address)} still serves, not {path}"
        time.sleep(0.05)


def test_what_is_promoted_serves_and_goes_on_without_the_database(home: Path, cluster: Cluster) -> None:
    promote(1)
    assert open_tracking().uri.startswith("postgresql+psycopg2://")
    with serving() as address:
        assert served(address) == home / "models" / "1"
        first = ask(address, "/v1/predict", SPEC)["latency_s"]["value"]
        promote(2)
        wait_for(address, home / "models" / "2")
        second = ask(address, "/v1/predict", SPEC)["latency_s"]["value"]
        assert second != first

        cluster.stop()
        try:
            started = time.monotonic()
            done = subprocess.run([sys.executable, "-P", "-m", "kernelcast", "models", "promote", "1"],
                                  capture_output=True, text=True, check=False, timeout=240)  # fmt: skip
            took_s = time.monotonic() - started
            message = " ".join(done.stderr.split())
            assert done.returncode != 0
            assert "the model registry at postgresql+psycopg2://kernelcast@/two" in message
            assert "cannot be used: " in message
            assert "Is the server running" in message
            assert "Traceback" not in message
            assert took_s < 30
            assert ask(address, "/v1/predict", SPEC)["latency_s"]["value"] == second
            with serving() as restarted:
                assert served(restarted) == home / "models" / "2" == default_model_dir()
                assert ask(restarted, "/v1/predict", SPEC)["latency_s"]["value"] == second
        finally:
            cluster.start()
        # Rolled back, once the database is there again.
        promote(1)
        wait_for(address, home / "models" / "1")
        assert ask(address, "/v1/predict", SPEC)["latency_s"]["value"] == first
    assert not (home / "mlflow.db").exists()


# Waits for the other, so that both are past their imports; then opens an empty database, and promotes what it is told, slow to
# write the pointer.
_PROMOTER = """
import os, sys, time
from pathlib import Path
from kernelcast.models.registry import registry, mlflow_tracking as tracking
place, empty, delay_s, *turns = sys.argv[1:]
point_at = registry._point_at
def slowly(*given):
    time.sleep(float(delay_s))
    point_at(*given)
registry._point_at = slowly
tracking._import_mlflow()
Path(place).touch()
while len(list(Path(place).parent.glob("here-*"))) < 2:
    pass
two = os.environ.pop(tracking.URI_ENV)
os.environ[tracking.URI_ENV] = empty
tracking.open_tracking().experiment()
os.environ[tracking.URI_ENV] = two
for version in turns:
    registry.promote(int(version))
"""


def test_two_who_promote_at_once_leave_one_champion(home: Path, cluster: Cluster, tmp_path: Path) -> None:
    promote(1)
    promote(2)
    # Were they to mix, the slow one's pointer would be the last and its alias the first.
    rounds, empty = (["1", "1"], ["0", "2", "2", "2"]), cluster.create("empty")
    both = [
        subprocess.Popen([sys.executable, "-P", "-c", _PROMOTER, str(tmp_path / f"here-{n}"), empty, *order],
                         stderr=subprocess.PIPE, text=True)
        for n, order in enumerate(rounds)
    ]  # fmt: skip
    for process in both:
        message = process.communicate(timeout=90)[1]
        assert process.returncode == 0, message[-2000:]
    (now,) = (version.version for version in versions() if "champion" in version.aliases)
    assert json.loads((home / "champion.json").read_text())["version"] == str(now)
    assert default_model_dir() == home / "models" / str(now)
    assert sorted(path.name for path in (home / "models").iterdir()) == ["1", "2"]
    assert [path.name for path in home.glob(".*.tmp")] == []


def test_a_database_that_is_not_there_is_one_sentence(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tracking.URI_ENV, cluster.uri("nowhere"))
    with pytest.raises(RegistryError, match=r'cannot be used: .*database "nowhere" does not exist'):
        versions()
