from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest
from kernelcast.datasets.form.form import judge_form
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError


def gemm(count: int = 3, /, **changes: object) -> pa.Table:
    columns: dict[str, object] = {
        "family": ["gemm"] * count, "device": ["my-gpu"] * count, "dtype": ["fp32"] * count, "m": list(range(1, count + 1)),
        "n": [8] * count, "k": [8] * count, "latency_s": [1e-4] * count,
    }  # fmt: skip
    return pa.table({name: column for name, column in (columns | changes).items() if column is not None})


def test_every_optional_column_is_read():
    form = judge_form(gemm(
        2, variant=["bias", None], impl=["torch", None], kv_dtype=["bf16", None], tile_m=[64, None], threads=[4, None],
        cache_state=["cold", None], timing=["call", None], power_w=[50.0, None], power_limit_w=[70, 70], energy_j=[0.005, None],
        source=["me", None], split=["train", None], note=["x", "y"],
    ))  # fmt: skip
    rows = form.parts["gemm"]
    assert rows.cases.variant.tolist() == ["bias", ""]
    assert rows.cases.impl.tolist() == ["torch", ""]
    assert rows.cases.kv_dtype.tolist() == ["bf16", "fp32"]
    np.testing.assert_equal(rows.cases.config["tile_m"], [64, np.nan])
    np.testing.assert_equal(rows.cases.threads, [4, np.nan])
    assert rows.cases.cache_state.tolist() == ["cold", "hot"]
    assert rows.cases.timing.tolist() == ["call", ""]
    np.testing.assert_equal(rows.power_w, [50, np.nan])
    np.testing.assert_equal(rows.power_limit_w, [70, 70])
    np.testing.assert_equal(rows.energy_j, [0.005, np.nan])
    assert rows.source.tolist() == ["me", ""]
    assert rows.split.tolist() == ["train", ""]
    assert form.table["note"].to_pylist() == ["x", "y"]


def test_other_arrow_types_are_read():
    table = gemm(
        m=pa.array([1, 2, 3], pa.int32()), n=pa.array([8.0, 8.0, 8.0]), k=pa.array(["8", " 9", "1e1"]),
        dtype=pa.array(["fp32", "bf16", "fp32"]).dictionary_encode(),
        device=pa.array(["a", "b", "c"], pa.large_string()), latency_s=pa.array([1e-3, 1e-3, 1e-3], pa.float32()),
    )  # fmt: skip
    cases = judge_form(table).parts["gemm"].cases
    assert cases.sizes["k"].tolist() == [8.0, 9.0, 10.0]
    assert cases.dtype.tolist() == ["fp32", "bf16", "fp32"]


def test_chunked_tables_are_read():
    table = pa.concat_tables([gemm(2), gemm(3)])
    assert len(judge_form(table).parts["gemm"]) == 5


def test_mixed_families_are_split():
    table = pa.table({
        "family": ["softmax", "gemm", "softmax"], "device": ["d"] * 3, "dtype": ["fp32"] * 3, "rows": [4, None, 6],
        "cols": [8, None, 8], "m": [None, 2, None], "n": [None, 2, None], "k": [None, 2, None], "latency_s": [1e-4] * 3,
    })  # fmt: skip
    form = judge_form(table)
    assert {name: rows.rows.tolist() for name, rows in form.parts.items()} == {"gemm": [1], "softmax": [0, 2]}


def test_the_family_can_be_an_argument():
    form = judge_form(gemm(family=None), family="gemm")
    assert len(form.parts["gemm"]) == 3
    with pytest.raises(SpecError, match="family asked for is 'softmax'"):
        judge_form(gemm(), family="softmax")
    with pytest.raises(SpecError, match="no kernel family 'gem'"):
        judge_form(gemm(family=None), family="gem")


def test_variants_left_out_are_what_the_sizes_imply():
    table = pa.table({
        "family": ["attention"] * 2, "device": ["d"] * 2, "dtype": ["bf16"] * 2, "batch": [1, 1], "heads": [8, 8],
        "kv_heads": [2, 2], "q_len": [1, 128], "kv_len": [128, 128], "head_dim": [64, 64], "latency_s": [1e-4] * 2,
    })  # fmt: skip
    assert judge_form(table).parts["attention"].cases.variant.tolist() == ["decode", "prefill"]


