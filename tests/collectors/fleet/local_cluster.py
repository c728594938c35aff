"""Real Ray nodes on this machine, each with devices and a home of its own; nothing but its own processes is ever ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernelcast.collectors.fleet.cluster import NO_AMDSMI, OBJECT_STORE_B, QUIET

_HERE = Path(__file__).parent


def wait_for(what: Callable[[], bool], seconds: float = 240.0) -> None:
    """Long enough for a machine that does much else: what never comes fails in the end."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, f"waited {seconds:g} s in vain"
        time.sleep(0.05)


@dataclass
class Node:
    name: str
    process: subprocess.Popen[bytes]
    home: Path


class LocalCluster:
    def __init__(self) -> None:
        # Short: Ray's sockets lie below it, and a socket's path holds 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="fleet", dir="/tmp"))
        self.shared = self.folder / "shared"
        self.shared.mkdir()
        with socket.socket() as item:
            item.bind(("127.0.0.1", 0))
            self.port = item.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.nodes: list[Node] = []

    def add(self, name: str, devices: dict[str, int]) -> Node:
        first = not self.nodes
        home = self.folder / f"home-{name}"
        where = [
            "--head", f"--port={self.port}", "--include-dashboard=false", f"--temp-dir={self.folder / 'ray'}",
        ] if first else [f"--address={self.address}"]  # fmt: skip
        resources = json.dumps({f"device:{device}": count for device, count in devices.items()})
        command = [
            str(Path(sys.executable).with_name("ray")), "start", "--block", *where, f"--node-name={name}",
            "--node-ip-address=127.0.0.1", "--disable-usage-stats", "--num-cpus=1", "--num-gpus=0", "--min-worker-port=0",
            "--max-worker-port=0", f"--object-store-memory={OBJECT_STORE_B}", f"--resources={resources}",
        ]  # fmt: skip
        env = os.environ | QUIET | {
            "PYTHONPATH": f"{_HERE}{os.pathsep}{NO_AMDSMI}", "KERNELCAST_HOME": str(home),
            "FLEET_TEST_DIR": str(self.shared), "RAY_AUTH_MODE": "disabled",
            # A dead node is noticed within five seconds rather than twenty.
            "RAY_health_check_initial_delay_ms": "1000", "RAY_health_check_period_ms": "1000",
        }  # fmt: skip
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True, cwd="/")
        self.nodes.append(Node(name, process, home))
        if first:
            wait_for(self._answers)
        return self.nodes[-1]

    def kill(self, node: Node) -> None:
        """As if its power failed: every process of the node at once."""
        for pid in self._processes(node.name):
            os.kill(pid, signal.SIGKILL)
        os.killpg(node.process.pid, signal.SIGKILL)
        node.process.wait(120)

    def measured(self) -> list[list[str]]:
        """Process, home and case of every case begun."""
        log = self.shared / "measured.log"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []

    def close(self) -> None:
        for node in self.nodes:
            if node.process.poll() is None:
                os.killpg(node.process.pid, signal.SIGKILL)
                node.process.wait(120)
        for pid in self._processes(str(self.folder)):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        with socket.socket() as item:
            return item.connect_ex(("127.0.0.1", self.port)) == 0

    def _processes(self, word: str) -> list[int]:
        """Our cluster's processes whose command line has this word."""
        result = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(self.folder) in line and word in line and int(path.parent.name) != os.getpid():
                result.append(int(path.parent.name))
        return result
