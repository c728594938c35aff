"""Traces by hand: launches, queues, graphs, kernels without a launch; and the batch where the GPU takes over."""

from __future__ import annotations

import gc
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from kernelcast.collectors.gpu.measure import torch_gpu as cuda_start
from kernelcast.collectors.gpu.profiling import launch_worker
from kernelcast.collectors.gpu.profiling.launch_trace import (
    ANNOTATION,
    FACT_NAMES,
    LaunchTraceError,
    gpu_bound_from,
    launch_facts,
    passes,
    summarise,
    trace_launches,
    traced_facts,
    typical,
    with_bounds,
)
from kernelcast.collectors.gpu.profiling.launch_worker import Blocks, Shape, trace
from kernelcast.datasets.records.launch_traces import LaunchSummary
from kernelcast.process import JsonChild

BASE_US = 4335344465000.0
"""Traces count microseconds since the machine started, or since 1970."""


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": BASE_US + ts, "dur": dur, "pid": 10, "tid": tid, "args": args}


def pass_events(at: float = 0.0, queue: float = 0.0) -> list[dict[str, Any]]:
    """Two kernels: a linear and a layer norm, launched 20 us apart."""
    first = int(at) + 1
    return [
        event("user_annotation", ANNOTATION, at, 100.0),
        event("cpu_op", "aten::linear", at + 1, 15.0),
        event("cpu_op", "aten::addmm", at + 2, 13.0),
        event("cuda_runtime", "cudaLaunchKernel", at + 5, 4.0, correlation=first),
        event("kernel", "gemm_bf16", at + 11 + queue, 30.0, tid=7, correlation=first),
        event("cpu_op", "aten::layer_norm", at + 20, 15.0),
        event("cuda_driver", "cuLaunchKernelEx", at + 25, 6.0, correlation=first + 1),
        event("kernel", "norm", at + 45 + queue, 3.0, tid=7, correlation=first + 1),
        event("gpu_memcpy", "Memcpy HtoD", at + 60, 3.0, tid=7, correlation=first + 2),
    ]


def trace_of(*events: dict[str, Any]) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "traceEvents": [{"ph": "M", "name": "process_name", "args": {"name": "python"}}, *events],
    }


def test_launch_and_queue_of_every_kernel():
    ((launches, unmatched),) = passes(trace_of(*pass_events()), "gpu", 4)
    assert unmatched == 0
    gemm, norm = launches
    assert (gemm.operator, gemm.inner, gemm.kernel, gemm.batch) == ("aten::linear", "aten::addmm", "gemm_bf16", 4)
    assert (norm.operator, norm.inner) == ("aten::layer_norm", "aten::layer_norm")
    microseconds = [(item.start_s, item.launch_s, item.queue_s, item.duration_s) for item in launches]
    expected = [(6e-6, 4e-6, 2e-6, 30e-6), (40e-6, 6e-6, 14e-6, 3e-6)]
    assert microseconds == [pytest.approx(row, abs=1e-8) for row in expected]
    summary = summarise(launches, unmatched)
    assert summary.tklqt_s == pytest.approx(6e-6 + 20e-6, abs=1e-8)
    assert summary.busy_s == pytest.approx(33e-6, abs=1e-8)
    assert summary.span_s == pytest.approx(43e-6, abs=1e-8)


def test_a_kernel_that_begins_before_its_launch_returned_did_not_queue():
    events = [
        event("user_annotation", ANNOTATION, 0, 50),
        event("cuda_runtime", "cudaLaunchKernel", 5, 10, correlation=1),
        event("kernel", "early", 8, 5, tid=7, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 20, 3, correlation=2),
        event("kernel", "skewed", 19, 5, tid=7, correlation=2),
    ]
    ((launches, _),) = passes(trace_of(*events), "gpu", 1)
    assert [(item.launch_s, item.queue_s) for item in launches] == [pytest.approx((3e-6, 0), abs=1e-8), (0.0, 0.0)]
    assert launches[0].operator == ""