@pytest.mark.parametrize(
    ("changes", "column", "reason"),
    [
        ({"family": ["gemm", "fft", "gemm"]}, "family", "none of attention"),
        ({"family": ["gemm", None, "gemm"]}, "family", "is missing"),
        ({"device": ["a", None, "a"]}, "device", "is missing"),
        ({"device": ["a", " ", "a"]}, "device", "is missing"),
        ({"dtype": ["fp32", "fp33", "fp32"]}, "dtype", "no dtype 'fp33'; dtypes: fp64"),
        ({"dtype": ["fp32", None, "fp32"]}, "dtype", "is missing"),
        ({"kv_dtype": [None, "fp33", None]}, "kv_dtype", "no dtype"),
        ({"variant": [None, "odd", None]}, "variant", "no variant 'odd'; variants: '', bias"),
        ({"m": [1, None, 3]}, "m", "is missing"),
        ({"m": [1, 0, 3]}, "m", "between 1 and"),
        ({"m": [1, -4, 3]}, "m", "between 1 and"),
        ({"m": [1, 2.5, 3]}, "m", "whole number, got 2.5"),
        ({"m": [1, 2**40 + 1, 3]}, "m", "got 1099511627777"),
        ({"m": [1.0, float("inf"), 3.0]}, "m", "between 1 and"),
        ({"m": ["1", "many", "3"]}, "m", "whole number, got 'many'"),
        ({"batch": [None, 0, 2]}, "batch", "between 1 and"),
        ({"tile_m": [None, -1, 64]}, "tile_m", "between 0 and"),
        ({"threads": [None, 0, 2]}, "threads", "between 1 and 4096"),
        ({"threads": [None, 5000, 2]}, "threads", "between 1 and 4096"),
        ({"cache_state": [None, "warm", "cold"]}, "cache_state", "one of hot, cold"),
        ({"timing": [None, "host", "call"]}, "timing", "one of device, call"),
        ({"latency_s": [1e-4, None, 1e-4]}, "latency_s", "is missing"),
        ({"latency_s": [1e-4, float("nan"), 1e-4]}, "latency_s", "is missing"),
        ({"latency_s": [1e-4, 0.0, 1e-4]}, "latency_s", "positive"),
        ({"latency_s": [1e-4, -1.0, 1e-4]}, "latency_s", "positive"),
        ({"latency_s": [1e-4, float("inf"), 1e-4]}, "latency_s", "positive"),
        ({"latency_s": [1e-4, 5000.0, 1e-4]}, "latency_s", "in seconds"),
        ({"latency_s": [1e-4, 1e-12, 1e-4]}, "latency_s", "in seconds"),
        ({"latency_s": ["1e-4", "fast", "1e-4"]}, "latency_s", "number, got 'fast'"),
        ({"power_w": [None, 0.0, 5.0]}, "power_w", "positive"),
        ({"power_w": [None, -1.0, 5.0]}, "power_w", "positive"),
        ({"power_w": [None, 250000.0, 5.0]}, "power_w", "milliwatts"),
        ({"power_w": [None, 100.0, 5.0], "power_limit_w": [70.0] * 3}, "power_w", "limit"),
        ({"power_limit_w": [None, 0.0, 5.0]}, "power_limit_w", "positive"),
        ({"energy_j": [None, -1.0, 5.0]}, "energy_j", "positive"),
        ({"power_w": [None, 100.0, 100.0], "energy_j": [None, 10.0, 0.01]}, "energy_j", "SI units"),
    ],
)
def test_bad_rows_are_named(changes, column, reason):
    table = gemm(**changes)
    with pytest.raises(SpecError, match="1 of 3 rows are refused") as caught:
        judge_form(table)
    assert f"row 2: {column}: " in str(caught.value)
    assert reason in str(caught.value)
    assert "--skip-bad-rows" in str(caught.value)
    form = judge_form(table, skip_bad_rows=True)
    assert [(item.row, item.column) for item in form.refused] == [(1, column)]
    assert form.parts["gemm"].rows.tolist() == [0, 2]


def test_impossible_sizes_are_judged_by_the_family():
    n = 4
    table = pa.table({
        "family": ["attention"] * n, "device": ["d"] * n, "dtype": ["bf16"] * n, "batch": [1] * n, "heads": [8, 7, 8, 8],
        "kv_heads": [2, 2, 2, 2], "q_len": [128, 128, 129, 128], "kv_len": [128] * n, "head_dim": [64] * n,
        "variant": ["prefill"] * n, "latency_s": [1e-4] * n,
    })  # fmt: skip
    form = judge_form(table, skip_bad_rows=True)
    assert [(item.row, item.column) for item in form.refused] == [(1, "heads"), (2, "kv_len")]
    assert form.refused[0].reason == "must be a multiple of kv_heads, got 7 and 2"
    assert form.parts["attention"].rows.tolist() == [0, 3]


def test_ten_bad_rows_are_shown_and_the_others_counted():
    with pytest.raises(SpecError) as caught:
        judge_form(gemm(20, m=[0] * 15 + [1] * 5))
    assert str(caught.value).count("\n  row ") == 10
    assert "15 of 20 rows" in str(caught.value)
    assert "and 5 more" in str(caught.value)


def test_no_good_row_is_an_error_even_when_asked_to_keep():
    with pytest.raises(SpecError, match="none of the rows can be used"):
        judge_form(gemm(m=[0, 0, 0]), skip_bad_rows=True)


def test_devices_are_judged_when_asked():
    def known(name: str) -> str:
        return catalogue().get(name).name

    form = judge_form(gemm(device=["nvidia-t4", "NVIDIA-T4", "no-such"]), known_devices=known, skip_bad_rows=True)
    assert form.parts["gemm"].cases.device.tolist() == ["nvidia-t4", "nvidia-t4"]
    assert form.refused[0].column == "device"
    assert "no device 'no-such'" in form.refused[0].reason


