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
    """Every JSON example with the route it is for: the first POST that its section's text names, else `/v1/predict`."""
    for section in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE):
        text = "\n".join(line for line in section.splitlines() if not line.startswith("|"))
        named = re.search(r"`POST (/[^`\s]+)`", text)
        for block in re.findall(r"^```json\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
            yield named.group(1) if named else "/v1/predict", json.loads(block)


@pytest.mark.parametrize(("path", "body"), list(examples()))
def test_an_example_is_answered(client, path, body):
    response = client.request("POST", path, json=body)
    assert response.status_code == 200, response.text


def test_every_route_that_has_a_section_has_an_example():
    assert {"/v1/predict", "/v1/predict/model", "/v1/predict/columns", "/v1/rank", "/v1/compare", "/v1/sweep",
            "/v1/roofline"} <= {path for path, _ in examples()}  # fmt: skip
