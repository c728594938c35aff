"""deploy/systemd/kernelcast.service: systemd takes it, it is tight, and what it starts runs under its restrictions."""

from __future__ import annotations

import ctypes
import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
from kernelcast.api.settings import PREFIX, Settings
from kernelcast.files import HOME_ENV
from kernelcast.models.registry.mlflow_tracking import ARTIFACT_ROOT_ENV, URI_ENV

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "systemd" / "kernelcast.service"
PROGRAM = "/opt/kernelcast/bin/kernelcast"
KNOWN = {PREFIX + name.upper() for name in Settings.__slots__} | {HOME_ENV, URI_ENV, ARTIFACT_ROOT_ENV}

# linux/prctl.h: once set, no memory becomes executable that was not, as MemoryDenyWriteExecute= has it.
_PR_SET_MDWE, _PR_MDWE_REFUSE_EXEC_GAIN = 65, 1


def settings_of_unit() -> dict[str, list[str]]:
    result: dict[str, list[str]] = defaultdict(list)
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(("#", ";", "[")):
            name, equals, value = line.partition("=")
            assert equals, line
            result[name].append(value)
    return result


def environment() -> dict[str, str]:
    return dict(line.split("=", 1) for line in settings_of_unit()["Environment"])


def programs_unit(tmp_path: Path) -> Path:
    """The unit with this environment's program in place of the one in /opt."""
    program = Path(sys.executable).with_name("kernelcast")
    path = tmp_path / UNIT.name
    path.write_text(UNIT.read_text(encoding="utf-8").replace(PROGRAM, str(program)), encoding="utf-8")
    return path


def analyze(*options: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    return subprocess.run([program, *options], capture_output=True, text=True, check=False, timeout=240)


def test_systemd_takes_it(tmp_path: Path) -> None:
    path = programs_unit(tmp_path)
    with_keys = tmp_path / f"{UNIT.name}.d"
    with_keys.mkdir()
    shutil.copy(UNIT.with_name("keys.conf"), with_keys)
    done = analyze("verify", "--man=no", str(path))
    message = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, message) == (0, [])


def test_it_is_exposed_to_little(tmp_path: Path) -> None:
    done = analyze("security", "--offline=true", "--no-pager", "--threshold=20", str(programs_unit(tmp_path)))
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot look at a file")
    result = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert result, done.stderr
    # systemd calls up to 2 OK; a service without any of it is at 9.6.
    assert float(result[1]) <= 1.5


def test_every_variable_is_a_setting() -> None:
    texts = [path.read_text(encoding="utf-8") for path in UNIT.parent.iterdir()]
    named = {name for text in texts for name in re.findall(r"KERNELCAST_\w+", text)}
    assert named
    assert named <= KNOWN, sorted(named - KNOWN)
    raw = {name: value.replace("%S", "/var/lib") for name, value in environment().items()}
    settings = Settings.from_env(raw)
    assert settings.host == "127.0.0.1"
    assert settings.workers >= 2


def test_it_starts_the_program_and_stops_in_time() -> None:
    unit = settings_of_unit()
    (start,) = unit["ExecStart"]
    assert start.split()[:2] == [PROGRAM, "serve"]
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert "KillSignal" not in unit
    from kernelcast.api.server import SHUTDOWN_S

    assert int(unit["TimeoutStopSec"][0]) > 2 * SHUTDOWN_S


def ask(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def restrict() -> None:
    """What of the unit's restrictions a process can put on itself."""
    unit = settings_of_unit()
    if unit["MemoryDenyWriteExecute"] == ["yes"]:
        ctypes.CDLL(None).prctl(_PR_SET_MDWE, _PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)
    os.umask(int(unit["UMask"][0], 8))


def workers(pid: int) -> set[str]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    # Beside the workers there is multiprocessing's own resource tracker.
    return {child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()}


@pytest.mark.skipif(sys.platform != "linux", reason="systemd is Linux's")
def test_what_it_starts_runs_as_restricted_and_reloads(tmp_path: Path) -> None:
    (start,) = settings_of_unit()["ExecStart"]
    command = [sys.executable, "-P", "-m", "kernelcast", *start.split()[1:], "--json"]
    env = (
        {"PATH": os.environ["PATH"]} | environment() | {"KERNELCAST_PORT": "0", HOME_ENV: str(tmp_path / "kernelcast")}
    )
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=restrict)  # fmt: skip
    try:
        assert process.stdout is not None
        result = re.search(r":(\d+)", process.stdout.readline())
        assert result, process.communicate(timeout=120)[1][-2000:]
        port, before = int(result[1]), workers(process.pid)
        assert ask(port, "/readyz") == 200
        process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 90
        while workers(process.pid) & before:
            assert ask(port, "/healthz") == 200
            assert time.monotonic() < end, "the workers were not replaced"
            time.sleep(0.1)
        assert ask(port, "/readyz") == 200
    finally:
        process.terminate()
        process.communicate(timeout=120)
    assert process.returncode in (0, -signal.SIGTERM)