def test_labels_are_not_looked_at_when_not_needed():
    table = gemm(latency_s=[-1.0, None, 5.0], power_w=["x", "y", "z"], latency_ms=[1, 2, 3])
    rows = judge_form(table, need_labels=False).parts["gemm"]
    assert len(rows) == 3
    assert np.isnan(rows.latency_s).all()
    assert np.isnan(rows.power_w).all()
    assert len(judge_form(gemm(latency_s=None), need_labels=False).parts["gemm"]) == 3


def test_rows_of_the_store_without_a_measurement_are_left_out():
    form = judge_form(gemm(status=["ok", "out_of_memory", "ok"], latency_s=[1e-4, None, 1e-4]))
    assert form.parts["gemm"].rows.tolist() == [0, 2]
    assert form.unmeasured.tolist() == [1]
    with pytest.raises(SpecError, match="no row with a measurement"):
        judge_form(gemm(status=["timeout"] * 3, latency_s=[None] * 3))


@pytest.mark.parametrize(
    ("column", "hint"),
    [
        ("latency_ms", "latency_s = latency_ms / 1e3"),
        ("latency_us", "latency_s = latency_us / 1e6"),
        ("time_us", "latency_s = time_us / 1e6"),
        ("kernel_time_ns", "latency_s = kernel_time_ns / 1e9"),
        ("duration", "rename it to latency_s, if it is in that unit"),
        ("Latency_MS", "latency_s = Latency_MS / 1e3"),
    ],
)
def test_times_in_another_unit_are_pointed_out(column, hint):
    with pytest.raises(SpecError, match="times are in seconds") as caught:
        judge_form(gemm(latency_s=None, **{column: [1.0, 2.0, 3.0]}))
    assert hint in str(caught.value)


def test_power_and_energy_in_another_unit_are_pointed_out():
    with pytest.raises(SpecError, match="power_w = power_mw / 1e3"):
        judge_form(gemm(power_mw=[1.0, 2.0, 3.0]))
    with pytest.raises(SpecError, match="energy_j = energy_mj / 1e3"):
        judge_form(gemm(energy_mj=[1.0, 2.0, 3.0]))


def test_a_timestamp_is_no_latency():
    form = judge_form(gemm(timestamp=["a", "b", "c"], latency_ms=[0.1, 0.1, 0.1]))
    assert form.refused == ()


def test_missing_columns_are_listed_with_near_matches():
    table = gemm(k=None, K=[8, 8, 8], device=None, devices=["a"] * 3)
    with pytest.raises(SpecError) as caught:
        judge_form(table)
    message = str(caught.value)
    assert "lacks device (is 'devices' meant?), k (is 'K' meant?)" in message
    assert "needs: device, dtype, m, n, k, latency_s" in message
    assert "found: family, dtype, m, n, latency_s, K, devices" in message


def test_a_table_without_a_family_says_which_there_are():
    with pytest.raises(SpecError, match=r"lacks family \(is 'Family' meant\?\).*--family.*attention, causal_conv1d"):
        judge_form(gemm(family=None, Family=["gemm"] * 3))


def test_lists_in_a_column_are_a_clear_error():
    with pytest.raises(SpecError, match="column m holds list"):
        judge_form(gemm(m=[[1], [2], [3]]))
    with pytest.raises(SpecError, match="column device holds list"):
        judge_form(gemm(device=[["a"], ["b"], ["c"]]))


def test_an_empty_table_is_an_error():
    with pytest.raises(SpecError, match="no row"):
        judge_form(gemm().slice(0, 0))


def test_a_hundred_thousand_rows_take_a_moment():
    n = 100_000
    rng = np.random.default_rng(0)
    bad = rng.random(n) < 0.5
    table = pa.table({
        "family": ["attention"] * n, "device": ["d"] * n, "dtype": ["bf16"] * n, "batch": rng.integers(1, 9, n),
        "heads": np.where(bad, 7, 8), "kv_heads": [2] * n, "q_len": rng.integers(1, 4000, n), "kv_len": [4096] * n,
        "head_dim": [64] * n, "latency_s": np.where(rng.random(n) < 0.3, -1.0, 1e-3),
    })  # fmt: skip
    start = time.process_time()
    form = judge_form(table, skip_bad_rows=True)
    # Generous: a loop over rows takes tens of seconds.
    assert time.process_time() - start < 8
    assert len(form.refused) > n / 2


def test_the_known_devices_are_listed_once():
    names = ["no-such", "nor-this", "no-such"]
    with pytest.raises(SpecError, match="none of the rows can be used") as refusal:
        judge_form(gemm(device=names), known_devices=lambda name: catalogue().get(name).name)
    lines = str(refusal.value).splitlines()
    assert [line.strip().partition(" (")[0] for line in lines[1:4]] == [
        f"row {i}: device: no device {name!r}" for i, name in enumerate(names, start=1)
    ]
    assert "are known, see `kernelcast devices`" in lines[4]
    assert str(refusal.value).count("are known") == 1
