"""A registry that is locked, a disk that is full, and a clock that jumps."""

from __future__ import annotations

import ast
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import kernelcast
import pytest

pytestmark = pytest.mark.slow

PRODUCT = Path(kernelcast.__file__).parent


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def service(launch, models, home, promote_to, wait):
    promote_to(home, models / "a")
    service = launch(HOME=str(home))
    wait(lambda: service.ask("GET", "/readyz")[0] == 200)
    return service


_PROMOTE = """
import sys
from pathlib import Path
from kernelcast.features.errors import SpecError
from kernelcast.models.registry import registry
from kernelcast.models.registry.mlflow_tracking import RegistryError
try:
    getattr(registry, sys.argv[1])(Path(sys.argv[2]))
except (SpecError, RegistryError) as error:
    sys.exit(str(error))
"""


def promote(how: str, model: Path, home: Path, largest_b: int | None = None) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if largest_b is not None:
            # A write beyond it fails as on a full disk, with an error where it is written and half a file left behind.
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_b, largest_b))

    return subprocess.run(
        [sys.executable, "-P", "-c", _PROMOTE, how, str(model)], capture_output=True, text=True, timeout=120, cwd="/",
        check=False, preexec_fn=limit, env=os.environ | {"KERNELCAST_HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


def test_a_locked_registry_stops_a_promotion_with_a_reason_and_no_answer(service, models, home, load):
    with closing(sqlite3.connect(home / "mlflow.db", isolation_level=None)) as other, load(service.port, 2) as clients:
        other.execute("BEGIN EXCLUSIVE")
        done = promote("promote", models / "b", home)
        clients.more(10)
    assert done.returncode == 1
    assert "the model registry at sqlite:///" in done.stderr
    assert "database is locked" in done.stderr
    assert "Traceback" not in done.stderr
    assert clients.failures == []
    assert service.model()["manifest"]["tag"] == "a"


@pytest.mark.parametrize("largest_b", [0, 100, 10_000])
def test_a_full_disk_stops_a_promotion_and_leaves_the_champion(service, models, home, largest_b):
    before = (home / "champion.json").read_bytes()
    done = promote("promote_directory", models / "b", home, largest_b)
    assert done.returncode == 1
    assert "cannot pin the model" in done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert (home / "champion.json").read_bytes() == before
    assert [path for path in (home / "models").iterdir() if not path.name.startswith(".")] == []
    assert service.predict()[0] == 200


def test_a_full_disk_at_the_last_step_leaves_the_champion(models, home, tmp_path):
    pinned = promote("promote_directory", models / "a", tmp_path)
    assert pinned.returncode == 0, pinned.stderr
    before = (tmp_path / "champion.json").read_bytes()
    done = promote("promote_directory", models / "a", tmp_path, 20)
    assert "cannot write the champion pointer" in done.stderr
    assert (tmp_path / "champion.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


def test_a_log_that_cannot_be_written_costs_no_answer(models, tmp_path, gemm):
    """The access log and the server's own go to a device that is full."""
    code = """
import os, sys
from kernelcast.api import server
from kernelcast.api.settings import Settings
from dataclasses import replace
def ready(address):
    print(address, flush=True)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, 1), os.dup2(full, 2)
server.serve(replace(Settings.from_env(), port=0, access_log=True), ready)
"""
    process = subprocess.Popen([sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, text=True, cwd="/",
                               env=os.environ | {"KERNELCAST_MODEL": str(models / "a")})  # fmt: skip
    assert process.stdout is not None
    from http.client import HTTPConnection

    connection = HTTPConnection("127.0.0.1", int(process.stdout.readline().rsplit(":", 1)[1]), timeout=120)
    for path, status in [("/healthz", 200), ("/nowhere", 404), ("/readyz", 200)] * 20:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
    connection.close()
    process.send_signal(signal.SIGTERM)
    process.wait(240)
    process.stdout.close()


# Imported by every Python process of the service at its start: the wall clock jumps a day to and fro, three times a second.
_JUMPING = """
import time
_wall, _wall_ns, _steady = time.time, time.time_ns, time.monotonic
def _jump():
    return 86400 * (int(_steady() * 3) % 3 - 1)
time.time = lambda: _wall() + _jump()
time.time_ns = lambda: _wall_ns() + _jump() * 10**9
"""


def test_a_clock_that_jumps_stops_nothing(launch, models, home, promote_to, load, wait, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(_JUMPING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    code = "import sys; from kernelcast.api import server; server.HEALTH_TIMEOUT_S = 10; " \
        "from kernelcast.cli import main; sys.exit(main(sys.argv[1:]))"  # fmt: skip
    own = tmp_path / "home"
    promote_to(own, models / "a")
    service = launch("--workers", "2", HOME=str(own), START_S="60", code=code)
    workers = wait(lambda: service.workers if len(service.workers) == 2 else None)
    with load(service.port) as clients:
        time.sleep(3)
        promote_to(own, models / "b")
        wait(lambda: all(service.model()["manifest"]["tag"] == "b" for _ in range(8)))
    assert clients.failures == []
    assert clients.slowest_s < 60
    assert service.workers == workers
    assert "died" not in service.log.read_text()


WALL_CLOCK_CALLS = {"time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.strftime", "time.ctime", "datetime.now",
                    "datetime.utcnow", "datetime.today", "date.today"}  # fmt: skip
TELLS_THE_TIME = {
    "model_source.py": "since when a model answers, for people",
    "api_keys.py": "the day a key was made, for people",
    "request_log.py": "when a request came, for people",
    "usage_log.py": "the day that counts belong to, in the names of its files",
}
"""Where the wall clock may be read: for what is shown. What waits, expires or gives up reads the monotonic clock."""


def wall_clock_calls(path: Path) -> list[str]:
    return [ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and ast.unparse(node.func) in WALL_CLOCK_CALLS]  # fmt: skip


def test_no_timeout_of_the_service_depends_on_the_wall_clock():
    files = [*(PRODUCT / "api").rglob("*.py"), PRODUCT / "commands" / "serve.py"]
    result = {path.name: calls for path in files if (calls := wall_clock_calls(path))}
    assert len(files) > 20
    assert set(result) <= set(TELLS_THE_TIME), result
    assert result["model_source.py"] == ["datetime.now"]


def test_the_search_for_wall_clocks_finds_them(tmp_path):
    (tmp_path / "x.py").write_text(
        "import time\nfrom datetime import datetime\na = time.time() + datetime.now().second"
    )
    assert wall_clock_calls(tmp_path / "x.py") == ["time.time", "datetime.now"]
