"""Real server processes, a small model they load fast, and clients that keep asking while something goes wrong."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kernelcast
import pytest
from kernelcast.models.family_model.artifact_files import write_manifest

SHIPPED = Path(kernelcast.__file__).parent / "models" / "pretrained" / "kernels"
GEMM = {"family": "gemm", "device": "h100-sxm", "dtype": "bf16", "sizes": {"m": 64, "n": 4096, "k": 4096}}
JSON = {"content-type": "application/json"}


def until(holds: Callable[[], Any], within_s: float = 240.0) -> Any:
    """What `holds` gives once it is true; fails when it is not within the time."""
    deadline = time.monotonic() + within_s
    while not (result := holds()):
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)
    return result


def write_model(directory: Path, tag: str) -> Path:
    """An artifact with the shipped gemm graphs alone, that loads in a moment; `tag` tells two of them apart."""
    manifest = json.loads((SHIPPED / "manifest.json").read_text())
    entry = manifest["families"]["gemm"]
    manifest |= {
        "families": {"gemm": entry},
        "files": {name: manifest["files"][name] for name in entry["graphs"]},
        "tag": tag,
    }
    directory.mkdir(parents=True)
    for name in entry["graphs"]:
        shutil.copy(SHIPPED / name, directory / name)
    write_manifest(directory, manifest)
    return directory


def point_at(home: Path, model: Path) -> None:
    """Make `model` the champion, as a promotion does in its last step."""
    home.mkdir(exist_ok=True)
    (home / "new.json").write_text(json.dumps({"artifact": str(model), "version": model.name, "promoted_at": "now"}))
    (home / "new.json").replace(home / "champion.json")


def ask(port: int, method: str = "GET", path: str = "/healthz", body: Any = None) -> tuple[int, Any]:
    """One request on a connection of its own; the body is JSON both ways."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), JSON if body is not None else {})
        answer = connection.getresponse()
        raw = answer.read()
        is_json = "json" in (answer.getheader("content-type") or "")
        return answer.status, json.loads(raw) if is_json else raw
    finally:
        connection.close()


@dataclass
class Service:
    """A server process, and what the operating system knows of it."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    @property
    def workers(self) -> list[int]:
        """Process numbers of the workers."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        result = [int(word) for word in path.read_text().split()]
        return [pid for pid in result if b"spawn_main" in _command(pid)]

    def ask(self, method: str = "GET", path: str = "/healthz", body: Any = None) -> tuple[int, Any]:
        return ask(self.port, method, path, body)

    def predict(self) -> tuple[int, Any]:
        return self.ask("POST", "/v1/predict", GEMM)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=120)

    def reply_to(self, *parts: bytes) -> bytes:
        """What it answers to parts that are sent one after the other, until it closes."""
        with self.connect() as client:
            with contextlib.suppress(OSError):  # it may have closed before all was sent
                for part in parts:
                    client.sendall(part)
                    time.sleep(0.02 if 1 < len(parts) < 50 else 0)
            return self.read_all(client)

    @staticmethod
    def read_all(client: socket.socket) -> bytes:
        """What comes until it closes."""
        reply = b""
        with contextlib.suppress(ConnectionResetError):  # it closed with something unread; its reply was read before
            while part := client.recv(65536):
                reply += part
        return reply

    @staticmethod
    def statuses(reply: bytes) -> list[int]:
        return [int(word) for word in re.findall(rb"HTTP/1\.1 (\d{3}) ", reply)]

    def model(self) -> dict[str, Any]:
        return self.ask("GET", "/v1/models")[1]["models"][0]

    def resident_b(self, pid: int | None = None) -> int:
        pages = int(Path(f"/proc/{pid or self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(240)


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def start_service(folder: Path, *args: str, code: str | None = None, **env: str) -> Service:
    """`kernelcast serve` on a free port, or `code`, a program that serves; `env` are variables without their prefix."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    base = {name: value for name, value in os.environ.items() if not name.startswith("KERNELCAST_")}
    inputs = {"HOME": str(folder / "home"), "RELOAD_S": "0.1"} | env
    command = ["-P", "-m", "kernelcast"] if code is None else ["-P", "-c", code]
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, *command, "serve", "--port", "0", "--json", *args], stdout=subprocess.PIPE, stderr=errors,
            text=True, cwd="/", env=base | {f"KERNELCAST_{name}": value for name, value in inputs.items()},
        )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.communicate(timeout=120)
        pytest.fail(f"the service did not start: {log.read_text()[-2000:]}")
    return Service(process, int(json.loads(line)["address"].rsplit(":", 1)[1]), log)


@dataclass
class Load:
    """Clients that ask without a pause, each on a connection it keeps; `failures` are requests that got no answer of 200."""

    port: int
    clients: int = 4
    body: Any = field(default_factory=lambda: GEMM)
    answered: int = 0
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Load:
        self._threads = [threading.Thread(target=self._ask) for _ in range(self.clients)]
        for thread in self._threads:
            thread.start()
        until(lambda: self.answered >= self.clients)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def more(self, count: int = 20) -> None:
        """Wait until so many more were answered."""
        goal = self.answered + count
        until(lambda: self.answered >= goal)

    def _ask(self) -> None:
        raw = json.dumps(self.body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                if connection.sock is None:
                    connection.connect()
                    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.request("POST", "/v1/predict", raw, JSON)
                answer = connection.getresponse()
                answer.read()
                failure = None if answer.status == 200 else f"status {answer.status}"
            except (OSError, http.client.HTTPException) as error:
                failure = repr(error)
                connection.close()
            with self._lock:
                self.slowest_s = max(self.slowest_s, time.monotonic() - started)
                if failure is None:
                    self.answered += 1
                else:
                    self.failures.append(failure)
        connection.close()


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    """A folder with two small models, `a` and `b`."""
    folder = tmp_path_factory.mktemp("models")
    for tag in ("a", "b"):
        write_model(folder / tag, tag)
    return folder


@pytest.fixture(scope="module")
def launch(tmp_path_factory) -> Iterator[Callable[..., Service]]:
    """Starts services, and ends what a test has left."""
    started: list[Service] = []

    def start(*args: str, code: str | None = None, folder: Path | None = None, **env: str) -> Service:
        started.append(start_service(folder or tmp_path_factory.mktemp("service"), *args, code=code, **env))
        return started[-1]

    yield start
    for service in started:
        with contextlib.suppress(ProcessLookupError):
            service.process.send_signal(signal.SIGCONT)
        service.stop()
        assert service.process.stdout is not None
        service.process.stdout.close()


@pytest.fixture(scope="session")
def wait() -> Callable[..., Any]:
    return until


@pytest.fixture(scope="session")
def load() -> type[Load]:
    return Load


@pytest.fixture(scope="session")
def promote_to() -> Callable[[Path, Path], None]:
    return point_at


@pytest.fixture(scope="session")
def make_model() -> Callable[[Path, str], Path]:
    return write_model


@pytest.fixture(scope="session")
def gemm() -> dict[str, Any]:
    return GEMM
