"""Columns are taken, refused and answered exactly as single specs of their rows are, whatever is in them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from kernelcast.features.kernel import families

WORDS = {
    "device": ["h100", "l40s", "H200", "amd-epyc-9005-vm-2c"], "dtype": ["bf16", "FP16", "fp32", "torch.float16"],
    "impl": ["", "torch", "vllm-0.24.0"], "kv_dtype": ["", "fp8", "bf16"], "cache_state": ["", "hot", "cold"],
    "timing": ["", "device", "call"],
}  # fmt: skip
BAD_WORDS = {"device": ["", "h900"], "dtype": ["", "bf17"], "impl": ["a b", "-"], "kv_dtype": ["zz"], "cache_state": ["warm"],
             "timing": ["host"],
             "variant": ["odd"]}  # fmt: skip
SIZES, BAD_SIZES = [1, 2, 8, 32, 64, 4096, 2**40], [0, -1, -7, 2**40 + 1, 2**60, -(2**63)]
OPTIONAL, BAD_OPTIONAL = [-1, 1, 16, 128], [-2, 2**41, -(2**63)]
NOT_SET = ("", -1)


@st.composite
def tables(draw: st.DrawFn, name: str) -> dict[str, list[Any]]:
    """Columns of a few rows of a family, most of them good."""
    family = families()[name]
    n = draw(st.integers(1, 3))
    words = WORDS | {"variant": ["", *(word for word in family.variants if word != "tanh")]}
    columns: dict[str, list[Any]] = {}

    def column(key: str, good: list[Any], bad: list[Any], needed: bool) -> None:
        if needed or draw(st.booleans()):
            pool = good + bad if draw(st.integers(0, 9)) == 0 else good
            length = draw(st.sampled_from([1, n]))
            columns[key] = draw(st.lists(st.sampled_from(pool), min_size=length, max_size=length))

    for key, good in words.items():
        column(key, good, BAD_WORDS[key], key in ("device", "dtype"))
    for dim in family.dims:
        column(dim.name, [size for size in SIZES if size >= dim.minimum], BAD_SIZES, dim.default is None)
    for key in ("threads", *family.config[:2]):
        column(key, OPTIONAL, BAD_OPTIONAL, False)
    return columns


def specs(name: str, columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """The rows as single specs; what is not set is left out."""
    family, n = families()[name], max(map(len, columns.values()))
    result = []
    for i in range(n):
        row = {key: values[i if len(values) > 1 else 0] for key, values in columns.items()}
        sizes = {key: row.pop(key) for key in family.dim_names if key in row}
        config = {key: value for key in family.config if (value := row.pop(key, -1)) != -1}
        remaining = {key: value for key, value in row.items() if value not in NOT_SET or key in ("device", "dtype")}
        result.append({"family": name, **remaining, "sizes": sizes, "config": config})
    return result


@pytest.mark.parametrize("name", ["gemm", "attention", "moe", "reduction"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_columns_and_single_specs_agree(client, name, data):
    columns = data.draw(tables(name))
    inputs = [
        {
            "name": key,
            "shape": [len(values)],
            "datatype": "BYTES" if isinstance(values[0], str) else "INT64",
            "data": values,
        }
        for key, values in columns.items()
    ]
    answer = client.request("POST", f"/v2/models/{name}/infer", json={"inputs": inputs})
    singles = [client.post(spec) for spec in specs(name, columns)]
    refused = [item for item in singles if item.status_code != 200]
    event("refused" if refused else "answered")
    assert all(item.status_code == 422 for item in refused)
    if not refused:
        assert answer.status_code == 200, answer.text
        result = {output["name"]: output["data"] for output in answer.json()["outputs"]}
        for i, item in enumerate(single.json() for single in singles):
            assert result["latency_s"][i] == pytest.approx(item["latency_s"]["value"], rel=1e-12)
            assert result["bound"][i] == item["bound"]
        return
    assert answer.status_code == 422, answer.text
    # The first row that is refused is explained in the words it gets alone.
    assert answer.json()["errors"][0]["detail"] == refused[0].json()["errors"][0]["detail"]
