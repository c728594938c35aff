"""Several workers behind one socket: what happens to clients when a worker dies, hangs, stops, or is replaced."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

WORKERS = 2


@pytest.fixture(scope="module")
def pool(launch, models):
    return launch("--workers", str(WORKERS), "--model", str(models / "a"))


def both(pool) -> list[int]:
    return pool.workers if len(pool.workers) == WORKERS else []


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def answers_in_both(pool, wait) -> None:
    """Wait until each worker has a model: it takes connections no sooner."""
    wait(lambda: len(both(pool)) == WORKERS and all(listens(pid) for pid in both(pool)))


def listens(pid: int) -> bool:
    """Whether the process waits for events, which a worker does only once it serves."""
    try:
        return any(str(file.readlink()) == "anon_inode:[eventpoll]" for file in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def test_a_killed_worker_takes_only_its_own_requests_with_it(pool, load, wait):
    answers_in_both(pool, wait)
    victim, other = both(pool)
    with load(pool.port, clients=6) as clients:
        os.kill(victim, signal.SIGKILL)
        clients.more(200)
        wait(lambda: len(both(pool)) == WORKERS and victim not in pool.workers)
        clients.more(200)
    # Each client has one request on its way; those at the victim are lost, and their repetition is answered.
    assert len(clients.failures) <= 6
    assert other in pool.workers
    assert f"Child process [{victim}] died" in pool.log.read_text()


def test_sighup_replaces_every_worker_and_drops_nothing(pool, load, wait):
    answers_in_both(pool, wait)
    before = set(both(pool))
    with load(pool.port) as clients:
        pool.process.send_signal(signal.SIGHUP)
        wait(lambda: len(both(pool)) == WORKERS and not before & set(pool.workers))
        clients.more(100)
    assert clients.failures == []
    assert clients.answered > 100


def test_a_stopped_worker_holds_up_no_new_connection(pool, wait):
    answers_in_both(pool, wait)
    stopped = both(pool)[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        for _ in range(40):
            started = time.monotonic()
            assert pool.predict()[0] == 200
            assert time.monotonic() - started < 60
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert pool.predict()[0] == 200
    assert stopped in pool.workers


def test_without_its_supervisor_a_worker_answers_what_was_asked_and_ends(pool, wait):
    """The last test of this pool."""
    answers_in_both(pool, wait)
    workers = both(pool)
    pool.process.kill()
    pool.process.wait()
    wait(lambda: not any(is_alive(pid) for pid in workers))
    with pytest.raises(ConnectionRefusedError):
        pool.ask()


def test_no_model_is_a_clear_end_and_not_a_pool_of_503s(tmp_path):
    (tmp_path / "champion.json").write_text("{")
    env = os.environ | {"KERNELCAST_RELOAD_S": "0.1", "KERNELCAST_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kernelcast", "serve", "--port", "0", "--workers", "2"],
        capture_output=True, text=True, cwd="/", timeout=240, check=False, env=env,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: none of 2 workers could answer in 3 tries each; their messages are above" in done.stderr
    assert "champion pointer" in done.stderr
    assert "Traceback" not in done.stderr


# A supervisor whose patience fits a test; the workers are real.
_HASTY = """
import sys
from kernelcast.api import server
server.HEALTH_TIMEOUT_S = 6
from kernelcast.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def hasty(launch, models):
    return launch("--workers", str(WORKERS), "--model", str(models / "a"), code=_HASTY)


def test_a_worker_that_hangs_is_replaced(hasty, wait):
    answers_in_both(hasty, wait)
    hung = hasty.workers[0]
    os.kill(hung, signal.SIGSTOP)
    wait(lambda: hung not in hasty.workers and len(hasty.workers) == WORKERS)
    assert f"Child process [{hung}] died" in hasty.log.read_text()


def test_a_request_on_its_way_is_answered_before_the_end(launch, models, gemm, wait):
    service = launch("--model", str(models / "a"))
    assert answered_while_stopping(service, signal.SIGTERM, gemm, wait) == -signal.SIGTERM


def test_a_request_on_its_way_is_answered_before_several_workers_end(hasty, gemm, wait):
    """The last test of this pool."""
    answers_in_both(hasty, wait)
    assert answered_while_stopping(hasty, signal.SIGINT, gemm, wait) == 130


ESTABLISHED, LISTENING = "01", "0A"


def answered_while_stopping(service, number: int, gemm, wait) -> int:
    """Send half a request, then the signal, then the other half; the exit code of the service once it has answered."""
    body = json.dumps(gemm).encode()
    kind = "host: localhost\r\ncontent-type: application/json"
    head = f"POST /v1/predict HTTP/1.1\r\n{kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    assert service.ask("GET", "/readyz")[0] == 200
    serving = service.workers or [service.process.pid]
    assert any(holds_open(pid, sockets(service.port, LISTENING)) for pid in serving)
    with socket.create_connection(("127.0.0.1", service.port), timeout=120) as client:
        client.sendall(head.encode() + body[:10])
        wait(lambda: any(holds_open(pid, sockets(service.port, ESTABLISHED)) for pid in serving))
        time.sleep(0.5)  # it has the connection; what was sent is read at once
        service.process.send_signal(number)
        # Whoever ends takes no further connections first, and then sees to those it has.
        wait(lambda: not any(holds_open(pid, sockets(service.port, LISTENING)) for pid in serving))
        client.sendall(body[10:])
        answer = b""
        while part := client.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in answer
    return service.process.wait(240)


def sockets(port: int, state: str) -> set[str]:
    """The sockets of a state at this end of a port, as /proc names them."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {f"socket:[{line[9]}]" for line in lines if line[1].endswith(f":{port:04X}") and line[3] == state}


def holds_open(pid: int, wanted: set[str]) -> bool:
    """Whether a process has one of the sockets."""
    try:
        return any(str(file.readlink()) in wanted for file in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
