"""What a block says of its machine, read from made-up system files."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from kernelcast.collectors.host import (
    cache_sizes_b,
    machine_facts,
    memory_b,
    source_hash,
    state_facts,
    steal_ticks,
    torch_library,
)
from kernelcast.features.device import cpu_info


def test_cache_sizes_leave_out_instructions(tmp_path: Path) -> None:
    for i, (kind, level, size) in enumerate(
        [("Data", 1, "48K"), ("Instruction", 1, "32K"), ("Unified", 2, "1024K"), ("Unified", 3, "32M")]
    ):
        index = tmp_path / "cpu0" / "cache" / f"index{i}"
        index.mkdir(parents=True)
        for name, text in (("type", kind), ("level", level), ("size", size)):
            (index / name).write_text(f"{text}\n")
    assert cache_sizes_b(tmp_path) == {"l1": 48 * 2**10, "l2": 2**20, "l3": 32 * 2**20}
    assert cache_sizes_b(tmp_path / "absent") == {}


def test_system_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC\n\nprocessor\t: 1\nmodel name\t: other\n")
    (tmp_path / "stat").write_text("cpu  1 2 3 4 5 6 7 88 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    (tmp_path / "meminfo").write_text("MemTotal:       100 kB\nMemAvailable:    50 kB\n")
    assert cpu_info(tmp_path / "cpuinfo")["model name"] == "AMD EPYC"
    assert steal_ticks(tmp_path / "stat") == 88
    assert memory_b("MemAvailable", tmp_path / "meminfo") == 50 * 1024
    missing = tmp_path / "missing"
    assert (cpu_info(missing), steal_ticks(missing), memory_b("MemTotal", missing)) == ({}, None, None)


def test_facts_are_plain_json() -> None:
    facts = machine_facts("test") | state_facts()
    assert json.loads(json.dumps(facts)) == facts
    assert len(source_hash()) == 16


@pytest.mark.parametrize(
    ("built", "library"),
    [("cuda = '13.0'\nhip = None\n", "cuda"), ("cuda = None\nhip = '7.0'\nxpu = None\n", "hip"),
     ("cuda = None\nhip = None\nxpu = '20250302'\n", "xpu"), ("cuda = None\nhip = None\n", None)],
)  # fmt: skip
def test_what_torch_is_built_for_is_read_without_importing_it(
    built: str, library: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "version.py").write_text(built)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert torch_library.__wrapped__() == library
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert torch_library.__wrapped__() is None
