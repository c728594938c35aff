"""What a stranger gives to Python functions: read where it can only mean one thing, else an error that names it."""

from __future__ import annotations

from typing import Any

import kernelcast
import pytest

SPEC: dict[str, Any] = {"family": "gemm", "dtype": "bf16", "m": 64, "n": 64, "k": 64, "device": "h200"}
GEMM = {"device": "h200", "dtype": "bf16", "m": 64, "n": 64, "k": 64}
LLAMA = "meta-llama/Llama-3.1-8B"
SERVICE = {"input_tokens": 128, "output_tokens": 16, "batch": 1}
PLAN = {"gpus": 1, "input_tokens": 128, "output_tokens": 16, "concurrency": 4}


def test_other_names_of_families_and_whole_floats_are_read():
    answer = kernelcast.predict("gemm", **GEMM)
    assert kernelcast.predict("matmul", **GEMM | {"m": 64.0}) == answer
    assert kernelcast.predict("relu", device="h200", dtype="bf16", rows=64.0, cols=64).spec.variant == "relu"
    assert kernelcast.devices("h200")[0]["name"].startswith("nvidia-h200")
    assert all(item["measured"] for item in kernelcast.devices("amd", measured=True))


kc: Any = kernelcast


def test_whole_floats_and_texts_alone_are_read_of_services(tmp_path):
    assert str(kc.llm_predict(LLAMA, "h200", **SERVICE, gpus=2.0).request.gpus) == "2"
    prices = tmp_path / "prices.yaml"
    prices.write_text("h200: 3\n")
    question = kc.llm_plan(LLAMA, "h200", **PLAN, engines="vllm", weights="fp8", prices=str(prices)).question
    assert (question.engines, question.weights) == (("vllm",), ("fp8",))
    assert question.price(question.devices[0]) == 3


@pytest.mark.parametrize(
    ("ask", "field", "words"),
    [
        (lambda: kc.predict("gem", **GEMM), "family", "did you mean gemm?"),
        (lambda: kc.predict("gemm", **GEMM | {"m": 64.5}), "m", "whole number, got 64.5"),
        (lambda: kc.predict(None, **GEMM), "specs", "got NoneType"),
        (lambda: kc.predict([None]), "specs", "got list of NoneType"),
        (lambda: kc.predict([SPEC], dtype="fp8"), "specs", "its own dtype"),
        (lambda: kc.predict([{"m": 3, "device": "h200"}]), "specs[0].family", "the family is missing"),
        (lambda: kc.predict([SPEC | {"M": 3}]), "specs[0].M", "gemm has no field 'M'; leave it out"),
        (lambda: kc.predict("gemm", **GEMM, model=3), "model", "named by its directory, got int"),
        (lambda: kc.devices(3), "device", "is text, got int"),
        (lambda: kc.devices("h900"), "device", "no device 'h900'"),
        (lambda: kc.compare(3, dtype="bf16"), "family", "named by text"),
        (lambda: kc.predict_model("layers.json", "h200"), "kernels", "a list of mappings, got str"),
        (lambda: kc.estimate_model(LLAMA, "h200", train=8, decode=True), "train", "give one of"),
        (lambda: kc.estimate_model(LLAMA, "h200", train=0), "new_tokens", "got 0"),
        (lambda: kc.llm_predict(LLAMA, "h200", **SERVICE, concurency=1), "concurency", "did you mean concurrency?"),
        (lambda: kc.llm_predict(LLAMA, "h200", **SERVICE | {"batch": "1"}), "batch", "must be a number, got '1'"),
        (
            lambda: kc.llm_plan(LLAMA, ["h200"], gpus=1, input_tokens=8, output_tokens=8, x=1),
            "x",
            "possible are devices",
        ),
        (lambda: kc.llm_predict(LLAMA, "h200", **SERVICE, engine=None), "engine", "must be text, got None"),
        (lambda: kc.llm_predict(LLAMA, "h200", **SERVICE | {"input_tokens": None}), "input_tokens", "got None"),
        (lambda: kc.llm_predict(LLAMA, "h200", **SERVICE, chunk=2.5), "chunk", "a whole number, got 2.5"),
        (lambda: kc.llm_predict(LLAMA, "h200", **SERVICE, seed=-1), "seed", "at least 0, got -1"),
        (lambda: kc.llm_predict(LLAMA, "h200", **SERVICE, load=3), "load", "must be a Load, got 3"),
        (lambda: kc.llm_predict(LLAMA, "h200", **SERVICE, speculate=2, draft=3), "draft", "got int"),
        (lambda: kc.best_cap({"model_type": "llama"}, "h200", batch=1), "input_tokens", "input_tokens is missing"),
        (lambda: kc.llm_plan(LLAMA, "h200", **PLAN, cached="a"), "cached", "must be a number, got 'a'"),
        (lambda: kc.llm_plan(LLAMA, "h200", **PLAN, engines=[None]), "engines", "a list of texts, got None"),
        (lambda: kc.llm_plan(LLAMA, "h200", **PLAN, weights=3), "weights", "a list of texts, got 3"),
        (lambda: kc.llm_plan(LLAMA, "h200", **PLAN, setting=3), "setting", "no argument 'setting'"),
        (lambda: kc.llm_plan(LLAMA, "h200", **PLAN, speculation=3), "speculation", "did you mean speculate?"),
        (lambda: kc.llm_plan(LLAMA, "h200", **PLAN, prices="none.yaml"), "prices", "cannot read the prices none.yaml"),
    ],
)
def test_anything_else_is_an_error_that_names_it(ask, field, words):
    with pytest.raises(kernelcast.SpecError) as refusal:
        ask()
    assert refusal.value.field == field
    assert words in str(refusal.value)


def test_frames_have_columns_once_and_rows_of_what_is_known():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(kernelcast.SpecError, match="the column 'm' is there twice"):
        kc.predict(pandas.DataFrame([[1, 2]], columns=["m", "m"]))
    with pytest.raises(kernelcast.SpecError, match="got Series"):
        kc.predict(pandas.Series(SPEC))
    swept = kc.sweep("gemm", dtype="bf16", devices=["h200"], dim="m", values=pandas.Series([1, 2]).to_numpy(), n=8, k=8)
    assert swept.values == [1, 2]