def test_a_graph_is_launched_once_and_its_kernels_queue():
    events = [
        event("user_annotation", ANNOTATION, 0, 50),
        event("cuda_runtime", "cudaGraphLaunch", 5, 10, correlation=9),
        event("kernel", "a", 20, 5, tid=7, correlation=9),
        event("kernel", "b", 26, 5, tid=7, correlation=9),
    ]
    ((launches, _),) = passes(trace_of(*events), "gpu", 1)
    assert [item.graph for item in launches] == [True, True]
    assert [item.launch_s for item in launches] == [pytest.approx(10e-6, abs=1e-8), 0.0]
    assert [item.queue_s for item in launches] == [pytest.approx(5e-6, abs=1e-8), pytest.approx(11e-6, abs=1e-8)]


def test_kernels_without_a_launch_are_counted_and_left_out():
    lost = [event("kernel", "lost", 50, 5, tid=7, correlation=77), event("kernel", "without", 60, 5, tid=7)]
    ((launches, unmatched),) = passes(trace_of(*pass_events(), *lost), "gpu", 1)
    assert (len(launches), unmatched) == (2, 2)
    only = [event("user_annotation", ANNOTATION, 0, 100), *lost]
    with pytest.raises(LaunchTraceError, match=r"no kernel of the pass has a launch in the trace \(2 have none\)"):
        typical(passes(trace_of(*only), "gpu", 1))


def test_an_empty_trace_says_why():
    with pytest.raises(LaunchTraceError, match="holds no kernels: the profiler cannot see this GPU"):
        passes({"traceEvents": []}, "gpu", 1)
    with pytest.raises(LaunchTraceError, match="no pass annotated"):
        passes(trace_of(*pass_events()[1:]), "gpu", 1)


def test_the_median_pass_stands_for_a_batch():
    events = [item for at, queue in ((0, 0.0), (1000, 300.0), (2000, 20.0)) for item in pass_events(at, queue)]
    launches, summary = typical(passes(trace_of(*events), "gpu", 1))
    assert summary.tklqt_s == pytest.approx(66e-6, abs=1e-8)
    assert len(launches) == summary.kernels == 2


def summary_of(batch: int, tklqt_s: float) -> LaunchSummary:
    return LaunchSummary("gpu", batch, 10, 5e-5, tklqt_s - 5e-5, tklqt_s, 1e-4, 2e-4, 0, "")


@pytest.mark.parametrize(
    ("tklqt_us", "batch"),
    [
        ((100, 105, 98, 110, 400, 3000), 16),
        # A bump at a small batch is no turning point: what follows is below again.
        ((100, 250, 98, 110, 400, 3000), 16),
        ((100, 105, 98, 110, 120, 130), None),
        ((100, 300, 900, 2700, 9000, 9000), 2),
    ],
)
def test_the_gpu_takes_over_where_tklqt_grows_for_good(tklqt_us, batch):
    summaries = [summary_of(2**i, us * 1e-6) for i, us in enumerate(tklqt_us)]
    assert gpu_bound_from(summaries[::-1]) == batch
    assert [item.batch for item in with_bounds(summaries) if item.bound == "gpu"] == [
        2**i for i in range(6) if batch and 2**i >= batch
    ]
    facts = launch_facts(summaries)
    assert facts["tklqt_batch1_s"] == pytest.approx(1e-4)
    assert facts["launch_mean_s"] == pytest.approx(5e-6)
    assert facts["cpu_to_gpu_bound_batch"] == batch


CHILD = """
import json, sys
from pathlib import Path
print(json.dumps({"ready": {"gpu": "fake"}}), flush=True)
request = json.loads(sys.stdin.readline())
for batch in request["batches"]:
    print(json.dumps({"at": batch}), flush=True)
    if batch == 4:
        print(json.dumps({"failed": "OutOfMemoryError: CUDA out of memory", "batch": 4}), flush=True)
        continue
    if batch == 16:
        sys.exit("killed")
    path = Path(request["folder"]) / f"{batch}.json"
    path.write_text(PLACE[str(batch)])
    print(json.dumps({"trace": str(path), "batch": batch}), flush=True)
print(json.dumps({"done": True}), flush=True)
"""


def child(traces: dict[int, dict[str, Any]]) -> JsonChild:
    place = {str(batch): json.dumps(trace) for batch, trace in traces.items()}
    return JsonChild("GPU", [sys.executable, "-c", f"PLACE = {place!r}\n{CHILD}"], {})


