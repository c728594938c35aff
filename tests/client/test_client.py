"""The client against a real server process with the shipped model: every question, typed answers, and what is refused."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path

import kernelcast
import msgspec
import numpy as np
import pytest
from kernelcast.client import Client, ClientError, Device

GPU = "nvidia-h200-sxm-141gb"
SIZES = {"m": 512, "n": 4096, "k": 4096}
MLIR = """\
func.func @main(%x: tensor<64x1024xf32>, %w: tensor<1024x512xf32>) -> tensor<64x512xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<64x1024xf32>, tensor<1024x512xf32>) -> tensor<64x512xf32>
  return %y : tensor<64x512xf32>
}
"""


@pytest.fixture(scope="module")
def client(address):
    with Client(address, timeout_s=60) as it:
        yield it


def test_one_prediction_is_what_the_library_says(client):
    result = client.predict("gemm", device="h200", dtype="bf16", coverage=0.8, **SIZES)
    expected = kernelcast.predict("gemm", device="h200", dtype="bf16", coverage=0.8, **SIZES)
    assert (result.device, result.family, result.coverage) == (GPU, "gemm", 0.8)
    assert result.latency_s.value == pytest.approx(expected.latency_s.value, rel=1e-6)
    assert result.latency_s.lower < result.latency_s.value < result.latency_s.upper
    assert result.bound in result.breakdown
    assert result.in_domain is True


def test_a_step_of_a_model_is_estimated_on_devices(client):
    question = {"model": "llama-3.1-8b", "phase": "decode", "batch": 8, "length": 2048, "price_per_hour": {"h200": 3.6}}
    result = client.estimate(["h200", "l40s"], **question)
    expected = kernelcast.estimate_model("llama-3.1-8b", "h200", decode=True, context=2048, batch=8)
    first = result.answers[0]
    assert first.latency_s.value == pytest.approx(expected.whole.latency_s.value, rel=1e-6)
    assert first.cost.value == pytest.approx(first.latency_s.value / 1000)
    assert result.model in client.models()
    with pytest.raises(ClientError, match=r"plan\.tp"):
        client.estimate(["h200"], **question, plan={"tp": 3})


def test_kernels_beside_each_other_are_what_the_library_says(client):
    kernels = [{"family": "copy", "dtype": "fp32", "rows": 2048, "cols": 2048, "threads": 1}] * 2
    result = client.predict_colocated("amd-epyc-7003-vm-2c", kernels, coverage=0.8)
    (first, *rest) = kernels
    expected = kernelcast.predict(device="amd-epyc-7003-vm-2c", coverage=0.8, beside=rest, **first)
    assert result.kernels[0].slowdown.value == pytest.approx(expected.kernels[0].slowdown.value)
    with pytest.raises(ClientError, match="3 threads"):
        client.predict_colocated("amd-epyc-7003-vm-2c", [first, {**first, "threads": 2}])


def test_sizes_may_stand_in_an_object_of_their_own_and_options_are_sent(client):
    raw = {"device": "amd-epyc-9005-vm-2c", "dtype": "fp32", "threads": 1, "impl": "torch", "cache_state": "cold"}
    item = client.predict("gemm", **raw, **SIZES)
    assert item == client.predict("gemm", **raw, sizes=SIZES)
    assert item != client.predict("gemm", **{**raw, "threads": 2}, **SIZES)


def test_many_predictions_keep_their_order_across_parts(client, monkeypatch):
    from kernelcast.client import connection

    monkeypatch.setattr(connection, "PART_SPECS", 7)
    specs = [
        {"family": "gemm", "device": ("h200", "l40s")[i % 2], "dtype": "bf16", "m": 16 + i, "n": 512, "k": 512}
        for i in range(24)
    ]
    result = client.predict_many(specs)
    assert [item.device for item in result] == [GPU, "nvidia-l40s"] * 12
    assert result[17].latency_s.value == pytest.approx(client.predict(**specs[17]).latency_s.value, rel=1e-5)
    specs[17] = {**specs[17], "m": 0}
    with pytest.raises(ClientError, match=r"422: requests\[17\]\.sizes\.m: m must be between 1") as caught:
        client.predict_many(specs)
    (error,) = caught.value.errors
    assert (error.field, error.index) == ("requests[17].sizes.m", 17)
    assert client.predict_many([]) == []


def test_columns_of_numpy_are_answered_row_by_row(client):
    m = np.array([16, 512, 4096])
    result = client.predict_columns("gemm", {"device": "h200", "dtype": "bf16", "sizes": {**SIZES, "m": m}})
    assert (result.n, len(result.latency_s.value), len(result.in_domain)) == (3, 3, 3)
    for i, size in enumerate(m.tolist()):
        item = client.predict("gemm", device="h200", dtype="bf16", **{**SIZES, "m": size})
        assert result.latency_s.value[i] == pytest.approx(item.latency_s.value, rel=1e-5)
        assert result.bound.rows()[i] == item.bound


def test_rank_compare_sweep_and_roofline(client):
    ranking = client.rank("gemm", device="h200", dtype="bf16", impl="triton", top=3, **SIZES)
    assert 1 <= len(ranking.ranked) <= 3 <= ranking.considered
    assert ranking.ranked[0].slower_than_best == 0
    raw = client.rank("gemm", device="h200", dtype="bf16", impl="triton", configs=[item.config for item in ranking.ranked],
                        **SIZES)  # fmt: skip
    assert raw.considered == len(ranking.ranked)
    prices = {"h200": 3.5, "l40s": 0.9}
    comparison = client.compare("gemm", dtype="bf16", devices=["h200", "l40s"], price_per_hour=prices, **SIZES)
    for answer in comparison.answers:
        assert answer.prediction is not None
        assert answer.cost_per_million_calls.value > 0
    assert len(client.compare("gemm", dtype="bf16", **SIZES).answers) == len(client.devices())
    swept = client.sweep("gemm", dtype="bf16", devices=["h200"], dim="m", values=[16, 64, 256], n=4096, k=4096)
    assert (swept.values, len(swept.curves[0].latency_s.value)) == ([16, 64, 256], 3)
    stepped = client.sweep("gemm", dtype="bf16", devices=["h200"], dim="m", start=16, stop=4096, points=5, scale="log",
                           n=4096, k=4096)  # fmt: skip
    assert (stepped.values[0], stepped.values[-1]) == (16, 4096)
    assert [item.device for item in client.compare("gemm", dtype="bf16", devices="h200", **SIZES).answers] == [GPU]
    roofline = client.roofline("gemm", dtype="bf16", devices=["h200", "l40s"], **SIZES)
    assert roofline.flops == 2 * 512 * 4096 * 4096
    assert [answer.device for answer in roofline.answers] == [GPU, "nvidia-l40s"]


def test_whole_models_and_programs(client):
    kernels = [{"family": "gemm", "dtype": "bf16", **SIZES, "count": 32, "name": "projection"},
               {"family": "softmax", "dtype": "bf16", "sizes": {"rows": 16384, "cols": 512}}]  # fmt: skip
    (whole,) = client.predict_model(kernels, ["h200"], launch_s=1e-6)
    assert [part.count for part in whole.kernels] == [32, 1]
    assert whole.launches == 33
    programs = client.predict_mlir(MLIR, ["h200", "amd-epyc-9005-vm-2c"], function="main", threads=1)
    assert [item.device for item in programs.answers] == [GPU, "amd-epyc-9005-vm-2c"]
    assert programs.answers[0].flops == 2 * 64 * 1024 * 512


def test_services_of_language_models(client):
    lengths = {"input_tokens": 256, "output_tokens": 32}
    answer = client.llm_predict("meta-llama/Llama-3.1-8B", device="h200", concurrency=4, gpus=2, **lengths)
    assert (answer.device, answer.replicas) == (GPU, 2)
    assert answer.ttft_s.p50.value <= answer.ttft_s.p99.value
    services = client.llm_predict_loads("meta-llama/Llama-3.1-8B", device="h200", concurrency=(1, 4), gpus=2, **lengths)
    assert [one.load.size for one in services] == [1, 4]
    assert services[1] == answer
    plans = client.llm_plan("meta-llama/Llama-3.1-8B", devices=["h200"], gpus=1, engines=["vllm"], **lengths)
    assert plans.choices[0].command.startswith("vllm serve")


def test_settings_and_footprints(client):
    kernels = [{"family": "gemm", "dtype": "bf16", **SIZES}]
    result = client.best_cap("h200", kernels=kernels, slowdown=0.05)
    assert result.best.time <= 1.05
    assert result.usual.power_limit_w is None
    measured = client.best_cap("a40", measured={"time_s": 312, "power_w": 241}, budget={"budget_w": 40_000})
    assert measured.best.servers > 40_000 // (8 * 300)
    (whole,) = client.predict_model(kernels, ["h200"], grid="de", pue=1.2)
    assert whole.footprint.carbon_g.value == pytest.approx(1.2 * 344 * whole.energy_j.value / 3.6e6)
    (limited,) = client.predict_model(kernels, ["h200"], power_limit_w=200)
    assert limited.power_w.value <= 200
    assert limited.latency_s.value > whole.latency_s.value
    answer = client.predict("gemm", device="h200", dtype="bf16", grid=380, **SIZES)
    assert answer.footprint.g_per_kwh == 380
    assert client.predict("gemm", device="h200", dtype="bf16", **SIZES).footprint is None


def test_what_can_be_asked_about(client):
    assert client.ready() is True
    devices = {device.name: device for device in client.devices()}
    page = client.device("h200")
    tables = ("facts", "matrix_flops_per_s", "vector_flops_per_s", "measured")
    for name in set(Device.__struct_fields__) - set(tables):
        assert getattr(page, name) == getattr(devices[GPU], name)
    for table in tables:
        assert all(fact.source for fact in getattr(page, table).values())
        # The list of all has the figures without their sources.
        bare = {name: msgspec.structs.replace(fact, source=None) for name, fact in getattr(page, table).items()}
        assert bare == getattr(devices[GPU], table)
    assert page.basis
    assert devices[GPU].facts["memory_bandwidth_b_per_s"].value > 1e12
    assert client.kernels()["gemm"]["properties"]["sizes"]["required"] == ["m", "n", "k"]


@pytest.mark.parametrize(
    ("ask", "status", "words"),
    [
        (lambda it: it.predict("gem", device="h200", dtype="bf16", m=1), 422, "no kernel family 'gem'"),
        (lambda it: it.predict("gemm", device="h900", dtype="bf16", **SIZES), 422, "no device 'h900' (close:"),
        (lambda it: it.predict("gemm", device="h200", dtype="bf16", m=1, n=2), 422, "gemm needs k"),
        (lambda it: it.predict("gemm", device="h200", dtype="bf16", z=1, **SIZES), 422, "gemm has no sizes 'z'"),
        (lambda it: it.predict("gemm", device="h200", dtype="bf16", m=None, n=2, k=3), 422, "gemm needs m"),
        (lambda it: it.predict("gemm", device="h200", dtype="bf16", coverage=2, **SIZES), 422, "coverage"),
        (lambda it: it.predict("gemm", device="h200", dtype="bf16", m={1}, n=2, k=3), 422, "m must be a whole number"),
        (lambda it: it.predict("gemm", device="h200", dtype="bf16", m=object(), n=2, k=3), None, "object has no form in JSON"),
        (lambda it: it.predict("gemm", device="h200", dtype="bf16", sizes=5), None, "sizes must be a mapping"),
        (lambda it: it.predict("gemm", device="h200", dtype="bf16", sizes=SIZES, m=5), None, "the size m is given twice"),
        (lambda it: it.predict_many([5]), None, "a spec must be a mapping of fields, not int"),
        (lambda it: it.predict_model("abc", ["h200"]), None, "a spec must be a mapping of fields, not str"),
        (lambda it: it.predict_columns("gemm", {"device": "h200"}), 422, "dtype is missing"),
        (lambda it: it.sweep("gemm", dtype="bf16", devices=[], dim="m", values=[1], n=1, k=1), 422, "devices"),
        (lambda it: it.predict_model([], ["h200"]), 422, "kernels"),
        (lambda it: it.predict_mlir("", ["h200"]), 422, ""),
        (lambda it: it.device("h900"), 404, "no device 'h900'"),
        (lambda it: it.device("a/../b?c#d"), 404, ""),
    ],
)  # fmt: skip
def test_refusals_in_the_service_s_words(client, ask, status, words):
    with pytest.raises(ClientError) as caught:
        ask(client)
    assert caught.value.status == status
    assert words in caught.value.detail
    assert words in str(caught.value)


def test_threads_share_one_client(client):
    expected = {
        m: client.predict("gemm", device="h200", dtype="bf16", m=m, n=512, k=512) for m in (16, 128, 1024, 8192)
    }
    wrong: list[object] = []

    def work(m: int) -> None:
        try:
            for _ in range(10):
                result = client.predict("gemm", device="h200", dtype="bf16", m=m, n=512, k=512)
                # Requests that meet are predicted together, which changes the order of additions.
                if result.latency_s.value != pytest.approx(expected[m].latency_s.value, rel=1e-5):
                    wrong.append(result)
        except ClientError as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(m,)) for m in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_kept_connection_is_used_again(address):
    with Client(address) as client:
        client.ready()
        (first,) = client._connections._idle
        client.devices()
        assert client._connections._idle == [first]
    assert first.sock is None
    with pytest.raises(ClientError, match="the client is closed"):
        client.ready()


def test_the_client_loads_little_and_quickly():
    code = (
        "import sys, time; began = time.process_time(); import kernelcast.client; "
        "print(time.process_time() - began, *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    seconds, *modules = done.stdout.split()
    roots = {name.split(".")[0] for name in modules}
    assert not roots & {"numpy", "starlette", "pydantic", "yaml", "onnxruntime", "httpx"}
    ours = {name for name in modules if name.startswith("kernelcast.")}
    # `kernelcast.torch` is another name of an empty folder's first file, which has to be known from the start.
    assert {name.split(".")[1] for name in ours} <= {"client", "version", "torch", "python"}, ours
    assert len(ours) <= 8, ours
    # Some 50 ms of processor time, most of it the standard library's.
    assert float(seconds) < 2.0


def test_an_error_survives_being_passed_between_processes(client):
    with pytest.raises(ClientError) as caught:
        client.predict("gemm", device="h200", dtype="bf16", m=0, n=1, k=1)
    result, copy = caught.value, pickle.loads(pickle.dumps(caught.value))
    assert (copy.status, copy.detail, copy.errors, str(copy)) == (422, result.detail, result.errors, str(result))
    assert copy.request_id == result.request_id
    assert result.request_id


def test_the_program_of_the_page_runs(address):
    page = (Path(kernelcast.__file__).parent / "docs" / "client.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    program = program.replace("http://127.0.0.1:8000", address)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=240, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    value, lower, upper, _ = done.stdout.split()
    assert 0 < float(lower) < float(value) < float(upper)
