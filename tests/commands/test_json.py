"""What `--json` prints, with msgspec and on a machine that measures and has none."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pytest
from kernelcast.client.answers import Fact
from kernelcast.commands.console import print_json
from kernelcast.datasets.records.launch_traces import LaunchSummary


@dataclass(frozen=True, slots=True)
class Record:
    where: Path
    counts: Any
    inner: Any = None


VALUES = [
    {"a": 1, "b": [1.5, None, True, "ü × µs"], "c": {"d": ()}},
    Record(Path("folder/x.yaml"), MappingProxyType({"ok": 3}), Record(Path("y"), {"n": 2.5e-7})),
    [Fact(4.8e12, "a datasheet"), Fact(0.1, "")],
    LaunchSummary("h200", 1, 2, 3e-6, 4e-6, 7e-6, 1e-5, 2e-5, 0, "host"),
    {"mape": math.nan, "worst": math.inf},
    {8: "a batch"},
    [],
    "text",
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_json_is_what_msgspec_would_write(value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    print_json(value)
    written = capsys.readouterr().out
    encoded = msgspec.json.encode(value, enc_hook=lambda one: str(one) if isinstance(one, Path) else dict(one))
    assert json.loads(written) == json.loads(encoded)
    assert written.count("\n") == 1


def test_json_is_one_line_for_a_program_and_many_for_a_person(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_json({"a": [1, "ü"]})
    assert capsys.readouterr().out == '{"a":[1,"ü"]}\n'
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    print_json({"a": 1, "b": 2.5})
    assert capsys.readouterr().out == '{\n  "a": 1,\n  "b": 2.5\n}\n'


def test_numbers_of_numpy_are_numbers_and_what_has_no_form_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"latency_s": np.float64(2.5), "power_w": np.float64("nan")})
    assert json.loads(capsys.readouterr().out) == {"latency_s": 2.5, "power_w": None}
    with pytest.raises(TypeError, match="complex"):
        print_json({"a": 1j})


PLAYED = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in ('msgspec', 'starlette', 'onnxruntime', 'pandas', 'scipy', 'sklearn', 'xgboost'):
            raise ModuleNotFoundError(f'no {name} on this machine', name=name)
sys.meta_path.insert(0, Missing())
from kernelcast.collectors.gpu.characterize import characterize
from kernelcast.collectors.gpu.profiling import count, launch_trace
from kernelcast.collectors.meters import find
from kernelcast.collectors.meters.protocol import GpuIdentity
from kernelcast.datasets.records.launch_traces import CountedCase, LaunchSummary

class Reader:
    def name(self):
        return 'NVIDIA H200'
    def identity(self):
        return GpuIdentity(self.name())
    def power_limit_w(self):
        return 700.0

find.nvml_reader = lambda index, **_: Reader()
facts = {'power_idle_w': {'value': 123.0, 'source': 'measured'}, 'latency_l1_s': {'value': None, 'source': 'not measured'}}
characterize.characterize = lambda **_: characterize.Characterised(facts, {'gpu': 'NVIDIA H200'})
summary = LaunchSummary('h200', 1, 132, 7e-4, 3e-4, 1e-3, 4e-4, 4e-3, 0, 'host')
launch_trace.trace_launches = lambda name='', **_: launch_trace.Traced([], [summary], {}, {})
count.count_cases = lambda specs, name, **_: [CountedCase('h200', 'gemm', 'id', 'gemm[...]', 'ok', dram_read_b=5.0)]
from kernelcast.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        ("characterize --gpu --no-launches --out my.yaml", ("measured", "power_idle_w", "value"), 123.0),
        ("trace-launches --out traced", ("batches", 0, "kernels"), 132),
        ("count-traffic --out traffic.parquet", (0, "dram_read_b"), 5.0),
    ],
)
def test_commands_of_a_gpu_print_json_without_msgspec(
    words: str, path: tuple[Any, ...], value: float, tmp_path: Path
) -> None:
    command = [sys.executable, "-P", "-c", PLAYED, *words.split(), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    message = json.loads(done.stdout)
    for step in path:
        message = message[step]
    assert message == value