def test_batches_that_fail_leave_the_others(tmp_path):
    traces = {1: trace_of(*pass_events()), 2: trace_of(*pass_events(queue=5)), 8: trace_of(*pass_events(queue=300))}
    seen: list[tuple[str, int, int]] = []
    traced = trace_launches("gpu", (1, 2, 4, 8, 16), child=child(traces), progress=lambda *step: seen.append(step))
    assert [(item.batch, item.bound) for item in traced.summaries] == [(1, "host"), (2, "host"), (8, "gpu")]
    assert traced.failed == {4: "OutOfMemoryError: CUDA out of memory", 16: "the worker ended with status 1: killed"}
    assert seen[-1] == ("batch 16", 4, 5)
    facts = traced_facts(traced)
    assert facts["cpu_to_gpu_bound_batch"]["value"] == 8
    assert set(facts) == set(FACT_NAMES)


def test_where_the_host_always_limits_the_fact_says_so():
    traced = trace_launches("gpu", (1, 2), child=child({1: trace_of(*pass_events()), 2: trace_of(*pass_events())}))
    assert traced_facts(traced)["cpu_to_gpu_bound_batch"] == {
        "value": None, "source": "not measured: the host limits at every batch up to 2",
    }  # fmt: skip


def test_a_profiler_that_sees_no_kernels_is_one_sentence():
    with pytest.raises(
        LaunchTraceError, match=r"^the trace holds no kernels: the profiler cannot see this GPU \(CUPTI"
    ):
        trace_launches("gpu", (1, 2), child=child({1: trace_of(), 2: trace_of()}))


def test_the_child_traces_in_inference_mode(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    import torch

    modes: list[bool] = []

    def blocks(*_: Any) -> None:
        gc.collect()
        modes.append(torch.is_inference_mode_enabled())

    for name, value in (("is_available", True), ("set_device", None), ("get_device_name", "played")):
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(launch_worker, "die_with_parent", lambda: None)
    monkeypatch.setattr(launch_worker, "private_stdout", lambda: sys.stdout.buffer)
    monkeypatch.setattr(launch_worker, "Blocks", blocks)
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"batches": [], "folder": "."}\n'))
    monkeypatch.setattr(cuda_start, "_entered", entered := [])
    try:
        launch_worker.main(["launch_worker", "0"])
    finally:
        for guard in entered:
            guard.__exit__(None, None, None)
    assert modes == [True]
    ready, done = map(json.loads, capsys.readouterr().out.splitlines())
    assert ready["ready"]["gpu"] == "played"
    assert done == {"done": True}


def test_the_model_runs_and_its_trace_is_read(tmp_path: Path):
    import torch

    model = Blocks(torch, Shape(hidden=32, heads=2, layers=2, tokens=8), "cpu", torch.float32)
    x = torch.randn(3, 8, 32)
    with torch.inference_mode():
        assert model(x).shape == x.shape
        assert torch.isfinite(model(x)).all()
        trace(torch, lambda: model(x), tmp_path / "t.json", lambda: None)
    result = json.loads((tmp_path / "t.json").read_text())
    marks = [item for item in result["traceEvents"] if item.get("name") == ANNOTATION]
    assert len(marks) == 5
    assert {item["cat"] for item in marks} == {"user_annotation"}
    # A CPU has no kernels in a trace; played ones inside a pass are found with the real operators around them.
    linear = next(
        item for item in result["traceEvents"] if item.get("name") == "aten::linear" and item["ts"] > marks[0]["ts"]
    )
    call = {**linear, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 0.1, "args": {"correlation": 5}}
    kernel = {**call, "cat": "kernel", "name": "k", "tid": 7, "ts": call["ts"] + 10, "dur": 5.0}
    with pytest.raises(LaunchTraceError):
        passes(result, "cpu", 3)
    result["traceEvents"] += [call, kernel]
    launches = passes(result, "cpu", 3)[0][0]
    assert [item.operator for item in launches] == ["aten::linear"]
    assert launches[0].inner.startswith("aten::")
