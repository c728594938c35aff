"""The protocol's own client against a real server process with the shipped model."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kernelcast
import numpy as np
import pytest

# In a process of its own: the client's event loop patches sockets, and warns when it is imported.
_TRITON = """
import json, sys
import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

client = triton.InferenceServerClient(sys.argv[1])
columns = json.loads(sys.argv[2])
found = {"live": client.is_server_live(), "ready": client.is_server_ready(), "server": client.get_server_metadata(),
         "model": client.get_model_metadata("gemm"), "model_ready": client.is_model_ready("gemm"),
         "other_ready": client.is_model_ready("gem"), "index": client.get_model_repository_index()}
version = found["model"]["versions"][0]
found["version_ready"] = client.is_model_ready("gemm", version)

def inputs(binary):
    made = []
    for name, values in columns.items():
        is_text = isinstance(values[0], str)
        array = np.array(values, dtype=np.object_ if is_text else np.int64)
        made.append(triton.InferInput(name, list(array.shape), "BYTES" if is_text else "INT64"))
        made[-1].set_data_from_numpy(array, binary_data=binary)
    return made

def answer(result):
    plain = {}
    for output in result.get_response()["outputs"]:
        values = result.as_numpy(output["name"])
        plain[output["name"]] = [one.decode() if isinstance(one, bytes) else one for one in values.tolist()]
    return plain

found["binary"] = answer(client.infer("gemm", inputs(True), request_id="7"))
found["json"] = answer(client.infer("gemm", inputs(False), model_version=version, outputs=[
    triton.InferRequestedOutput(name, binary_data=False) for name in found["binary"]]))
found["mixed"] = answer(client.infer("gemm", inputs(True), outputs=[
    triton.InferRequestedOutput("bound"), triton.InferRequestedOutput("latency_s", binary_data=False)]))
found["gzip"] = answer(client.infer("gemm", inputs(True), request_compression_algorithm="gzip",
                                    response_compression_algorithm="gzip"))
found["later"] = answer(client.async_infer("gemm", inputs(True)).get_result())
found["id"] = client.infer("gemm", inputs(True), request_id="7").get_response()["id"]
found["half"] = client.infer("gemm", inputs(True), parameters={"coverage": 0.5}).get_response()["parameters"]
columns["device"][0] = "h900"
try:
    client.infer("gemm", inputs(True))
except InferenceServerException as error:
    found["refused"] = [error.status(), error.message()]
