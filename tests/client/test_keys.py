"""A service that asks for keys: the client sends its own, and says what is wrong without one."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from kernelcast.client import Client, ClientError

KEY = "kc_" + "k" * 43


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("KERNELCAST_")}
    keys = f"tests:read:{hashlib.sha256(KEY.encode()).hexdigest()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "kernelcast", "serve", "--port", "0", "--json"], text=True, cwd="/", stdout=subprocess.PIPE,
        env=env | {"KERNELCAST_HOME": str(tmp_path_factory.mktemp("home")), "KERNELCAST_API_KEYS": keys},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)


def test_a_key_opens_and_none_or_another_does_not(locked, monkeypatch):
    monkeypatch.delenv("KERNELCAST_API_KEY", raising=False)
    with Client(locked, api_key=KEY) as client:
        assert client.predict("gemm", device="h200", dtype="bf16", m=8, n=8, k=8).latency_s.value > 0
    for key in (None, "kc_" + "x" * 43):
        with Client(locked, api_key=key) as client:
            assert client.ready() is True
            with pytest.raises(ClientError) as caught:
                client.devices()
        assert caught.value.status == 401
        assert "kc_x" not in str(caught.value)
    monkeypatch.setenv("KERNELCAST_API_KEY", KEY)
    with Client(locked) as client:
        assert client.devices()


def test_the_inference_protocol_asks_for_it_too(locked):
    connection = http.client.HTTPConnection(urlsplit(locked).netloc, timeout=120)
    for path, key, status in (
        ("/v2/health/ready", None, 200), ("/v2/models/gemm", None, 401), ("/v2", None, 401), ("/v2/models/gemm", KEY, 200),
    ):  # fmt: skip
        connection.request("GET", path, headers={"authorization": f"Bearer {key}"} if key else {})
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == status, (path, answer)
        if status == 401:
            assert answer["error"] == answer["detail"]
    connection.close()
