"""The recorded history has the nights its card tells of, and the benchmark plays them in order."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def history() -> ModuleType:
    spec = importlib.util.spec_from_file_location("history_benchmark", BENCHMARKS / "history.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_the_recorded_nights(history: ModuleType) -> None:
    nights = history.recorded()
    assert "".join(night.software for night in nights) == "aaabbaaccbba"
    assert [history.kind_of(nights, n) for n in range(1, 12)] == [
        "same", "same", "new", "same", "back", "same", "new", "same", "back", "same", "back"]  # fmt: skip
    for night in nights:
        assert set(night.rows) == {"attention", "elementwise", "gemm", "layernorm", "reduction", "softmax"}
        assert min(map(len, night.rows.values())) >= 20
        assert min(map(len, night.fresh.values())) >= 10


def test_the_libraries_changed_some_kernels_and_not_others(history: ModuleType) -> None:
    nights = history.recorded()

    def change(family: str, dtype: str, software: str) -> float:
        """Median of ln(latency / latency under a) over the repeated cases."""
        by_case: dict[tuple[object, ...], dict[str, list[float]]] = {}
        for night in nights:
            rows = night.rows[family]
            for case, latency in zip(history._cases(rows), rows.latency_s.tolist(), strict=True):
                if case[1] == dtype:
                    by_case.setdefault(case, {}).setdefault(night.software, []).append(np.log(latency))
        both = [item for item in by_case.values() if {"a", software} <= set(item)]
        return float(np.median([np.median(item[software]) - np.median(item["a"]) for item in both]))

    assert change("gemm", "bf16", "b") > 0.5
    assert change("elementwise", "fp32", "b") > 0.3
    assert change("attention", "bf16", "c") > 0.3
    assert abs(change("layernorm", "bf16", "b")) < 0.05
    assert abs(change("reduction", "fp32", "c")) < 0.05


def test_fresh_rows_are_of_cases_no_earlier_night_had(history: ModuleType) -> None:
    nights = history.recorded()
    for n, night in enumerate(nights):
        for family, rows in night.fresh.items():
            earlier = {case for before in nights[:n] for case in history._cases(before.rows[family])}
            assert not earlier & set(history._cases(rows))
