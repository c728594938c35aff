"""Traces of torch.profiler, hand-written: correlation, nesting, shapes, formats, medians and devices."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from kernelcast.datasets.form.importer import ImportedTables, get_importer
from kernelcast.features.errors import SpecError

GPU = "NVIDIA H100 80GB HBM3"
F32, BF16 = "float", "c10::BFloat16"


class Trace:
    """A trace being written: operators in turn, each with the kernels it launches."""

    def __init__(self, *gpus: str) -> None:
        self.events: list[dict[str, Any]] = []
        self.gpus, self._ts, self._id = gpus, 0.0, 0

    def call(
        self, name: str, dims: list[Any] | None, *durations_us: float, dtype: str = F32, kernel: str = "k", **more: Any
    ) -> None:
        """An operator that runs for 100 µs on the host, with a kernel launched by an inner operator for each duration."""
        args = (
            {}
            if dims is None
            else {"Input Dims": dims, "Input type": [dtype if dim else "Scalar" for dim in dims]} | more
        )
        self._event("cpu_op", name, self._ts, 100, args)
        for at, duration in enumerate(durations_us, 1):
            self._id += 1
            self._event(
                "cpu_op", "aten::mul", self._ts + 10 * at, 8, {"Input Dims": [[2], [2]], "Input type": [dtype, dtype]}
            )
            self._event("cuda_runtime", "cudaLaunchKernel", self._ts + 10 * at + 2, 3, {"correlation": self._id})
            where = {"correlation": self._id, "device": 0}
            self._event("kernel", kernel, self._ts + 500, duration, where, pid=0, tid=7)
        self._ts += 1000

    def orphan(self) -> None:
        """A kernel without a launch."""
        self._event("kernel", "k", self._ts, 5, {"correlation": 10**6, "device": 0}, pid=0, tid=7)

    def write(self, path: Path) -> Path:
        properties = [{"id": at, "name": name} for at, name in enumerate(self.gpus)]
        text = json.dumps({"schemaVersion": 1, "deviceProperties": properties, "traceEvents": self.events})
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
        return path

    def _event(self, cat: str, name: str, ts: float, dur: float, args: Any, pid: int = 1, tid: int = 1) -> None:
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        )


def read(path: Path, device: str | None = None) -> ImportedTables:
    return get_importer("torch-trace").read(path, device, lambda what, done, total: None)


def reasons(found: ImportedTables) -> dict[str, int]:
    return {note.reason: note.rows for note in found.notes if not note.included}


def test_a_case_is_the_median_of_the_sums_of_its_kernels_in_microseconds(tmp_path: Path) -> None:
    trace = Trace(GPU)
    for durations in ((900, 100), (30, 20), (31, 20)):
        trace.call("aten::mm", [[512, 256], [256, 1024]], *durations, dtype=BF16)
    trace.orphan()
    found = read(trace.write(tmp_path / "a.pt.trace.json"))
    (row,) = found.tables["gemm"].to_pylist()
    assert row["timing"] == "device"
    assert [row[name] for name in ("m", "n", "k", "batch", "dtype", "device", "impl")] == [
        512,
        1024,
        256,
        1,
        "bf16",
        GPU,
        "torch",
    ]
    assert row["latency_s"] == pytest.approx(51e-6)
    # The inner operators are known ones too; what they launched belongs to the outermost.
    assert "elementwise" not in found.tables
    assert reasons(found) == {"kernels that no known operator launched": 1}


def test_layouts_bias_and_tf32(tmp_path: Path) -> None:
    trace = Trace(GPU)
    trace.call("aten::mm", [[512, 256], [256, 1024]], 9, **{"Input Strides": [[256, 1], [1, 256]]})
    trace.call("aten::addmm", [[1024], [512, 256], [256, 1024], [], []], 9, kernel="ampere_sgemm_128x64_tn")
    trace.call("aten::addmm", [[512, 1024], [512, 256], [256, 1024], [], []], 9)
    trace.call("aten::bmm", [[8, 64, 32], [8, 32, 16]], 9, kernel="cutlass_80_tensorop_s1688gemm_128x128")
    found = read(trace.write(tmp_path / "t.json"))
    rows = {row["variant"]: row for row in found.tables["gemm"].to_pylist()}
    assert set(rows) == {"nt", "bias", "batched"}
    assert (rows["bias"]["dtype"], rows["batched"]["dtype"]) == ("fp32", "tf32")
    assert [rows["batched"][name] for name in ("batch", "m", "n", "k")] == [8, 64, 16, 32]
    assert reasons(found) == {"products that add a whole matrix": 1}


def test_element_wise_operators_and_norms(tmp_path: Path) -> None:
    trace, shape = Trace(GPU), [4, 128, 768]
    for name, dims in (
        ("aten::gelu", [shape, []]), ("aten::relu_", [shape]), ("aten::add", [shape, shape, []]), ("aten::mul", [shape, []]),
        ("aten::add", [shape, [768], []]), ("aten::sub", [shape, [], []]),
    ):  # fmt: skip
        trace.call(name, dims, 5)
    trace.call("aten::softmax", [[4, 12, 128, 128], [], []], 7, **{"Concrete Inputs": ["", "-1", ""]})
    trace.call("aten::softmax", [[4, 12, 128, 128], [], []], 7, **{"Concrete Inputs": ["", "1", ""]})
    trace.call(
        "aten::layer_norm",
        [shape, [], [768], [768], [], []],
        7,
        **{"Concrete Inputs": ["", "[768]", "", "", "1e-05", "True"]},
    )
    found = read(trace.write(tmp_path / "t.json"))
    assert [row["variant"] for row in found.tables["elementwise"].to_pylist()] == ["gelu", "relu", "add", "mulu"]
    assert {(row["rows"], row["cols"]) for row in found.tables["elementwise"].to_pylist()} == {(512, 768)}
    assert [(row["rows"], row["cols"]) for row in found.tables["softmax"].to_pylist()] == [(4 * 12 * 128, 128)]
    assert [(row["rows"], row["variant"]) for row in found.tables["layernorm"].to_pylist()] == [(512, "layernorm")]
    assert sum(reasons(found).values()) == 3


def test_convolutions_and_attention(tmp_path: Path) -> None:
    trace = Trace(GPU)
    plain, grouped = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "1"], ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "64"]
    trace.call("aten::conv2d", [[8, 64, 56, 48], [128, 64, 3, 3], [], [], [], [], []], 9, **{"Concrete Inputs": plain})
    trace.call(
        "aten::conv2d", [[8, 64, 56, 48], [128, 64, 3, 3], [128], [], [], [], []], 9, **{"Concrete Inputs": plain}
    )
    trace.call("aten::conv2d", [[8, 64, 56, 48], [64, 1, 3, 3], [], [], [], [], []], 9, **{"Concrete Inputs": grouped})
    cache = [[2, 8, 512, 64]] * 2
    for queries, causal in ((512, "True"), (1, "False"), (512, "False"), (512, "")):
        dims = [[2, 32, queries, 64], *cache, [], [], []]
        trace.call(
            "aten::scaled_dot_product_attention",
            dims,
            9,
            dtype=BF16,
            **{"Concrete Inputs": ["", "", "", "", "0.", causal]},
        )
    found = read(trace.write(tmp_path / "t.json"))
    (conv,) = found.tables["conv2d"].to_pylist()
    names = ("batch", "in_channels", "out_channels", "height", "width", "kernel", "stride", "padding")
    assert [conv[name] for name in names] == [8, 64, 128, 56, 48, 3, 2, 1]
    attention = found.tables["attention"].to_pylist()
    assert [(row["variant"], row["q_len"], row["kv_len"], row["heads"], row["kv_heads"]) for row in attention] == [
        ("prefill", 512, 512, 32, 8), ("decode", 1, 512, 32, 8), ("full", 512, 512, 32, 8)]  # fmt: skip
    assert sum(reasons(found).values()) == 3


def test_shapes_must_be_recorded_and_formats_known(tmp_path: Path) -> None:
    trace = Trace(GPU)
    trace.call("aten::mm", None, 9)
    trace.call("aten::mm", [[4, 4], [4, 4]], 9, dtype="c10::complex<float>")
    trace.call("aten::mm", [[4, 4], [4, 4]])
    found = read(trace.write(tmp_path / "t.json"))
    assert found.tables == {}
    assert reasons(found) == {
        "operators without recorded shapes; profile with record_shapes=True": 1,
        "no format for operands of type 'c10::complex<float>'": 1,
        "operators that launched nothing on a GPU, or on several": 1,
    }  # fmt: skip


def test_the_device_is_the_traces_own(tmp_path: Path) -> None:
    silent, named = Trace(), Trace(GPU)
    for trace in (silent, named):
        trace.call("aten::mm", [[4, 4], [4, 4]], 9)
    path = silent.write(tmp_path / "silent.json.gz")
    assert get_importer("torch-trace").looks_like(path)
    assert read(path, "nvidia-t4").tables["gemm"]["device"].to_pylist() == ["nvidia-t4"]
    with pytest.raises(SpecError, match="--device"):
        read(path)
    with pytest.raises(SpecError, match="leave --device out"):
        read(named.write(tmp_path / "named.json"), "nvidia-t4")


def test_broken_traces_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": [')
    with pytest.raises(SpecError, match="no readable trace"):
        read(path)
