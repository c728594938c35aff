"""The client decodes what the service documents: the example of every answer has the fields of its type, and no others."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest
from kernelcast.api.page.openapi import document
from kernelcast.api.routes import ROUTES, Route
from kernelcast.client import answers, device_answers
from kernelcast.features.device import catalogue

MODULES = (answers.__name__, device_answers.__name__)
ROWS = [route for route in ROUTES if route.answers and route.answers[0].__module__ in MODULES]


@pytest.mark.parametrize("route", ROWS, ids=lambda route: route.name)
def test_examples_are_of_the_answers_types(route: Route):
    operation = document(catalogue())["paths"][route.path][route.method.lower()]
    content = operation["responses"]["200"]["content"]["application/json"]
    examples = (
        [content["example"]] if "example" in content else [item["value"] for item in content["examples"].values()]
    )
    assert len(examples) == len(route.answers)
    for kind, example in zip(route.answers, examples, strict=True):
        answer = msgspec.json.decode(json.dumps(example), type=kind)
        assert msgspec.to_builtins(answer) == example


def test_a_client_passes_over_fields_that_a_newer_service_adds():
    assert msgspec.json.decode(b'{"value": 2, "lower": 1, "upper": 3, "new": 4}', type=answers.Interval).value == 2.0


_THREADS = """
import sys, threading
from kernelcast.client import Prediction
from kernelcast.client.client import _decoded

sys.setswitchinterval(1e-6)
together = threading.Barrier(8)

def decode():
    together.wait()
    for _ in range(50):
        _decoded(BODY, Prediction, "v1/predict")

threads = [threading.Thread(target=decode) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_threads_may_decode_the_first_answer_at_once():
    # One process in five used to end with a segmentation fault.
    route = next(route for route in ROWS if route.path == "/v1/predict")
    content = document(catalogue())["paths"][route.path]["post"]["responses"]["200"]["content"]["application/json"]
    example = content["example"] if "example" in content else next(iter(content["examples"].values()))["value"]
    program = f"BODY = {json.dumps(example).encode()!r}\n{_THREADS}"
    for _ in range(12):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
