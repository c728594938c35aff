"""Usage logs as they are read: what a service wrote comes back, and damage costs no more than what it hit."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from kernelcast.api.telemetry.usage_log import UsageLog
from kernelcast.datasets.records import usage_log as usage
from kernelcast.datasets.records.usage_log import read_usage, read_usage_log
from kernelcast.features.kernel import KernelSpec, families

GEMM = KernelSpec.of("gemm", "bf16", m=17, n=4096, k=4096, impl="torch")
NAME = "2026-11-22-123-0a1b2c3d.jsonl"
HEAD = {"format_version": 1, "day": "2026-11-22", "asked": 3.0, "missed": 0.0, "left_out": 0}
LINE = {
    "family": "gemm", "dtype": "bf16", "kv_dtype": None, "variant": "", "impl": "torch",
    "sizes": {"batch": 1, "m": 17, "n": 4096, "k": 4096}, "config": {}, "threads": None, "cache_state": "hot",
    "device": "h200", "count": 3.0,
}  # fmt: skip


def write(folder: Path, *lines: Any, head: Any = HEAD, name: str = NAME) -> None:
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in (head, *lines)]
    (folder / name).write_bytes(b"\n".join(texts) + b"\n")


def test_what_every_family_was_asked_comes_back_as_it_was(tmp_path: Path) -> None:
    specs = [
        KernelSpec.of(
            name, "fp32", variant=family.variants[-1], threads=2, cache_state="cold", config=dict.fromkeys(family.config, 16),
            **family.model_shapes[0],
        )
        for name, family in families().items()
    ]  # fmt: skip
    attention = KernelSpec.of("attention", "bf16", kv_dtype="fp8", **families()["attention"].model_shapes[0])
    log = UsageLog(tmp_path, today=lambda: date(2026, 11, 22))
    for times, spec in enumerate([*specs, attention], 1):
        for _ in range(times):
            log.specs([spec], ["a" if times % 2 else "b"])
    log.write()
    assert read_usage(tmp_path) == {spec: float(times) for times, spec in enumerate([*specs, attention], 1)}
    assert read_usage(tmp_path, "a") == {spec: float(i) for i, spec in enumerate([*specs, attention], 1) if i % 2}
    assert read_usage(tmp_path, "c") == {}


def test_days_workers_and_devices_add_up(tmp_path: Path) -> None:
    write(tmp_path, LINE, LINE | {"device": "l40s", "count": 1.5})
    write(tmp_path, LINE, name="2026-11-21-9-00000000.jsonl")
    result = read_usage_log(tmp_path)
    assert result.total == {GEMM: 7.5}
    assert result.by_device == {"h200": {GEMM: 6.0}, "l40s": {GEMM: 1.5}}
    assert (result.files, result.damaged, result.refused) == (2, 0, [])


@pytest.mark.parametrize(
    "line",
    [
        b"{", b"\xff\xfe", b"[]", b"null", b"[" * 100_000, b'{"count": 1}',
        *({**LINE, name: value} for name, value in [
            ("count", 0), ("count", -1.0), ("count", True), ("count", "3"), ("count", float("nan")), ("count", float("inf")),
            ("family", "gemn"), ("family", 7), ("dtype", "bf17"), ("sizes", []), ("sizes", {"m": 1}), ("sizes", {"x": 1}),
            ("sizes", {"m": 1.5, "n": 1, "k": 1}), ("sizes", {"dtype": 1}), ("sizes", {"m": 2**70, "n": 1, "k": 1}),
            ("config", None), ("config", {"x": 1}), ("threads", "two"), ("threads", -1), ("cache_state", "warm"),
            ("device", None), ("kv_dtype", 8), ("variant", "odd"), ("impl", None),
        ]),
    ],
)  # fmt: skip
def test_a_damaged_line_costs_itself_alone(tmp_path: Path, line: Any) -> None:
    write(tmp_path, LINE, line, b"", LINE)
    result = read_usage_log(tmp_path)
    assert (result.total, result.damaged, result.files) == ({GEMM: 6.0}, 1, 1)


@pytest.mark.parametrize(
    ("head", "said"),
    [(b"", "no head"), (b"\x00", "no head"), (LINE, "no head"),
     (HEAD | {"format_version": 2}, "format version 2; this kernelcast reads 1")],
)  # fmt: skip
def test_a_file_of_another_kind_is_left_out_and_told(tmp_path: Path, head: Any, said: str) -> None:
    write(tmp_path, LINE, head=head)
    result = read_usage_log(tmp_path)
    assert (result.total, result.files) == ({}, 0)
    assert said in result.refused[0]


def test_a_line_cut_short_by_a_crash_is_damaged(tmp_path: Path) -> None:
    write(tmp_path, LINE, LINE)
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes()[:-40])
    assert read_usage_log(tmp_path).damaged == 1
    assert read_usage(tmp_path) == {GEMM: 3.0}


def test_what_is_no_log_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_usage(tmp_path / "nowhere") == {}
    (tmp_path / "other.jsonl").write_text("{")
    (tmp_path / f".{NAME}.new").write_text("{")
    (tmp_path / "2026-11-20-1-00000000.jsonl").mkdir()
    result = read_usage_log(tmp_path)
    assert result.refused == ["2026-11-20-1-00000000.jsonl is no file"]
    monkeypatch.setattr(usage, "MAX_FILE_B", 100)
    write(tmp_path, LINE)
    assert "is longer than" in read_usage_log(tmp_path).refused[1]
    assert "cannot be read" in read_usage_log(tmp_path / "other.jsonl").refused[0]
