"""The examples of docs/service.md are answered."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "service.md"


def examples() -> Iterator[tuple[str, Any]]:
    """Every JSON example with its route: the POST that the section names last before it, else first, or `/v1/predict`."""
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE):
        text = "\n".join(line for line in section.splitlines() if not line.startswith("|"))
        routes = [(match.start(), match.group(1)) for match in re.finditer(r"`POST (/[^`\s]+)`", text)]
        for block in re.finditer(r"^```json\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
            before = [route for start, route in routes if start < block.start()]
            named = before[-1] if before else routes[0][1] if routes else "/v1/predict"
            yield named, json.loads(block.group(1))


@pytest.mark.parametrize(("path", "body"), list(examples()))
def test_an_example_is_answered(client, path, body):
    response = client.request("POST", path, json=body)
    assert response.status_code == 200, response.text


def test_every_route_that_has_a_section_has_an_example():
    assert {"/v1/predict", "/v1/predict/model", "/v1/predict/columns", "/v1/rank", "/v1/compare", "/v1/sweep",
            "/v1/roofline"} <= {path for path, _ in examples()}  # fmt: skip
