"""`kernelcast llm predict`: one service, a table of them, and what it says of bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kernelcast.cli import main

ASK = ("llm", "predict", "meta-llama/Llama-3.1-8B", "--device", "h100-sxm", "--input", "512", "--output", "64")


def test_json_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASK, "--concurrency", "8", "--gpus", "2", "--price", "h100-sxm=2.5", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["gpus"] == 2
    assert answer["replicas"] == 2
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        latency = answer[name]
        assert latency["mean"]["lower"] < latency["mean"]["value"] < latency["mean"]["upper"]
        assert latency["p50"]["value"] <= latency["p90"]["value"] <= latency["p99"]["value"]
    cost = answer["cost_per_million_tokens"]["value"]
    assert cost == pytest.approx(2.5 * 2 / 3600 / answer["throughput_tok_s"]["value"] * 1e6)
    assert sum(answer["step_parts"].values()) == pytest.approx(1)
    assert answer["memory"]["sequences"] > 100
    assert answer["energy_per_token_j"]["value"] > 0


def test_loads_are_read_as_people_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("llm", "predict", "meta-llama/Llama-3.1-8B", "--device", "h100-sxm", "--output", "64")
    assert main([*ask, "--input", "1.5k", "--concurrency", "1_0"]) == 0
    assert "10 under way, 1536 tokens in" in capsys.readouterr().out
    assert main([*ask, "--input", "512", "--concurrency", "1q"]) == 2
    assert "Invalid value for '--concurrency': give a whole number, such as 4096 or 4k" in capsys.readouterr().err


def test_the_screen_names_what_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASK, "--rate", "2"]) == 0
    shown = capsys.readouterr().out
    for word in ("time to first token", "time per token", "tokens/s per user", "energy per request", "gemm"):
        assert word in shown


@pytest.mark.parametrize(("model", "lengths"), [("openai-community/gpt2", (600, 100)), ("facebook/opt-6.7b", (1100, 500)),
                                                ("openai/whisper-large-v3", (128, 16))])  # fmt: skip
def test_learned_positions_are_used_to_their_end(
    model: str, lengths: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ("llm", "predict", model, "--device", "h100-sxm", "--concurrency", "4", "--json")
    assert main([*ask, "--input", str(lengths[0]), "--output", str(lengths[1])]) == 0
    assert json.loads(capsys.readouterr().out)["tpot_s"]["p50"]["value"] > 0
    assert main([*ask, "--input", "4000", "--output", "100"]) == 2
    assert "longer than the" in capsys.readouterr().err


def test_energy_is_no_more_than_the_limit_times_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    ask = (
        "llm",
        "predict",
        "mistralai/Mamba-Codestral-7B-v0.1",
        "--device",
        "h200",
        "--input",
        "2048",
        "--output",
        "256",
    )
    assert main([*ask, "--concurrency", "64", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    energy_j = answer["energy_per_token_j"]["value"]
    assert energy_j * answer["throughput_tok_s"]["value"] == pytest.approx(answer["power_w"]["value"], rel=1e-3)


def test_prompts_on_workers_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    def answer(*more: str) -> dict[str, Any]:
        lengths = ("--input", "4096", "--output", "256")
        assert main([*ASK, *lengths, "--rate", "12", "--gpus", "3", "--json", *more]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    together, apart = answer(), answer("--prefill-workers", "1")
    assert (apart["gpus"], apart["replicas"], apart["prefill_workers"]) == (3, 2, 1)
    assert together.get("prefill_workers", 0) == 0
    # Steps that decode are not delayed by prompts.
    assert apart["itl_s"]["p99"]["value"] < together["itl_s"]["p99"]["value"]
    tpot, usual = apart["tpot_s"]["p50"], together["tpot_s"]["p50"]
    assert tpot["upper"] / tpot["lower"] > 1.2 * usual["upper"] / usual["lower"]
    assert any("computed by 1 worker (tp 1) alone" in note for note in apart["notes"])
    # As many requests are answered as come, however many workers there are.
    assert main([*ASK, "--rate", "300", "--gpus", "24", "--prefill-workers", "8", "--json"]) == 0
    many = json.loads(capsys.readouterr().out)
    assert many["requests_s"]["value"] == pytest.approx(300, rel=0.1)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        (("--concurrency", "8"), "a rate or a trace"), (("--rate", "2", "--gpus", "3", "--tp", "2"), "less the 2"),
        (("--rate", "2", "--prefill-tp", "3"), "does not divide"),
        (("--rate", "2", "--speculate", "2", "--acceptance", "0.5"), "not modelled"),
        (("--rate", "2", "--prefill-workers", "0", "--prefill-tp", "2"), "say how many"),
        (("--rate", "2", "--prefill-workers", "-1"), "between 0 and"),
        (("--rate", "2", "--prefill-workers", "9999"), "between 0 and"),
    ],
)  # fmt: skip
def test_workers_of_prompts_that_cannot_be(
    more: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ASK, "--prefill-workers", "1", *more]) == 2
    assert word in capsys.readouterr().err


def test_notes_say_what_is_simplified(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASK, "--concurrency", "8", "--pp", "2", "--json"]) == 0
    assert {"equally long", "one after another"} <= {
        words
        for note in json.loads(capsys.readouterr().out)["notes"]
        for words in ("equally long", "one after another")
        if words in note
    }
    assert main([*ASK, "--concurrency", "8", "--spread", "0.2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


def test_answers_of_one_token_have_no_time_per_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASK[:-1], "1", "--concurrency", "2"]) == 0
    lines = {line.strip().partition("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    for name in ("time per token", "between two tokens", "tokens/s per user"):
        assert lines[name].split()[-1] == "none"


def test_guesses_say_tokens_per_step_and_what_is_best(capsys: pytest.CaptureFixture[str]) -> None:
    draft = ("--concurrency", "4", "--speculate", "4", "--acceptance", "0.7", "--draft", "meta-llama/Llama-3.2-1B")
    assert main([*ASK, *draft]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for word in ("4 a step by meta-llama/Llama-3.2-1B", "in 90 % of answers", "would be fastest", "taken as given"):
        assert word in shown
    assert main([*ASK, "--concurrency", "4", "--speculate", "4"]) == 2
    assert "acceptance" in capsys.readouterr().err


def test_a_full_cache_preempts_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    small = ("llm", "predict", "meta-llama/Llama-3.1-8B", "--device", "l4", "--input", "512", "--output", "512")
    assert main([*small, "--concurrency", "64", "--rounds", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["memory"]["sequences"] < 64
    assert answer["preemptions"] > 0
    assert any("computed again" in note for note in answer["notes"])


@pytest.mark.parametrize("names", ["input,output", "input_tokens,output_tokens"])
def test_a_trace_is_answered_by_its_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str], names: str) -> None:
    trace, wrong = tmp_path / "trace.csv", tmp_path / "wrong.csv"
    trace.write_text(f"arrival_s,{names}\n" + "\n".join(f"{0.5 * i},{256 + 64 * (i % 4)},{32}" for i in range(40)))
    ask = ("llm", "predict", "meta-llama/Llama-3.1-8B", "--device", "h100-sxm")
    assert main([*ask, "--trace", str(trace), "--gpus", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    # Two requests of 32 tokens a second.
    assert answer["throughput_tok_s"]["value"] == pytest.approx(2 * 32, rel=0.06)
    wrong.write_text(f"arrival_s,{names}\n0,100,8\n1,abc,8\n2,100,8\n")
    assert main([*ask, "--trace", str(wrong)]) == 2
    assert "request 2 of the trace: input" in capsys.readouterr().err
    wrong.write_text(f"arrival_s,{names}\n0,100,8\n1e12,100,8\n")
    assert main([*ask, "--trace", str(wrong)]) == 2
    assert "trace must have at least" in capsys.readouterr().err
    wrong.write_text("arrival_s,input\n0,1\n1,1\n")
    assert main([*ask, "--trace", str(wrong)]) == 2
    assert "no column output" in capsys.readouterr().err
    assert main([*ask, "--trace", str(trace), "--rate", "2"]) == 2
    assert "leave out" in capsys.readouterr().err
    assert main([*ask, "--trace", str(trace), "--spread", "0.5", "--rounds", "3", "--seed", "4"]) == 2
    assert "--rounds, --spread, --seed cannot go with --trace" in capsys.readouterr().err


def test_a_file_without_a_price_of_the_device_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("l4: 0.5\n")
    assert main([*ASK, "--batch", "1", "--price", str(prices)]) == 2
    assert "no price of nvidia-h100-sxm-80gb" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ((), "concurrency"), (("--concurrency", "8", "--rate", "1"), "one of"), (("--batch", "0"), "batch"),
        (("--batch", "1", "--tp", "3"), "does not divide"), (("--batch", "1", "--gpus", "3", "--tp", "2"), "no multiple"),
        (("--batch", "1", "--engine", "tgi"), "no engine"), (("--batch", "1", "--price", "-1"), "price"),
        (("--batch", "1", "--max-sequences", "0"), "sequences"), (("--batch", "1", "--gpus", "0"), "use 1"),
        (("--batch", "1", "--kv-dtype", "int8"), "use bf16, fp8"), (("--batch", "1", "--kv-dtype", "fp32"), "no fp32 cache"),
        (("--rate", "2", "--rounds", "1"), "rounds cannot go with rate"),
        (("--batch", "8", "--requests", "9"), "requests cannot go with batch"),
        (("--concurrency", "8", "--requests", "9", "--rounds", "3"), "rounds cannot go with requests"),
        (("--batch", "1", "--price", "h100-sxm=1e9"), "of at most 1e+06"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(more: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASK, *more]) == 2
    said = capsys.readouterr().err
    assert word in said
    assert "Traceback" not in said


def test_a_model_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    big = (
        "llm",
        "predict",
        "meta-llama/Llama-3.1-70B",
        "--device",
        "h100-sxm",
        "--input",
        "512",
        "--output",
        "64",
        "--batch",
        "1",
    )
    assert main(big) == 2
    assert "141" in capsys.readouterr().err


def test_a_table_keeps_its_rows_and_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"id": "b", "model": "llama-3.1-8b", "device": "h100-sxm", "isl": 256, "osl": 32, "batch": 4, "ttft_s": 9.0},
        {"id": "a", "model": "no-such-model", "device": "h100-sxm", "isl": 256, "osl": 32, "batch": 4, "ttft_s": 9.0},
    ]
    source, out = tmp_path / "rows.parquet", tmp_path / "predicted.parquet"
    pq.write_table(pa.Table.from_pylist(rows), source)
    assert main(["llm", "predict", "--table", str(source), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["refused"] == 1
    answers = pq.read_table(out).to_pylist()
    assert [row["id"] for row in answers] == ["b", "a"]
    assert answers[0]["ttft_s"] == 9.0
    assert 0 < answers[0]["pred_ttft_lo_s"] < answers[0]["pred_ttft_s"] < answers[0]["pred_ttft_hi_s"] < 1
    assert answers[0]["refused"] == ""
    assert "no-such-model" in answers[1]["refused"]
    assert answers[1]["pred_ttft_s"] is None


def test_a_table_needs_somewhere_to_go(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["llm", "predict", "--table", "rows.parquet"]) == 2
    assert "--out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--tp", "8", "--weights", "fp8"), "--tp, --weights: of one service, not of --table; rows of a table say it in "
         "columns: tp, weight_dtype"),
        (("--price", "3", "--trace", "none.csv"), "--trace, --price: of one service, not of --table; leave these"),
        (("meta-llama/Llama-3.1-8B", "--device", "l4"), "MODEL, --device: of one service"),
    ],
)  # fmt: skip
def test_options_of_one_service_do_not_go_with_a_table(
    more: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["llm", "predict", "--table", "rows.csv", "--out", "predicted.csv", *more]) == 2
    assert words in capsys.readouterr().err