print(json.dumps(found))
"""

COLUMNS: dict[str, list[Any]] = {
    "device": ["nvidia-h200-sxm-141gb", "l40s", "amd-epyc-9005-vm-2c"] * 5,
    "dtype": ["bf16", "fp16", "fp32"] * 5,
    **{
        name: [base * 2**step for step in range(5) for base in (32, 48, 64)]
        for name, base in (("m", 1), ("n", 2), ("k", 3))
    },
}


@pytest.fixture(scope="module")
def triton(address: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-c", _TRITON, urlsplit(address).netloc, json.dumps(COLUMNS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=240)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def ask(address: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=240)
    try:
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        named = {"content-type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        connection.request(method, path, content, named if content else {})
        response = connection.getresponse()
        raw = response.read()
        return response.status, raw if "octet" in response.headers["content-type"] else json.loads(raw)
    finally:
        connection.close()


def single(address: str) -> list[dict[str, Any]]:
    """The same rows, asked for as single specs."""
    specs = [
        {"family": "gemm", "device": device, "dtype": dtype, "sizes": dict(zip("mnk", sizes, strict=True))}
        for device, dtype, *sizes in zip(*COLUMNS.values(), strict=True)
    ]
    predictions: list[dict[str, Any]] = ask(address, "POST", "/v1/predict", {"requests": specs})[1]["predictions"]
    return predictions


def test_the_client_learns_what_is_served(triton, address):
    assert [triton[name] for name in ("live", "ready", "model_ready", "version_ready", "other_ready")] == [
        True, True, True, True, False,
    ]  # fmt: skip
    assert triton["server"]["name"] == "kernelcast"
    (version,) = triton["model"]["versions"]
    assert len(version) == 12
    assert {item["version"] for item in triton["index"]} == {version}
    assert "gemm" in {item["name"] for item in triton["index"]}


def test_tensors_are_answered_as_predict_answers(triton, address):
    # What differs is the order of additions in a batch; the shipped model holds values to 32 bits.
    for i, item in enumerate(single(address)):
        for target in ("latency_s", "power_w", "energy_j"):
            for end, member in (("", "value"), ("_lower", "lower"), ("_upper", "upper")):
                value = triton["binary"][f"{target}{end}"][i]
                if item[target] is None:
                    assert np.isnan(value)
                else:
                    assert value == pytest.approx(item[target][member], rel=1e-5)
        for name in ("bound", "method", "in_domain"):
            assert triton["binary"][name][i] == item[name]


def test_every_way_of_sending_gives_the_same(triton):
    for way in ("json", "gzip", "later"):
        np.testing.assert_equal(triton[way], triton["binary"])
    np.testing.assert_equal(triton["mixed"], {name: triton["binary"][name] for name in ("bound", "latency_s")})
    assert (triton["id"], triton["half"]) == ("7", {"coverage": 0.5})


def test_the_client_shows_why_it_was_refused(triton):
    status, message = triton["refused"]
    assert status == "422"
    assert message.startswith("inputs[0].data[0]: no device 'h900' (close: ")


def test_a_request_as_kserve_s_documentation_writes_them(address):
    inputs = [
        {"name": name, "shape": [15, 1], "datatype": "BYTES" if isinstance(values[0], str) else "INT64",
         "data": [[value] for value in values]}
        for name, values in COLUMNS.items()
    ]  # fmt: skip
    body = {"model_name": "gemm", "id": "b2f7", "parameters": {"content_type": "np"}, "inputs": inputs}
    status, answer = ask(address, "POST", "/v2/models/gemm/infer", body)
    assert status == 200, answer
    assert (answer["id"], answer["outputs"][0]["shape"]) == ("b2f7", [15])
    expected = [item["latency_s"]["value"] for item in single(address)]
    assert answer["outputs"][0]["data"] == pytest.approx(expected, rel=1e-5)


def test_many_thousand_rows_and_health_meanwhile(address):
    n, rng = 20_000, np.random.default_rng(5)
    sizes = {name: rng.integers(1, 8192, n).astype("<i8").tobytes() for name in "mnk"}
    words = {"device": "nvidia-h200-sxm-141gb", "dtype": "bf16"}
    inputs: list[dict[str, Any]] = [
        {"name": name, "shape": [1], "datatype": "BYTES", "data": [word]} for name, word in words.items()
    ]
    inputs += [
        {"name": name, "shape": [n], "datatype": "INT64", "parameters": {"binary_data_size": 8 * n}} for name in sizes
    ]
    query = {"inputs": inputs, "outputs": [{"name": "latency_s", "parameters": {"binary_data": True}}]}
    text = json.dumps(query).encode()
    length = {"inference_header_content_length": str(len(text))}
    answers: list[Any] = []
    large = threading.Thread(
        target=lambda: answers.append(
            ask(address, "POST", "/v2/models/gemm/infer", text + b"".join(sizes.values()), **length)
        )
    )
    large.start()
    meanwhile = 0
    while large.is_alive():
        assert ask(address, "GET", "/v2/health/ready")[0] == 200
        meanwhile += large.is_alive()
        time.sleep(0.01)
    large.join()
    ((status, answer),) = answers
    assert status == 200, answer
    head_b = answer.index(b"}]}") + 3
    result = np.frombuffer(answer[head_b:], dtype="<f8")
    assert result.shape == (n,)
    assert (result > 0).all()
    # Were it worked on where requests are answered, the first would have waited for its end.
    assert meanwhile >= 3


def page_block(language: str) -> str:
    page = (Path(kernelcast.__file__).parent / "docs" / "inference-protocol.md").read_text(encoding="utf-8")
    (block,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return str(block)


def test_the_request_and_the_program_of_the_page_are_answered_alike(address):
    body = json.loads(page_block("json"))
    status, answer = ask(address, "POST", "/v2/models/gemm/infer", body)
    assert (status, [item["name"] for item in answer["outputs"]]) == (200, ["latency_s", "bound"])
    program = page_block("python").replace("127.0.0.1:8000", urlsplit(address).netloc)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=240, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    printed = [float(word) for word in done.stdout.strip("[]\n ").split()]
    assert printed == pytest.approx(answer["outputs"][0]["data"], rel=1e-5)
