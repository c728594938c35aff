"""A real server process over a socket."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kernelcast
import pytest

HEAVY = ("torch", "pandas", "sklearn", "mlflow", "xgboost")
_BLOCK_B = 65536

# Serves the fake predictor of conftest.py; prints its port, and at the end what was imported.
_FAKE_SERVER = """
import importlib.util, signal, socket, sys
from kernelcast.api.server import cap_threads, listen
cap_threads()
import uvicorn
from kernelcast.api.app import create_app
from kernelcast.api.model_source import FixedSource
from kernelcast.features.device import catalogue
spec = importlib.util.spec_from_file_location("fakes", sys.argv[1])
fakes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fakes)
app = create_app(FixedSource(fakes.FakePredictor(), catalogue()))
sock = listen("127.0.0.1", 0)
print(sock.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none")).run(sockets=[sock])
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    fakes = Path(__file__).with_name("conftest.py")
    process = subprocess.Popen([sys.executable, "-c", _FAKE_SERVER, str(fakes)], stdout=subprocess.PIPE, text=True,
                               cwd=fakes.parent)  # fmt: skip
    assert process.stdout is not None
    yield int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    process.wait(120)
    process.stdout.close()


def ask(
    port: int, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def test_a_prediction_over_the_wire(port, gemm):
    status, headers, body = ask(port, "POST", "/v1/predict", json.dumps(gemm).encode(), content_type="application/json")
    assert status == 200
    assert "server" not in headers or "uvicorn" in headers["server"]
    assert json.loads(body)["bound"]


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/v1/devices", "/v1/kernels", "/v1/models", "/metrics",
                                  "/openapi.json", "/static/shell.js"])  # fmt: skip
def test_every_page_over_the_wire(port, path):
    assert ask(port, "GET", path)[0] == 200
    assert ask(port, "HEAD", path)[2] == b""


def test_ten_megabytes_are_refused_before_they_are_read(port):
    with socket.create_connection(("127.0.0.1", port), timeout=120) as sock:
        kind = "host: localhost\r\ncontent-type: application/json\r\n"
        head = f"POST /v1/predict HTTP/1.1\r\n{kind}content-length: 10000000\r\n\r\n"
        sock.sendall(head.encode() + b" " * _BLOCK_B)
        answer = b""
        while part := sock.recv(_BLOCK_B):
            answer += part
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"application/problem+json" in answer


def test_a_body_of_unknown_length_is_refused_when_it_gets_too_long(port):
    with socket.create_connection(("127.0.0.1", port), timeout=120) as sock:
        sock.sendall(b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                     b"transfer-encoding: chunked\r\n\r\n")  # fmt: skip
        sent = 0
        try:
            while sent < 50_000_000:
                sock.sendall(f"{_BLOCK_B:x}\r\n".encode() + b" " * _BLOCK_B + b"\r\n")
                sent += _BLOCK_B
        except OSError:
            pass  # the server has closed the connection, as it should
    assert sent < 20_000_000
    assert ask(port, "GET", "/healthz")[0] == 200


def test_bytes_that_are_no_http_do_not_harm(port):
    with socket.create_connection(("127.0.0.1", port), timeout=120) as sock:
        sock.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        sock.recv(_BLOCK_B)
    assert ask(port, "GET", "/healthz")[0] == 200


def test_the_server_imports_nothing_heavy():
    code = (
        "import sys; from pathlib import Path; from kernelcast.api.server import cap_threads; cap_threads(); "
        "from kernelcast.api.app import build; "
        "from kernelcast.api.settings import Settings; build(Settings(model=Path('/nowhere'))); "
        f"import onnxruntime, uvicorn; print([name for name in {HEAVY} if name in sys.modules])"
    )
    env = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code + "; import os; print(os.environ['OMP_NUM_THREADS'])"],
                          capture_output=True, text=True, check=True, cwd="/", env=env)  # fmt: skip
    assert done.stdout.split("\n")[:2] == ["[]", "1"]


def cli(*args: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kernelcast", "serve", *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/", **options)


def test_a_port_in_use_is_one_sentence(port):
    process = cli("--port", str(port))
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert err == f"error: port {port} of 127.0.0.1 is in use; choose another with --port\n"


@pytest.mark.parametrize(("content", "words"), [(None, "has no manifest.json"), ("{", "cannot be read")])
@pytest.mark.parametrize("how", ["option", "environment"])
def test_a_named_directory_that_is_no_model_is_refused_before_listening(tmp_path, content, words, how):
    if content is not None:
        (tmp_path / "manifest.json").write_text(content)
    if how == "option":
        process = cli("--port", "0", "--json", "--model", str(tmp_path))
    else:
        process = cli("--port", "0", "--json", "--workers", "2", env=os.environ | {"KERNELCAST_MODEL": str(tmp_path)})
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert words in err
    assert "without --model and KERNELCAST_MODEL the promoted model serves" in err
    assert err.count("\n") == 1


def shipped() -> Path:
    return Path(kernelcast.__file__).parent / "models" / "pretrained" / "kernels"


@pytest.mark.skipif(not (shipped() / "manifest.json").exists(), reason="models/pretrained/kernels is not there yet")
def test_the_shipped_model_answers():
    env = {name: value for name, value in os.environ.items() if name != "KERNELCAST_MODEL"}
    process = cli("--port", "0", "--json", "--example", env=env | {"KERNELCAST_HOME": "/nowhere"})
    assert process.stdout is not None
    number = int(json.loads(process.stdout.readline())["address"].rsplit(":", 1)[1])
    example = json.loads(process.stdout.readline())
    assert example["answer"]["latency_s"]["value"] > 0
    assert example["answer"]["in_domain"] is True
    body = json.dumps(example["request"]).encode()
    assert json.loads(ask(number, "POST", "/v1/predict", body, content_type="application/json")[2]) == example["answer"]
    modules = Path(f"/proc/{process.pid}/maps").read_text() if sys.platform == "linux" else ""
    assert "onnxruntime" in modules or "/_native." in modules or not modules
    assert not [name for name in HEAVY if f"/{name}/" in modules]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 130
