from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kernelcast.datasets.rows.schema import Measurement, Provenance, to_table
from kernelcast.datasets.store.store import Store
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec, get_family
from kernelcast.models.training import store_rows as thinning
from kernelcast.models.training.labelled_cases import LabelledCases, labelled_table
from kernelcast.models.training.store_rows import (
    Sample,
    equal_share,
    group_medians,
    labelled_batches,
    labelled_store,
    needed_columns,
)

A100, T4 = "nvidia-a100-sxm-80gb", "nvidia-t4"


def _row(m: int, **changes: Any) -> Measurement:
    spec = KernelSpec.of(
        "gemm", changes.pop("dtype", "fp16"), m=m, n=64, k=64, impl=changes.pop("impl", "torch"),
        timing=changes.pop("timing", ""),
    )  # fmt: skip
    raw: dict[str, Any] = {"device": A100, "status": "ok", "block": "b", "latency_s": 1e-3}
    return Measurement(spec=spec, **raw | changes)


def _batches(rows: Sequence[Measurement], size: int = 1000) -> Iterator[pa.RecordBatch]:
    yield from to_table(list(rows), "gemm").select(needed_columns(get_family("gemm"))).to_batches(size)


def _taken(rows: Sequence[Measurement], size: int = 1000, **options: Any) -> LabelledCases:
    return labelled_batches("gemm", _batches(rows, size), **options)


def _set(rows: LabelledCases) -> set[tuple[Any, ...]]:
    cases = rows.cases
    words = (cases.device, cases.impl, cases.dtype)
    columns = (*words, cases.sizes["m"], rows.latency_s, np.nan_to_num(rows.power_w), rows.source)
    return set(zip(*(column.tolist() for column in columns), strict=True))


def test_repeats_of_a_case_on_one_software_are_one_row_with_their_medians() -> None:
    rows = [
        _row(1, latency_s=3e-3, power_w=100.0, software="x", source="b"), _row(1, latency_s=1e-3, software="x", source="a"),
        _row(1, latency_s=2e-3, power_w=300.0, software="x", source="c"), _row(1, latency_s=9e-3, software="y"),
        _row(1, latency_s=8e-3, device=T4, software="x"), _row(2, latency_s=7e-3), _row(2, latency_s=5e-3),
    ]  # fmt: skip
    result = _set(_taken(rows))
    assert result == {
        (A100, "torch", "fp16", 1.0, 2e-3, 200.0, "a"),
        (A100, "torch", "fp16", 1.0, 9e-3, 0.0, "kernelcast"),
        (T4, "torch", "fp16", 1.0, 8e-3, 0.0, "kernelcast"),
        (A100, "torch", "fp16", 2.0, 6e-3, 0.0, "kernelcast"),
    }


def test_a_row_keeps_the_timing_it_says() -> None:
    rows = [
        _row(m, timing=timing, source=source)
        for m, (timing, source) in enumerate(
            [("call", "me"), ("device", "me"), ("", "me"), ("", "kernelcast")], start=1
        )
    ]
    whole = labelled_table(to_table(rows, "gemm"), "gemm")
    for result in (_taken(rows), whole):
        timings = dict(zip(result.cases.sizes["m"].tolist(), result.cases.timing.tolist(), strict=True))
        assert timings == {1: "call", 2: "device", 3: "", 4: "device"}


def _many(n: int = 3000) -> list[Measurement]:
    """Three strata: common, less common, rare; repeats here and there."""
    rng = np.random.default_rng(1)
    rows = []
    for m in range(1, n + 1):
        kind = {"impl": "triton"} if m % 10 == 0 else {"device": T4} if m % 300 == 1 else {}
        rows += [_row(m, latency_s=float(t), **kind) for t in rng.uniform(1e-4, 1e-3, int(rng.integers(1, 4)))]
    return rows


def test_rare_kinds_are_kept_whole_and_common_ones_share_the_rest() -> None:
    rows = _taken(_many(), most_rows=500)
    counts = {
        key: sum(1 for one in _set(rows) if one[:2] == key)
        for key in ((A100, "torch"), (A100, "triton"), (T4, "torch"))
    }
    # 10 of the rare ones, and of the 490 left as many each.
    assert counts == {(A100, "torch"): 245, (A100, "triton"): 245, (T4, "torch"): 10}
    assert len(_taken(_many(), most_rows=10**6)) == 3000


def test_which_rows_are_kept_does_not_depend_on_order_batches_or_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _many(1200)
    expected = _taken(rows, most_rows=400)
    shuffled = [rows[i] for i in np.random.default_rng(2).permutation(len(rows))]
    monkeypatch.setattr(thinning, "_LEAST_HELD", 50)
    for order, size in ((shuffled, 1000), (rows[::-1], 37), (shuffled, 7)):
        result = _taken(order, size, most_rows=400)
        assert _set(result) == _set(expected)
        assert result.cases.sizes["m"].tolist() == expected.cases.sizes["m"].tolist()
    assert _set(_taken(rows, most_rows=400, seed=1)) != _set(expected)


def test_what_is_kept_is_a_fair_sample_of_sizes() -> None:
    sizes = np.sort(_taken([_row(m) for m in range(1, 4001)], most_rows=400).cases.sizes["m"])
    # Kolmogorov and Smirnov: 1.63 / sqrt(n) is passed by one fair sample in a hundred.
    assert np.abs(sizes / 4000 - np.arange(1, 401) / 400).max() < 1.63 / 20


def test_memory_follows_what_is_kept_and_not_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinning, "_LEAST_HELD", 1000)
    sample = Sample(50)
    rng = np.random.default_rng(0)
    for _ in range(200):
        strata, cases = rng.integers(5, size=500).astype(np.uint64), rng.integers(2**62, size=500).astype(np.uint64)
        numbers = sample.numbers(cases)
        good = sample.may_keep(strata, numbers)
        sample.add(strata[good], numbers[good], cases[good], {"case": cases[good]})
        assert sample._candidates <= 1500
    rows, case = sample.rows()
    assert len(rows["case"]) == len(set(rows["case"].tolist())) == len(case) == 50
    # One case measured without end.
    sample = Sample(50)
    for draw in range(100):
        one = np.zeros(500, dtype=np.uint64)
        sample.add(
            one, sample.numbers(one), rng.integers(2**62, size=500).astype(np.uint64), {"draw": np.full(500, draw)}
        )
        assert sample._candidates <= 1500
    rows, case = sample.rows()
    assert (len(case), case.max()) == (thinning.MOST_REPEATS, 0)
    # Drawn from all of them, not the first that came.
    assert len(set(rows["draw"].tolist())) > 30


@pytest.mark.parametrize(
    ("counts", "most", "share"), [([10], 5, 5), ([1, 10, 10], 11, 5), ([3, 3], 10, 3), ([9, 9, 9], 2, 1), ([], 4, 1)]
)
def test_shares(counts: list[int], most: int, share: int) -> None:
    assert equal_share(np.array(counts, dtype=np.intp), most) == share


def test_medians_of_groups_agree_with_numpy() -> None:
    rng = np.random.default_rng(3)
    group = np.append(np.arange(40), rng.integers(40, size=300))
    values = np.append(rng.normal(size=40), np.where(rng.random(300) < 0.3, np.nan, rng.normal(size=300)))
    expected = [np.nanmedian(values[group == i]) for i in range(40)]
    assert group_medians(values, group) == pytest.approx(expected)
    values[group == 7] = np.nan
    expected[7] = np.nan
    assert group_medians(values, group) == pytest.approx(expected, nan_ok=True)
    assert group_medians(np.empty(0), np.empty(0, dtype=np.intp)).shape == (0,)


def _store(tmp_path: Path, rows: Sequence[Measurement], files: int = 1) -> Store:
    store = Store(tmp_path / "store", lower_bounds=lambda specs, devices: np.full(len(specs), np.nan))
    for part in range(files):
        store.append(list(rows[part::files]), Provenance("b", {"host": "a"}))
    return store


def test_a_store_gives_what_reading_it_whole_gives(tmp_path: Path) -> None:
    cpu = KernelSpec.of("softmax", "fp32", rows=4, cols=4, threads=None)
    rows = [_row(m, latency_s=m * 1e-5, power_w=50.0 + m) for m in range(1, 30)]
    rows += [_row(40, status="timeout", latency_s=None), _row(41, device="h200", impl="  spaced ")]
    on_cpu = Measurement(spec=cpu, device="amd-epyc-9005-vm-2c", status="ok", block="b", latency_s=1e-5)
    store = _store(tmp_path, [*rows, on_cpu], 3)
    messages: list[tuple[str, int, int]] = []
    gemm, softmax = labelled_store(store, progress=lambda *one: messages.append(one))
    assert messages == [("reading gemm", 0, 2), ("reading softmax", 1, 2)]
    assert _set(gemm) == _set(labelled_table(store.read("gemm"), "gemm"))
    assert "nvidia-h200-sxm-141gb" in gemm.cases.device
    # All cores of the machine, as a number.
    assert softmax.cases.threads.tolist() == [2.0]
    assert [len(one) for one in labelled_store(store, families=["gemm"], devices=[A100])] == [29]
    assert labelled_store(store, devices=["nobody"]) == []


def test_what_a_store_is_refused_for(tmp_path: Path) -> None:
    store = _store(tmp_path, [_row(1, device="unheard-of")])
    with pytest.raises(SpecError, match="unheard-of"):
        labelled_store(store)
    with pytest.raises(SpecError, match="most_rows is 0"):
        labelled_store(store, most_rows=0)
    with pytest.raises(SpecError, match="gem"):
        labelled_store(store, families=["gem"])


def test_names_of_cases_of_any_form_are_told_apart() -> None:
    table = to_table([_row(m, latency_s=m * 1e-3) for m in (1, 2, 3, 4)], "gemm").select(
        needed_columns(get_family("gemm"))
    )
    place = table.schema.get_field_index("case_id")
    odd = table.set_column(place, "case_id", pa.array(["a", "b", "b", None]))
    result = labelled_batches("gemm", odd.to_batches())
    assert sorted(result.latency_s.tolist()) == pytest.approx([1e-3, 2.5e-3, 4e-3])
    whole = labelled_batches("gemm", table.slice(1, 2).to_batches())
    assert _set(whole) == _set(labelled_batches("gemm", table.take([1, 2]).to_batches()))


def test_training_from_a_store_alone_and_beside_a_file(
    tmp_path: Path, made_up: Callable[..., LabelledCases], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelcast.models.training.training import train_files

    rows = made_up(150)
    cases = rows.cases
    measured = [
        Measurement(
            spec=KernelSpec.of("gemm", "fp16", impl=str(cases.impl[i]), **{n: int(c[i]) for n, c in cases.sizes.items()}),
            device=str(cases.device[i]), status="ok", block="b", latency_s=float(rows.latency_s[i]),
        )
        for i in range(len(rows))
    ]  # fmt: skip
    store = _store(tmp_path, measured)
    report = train_files([], out=tmp_path / "a", regressor="roofline", store=store, most_rows=100)
    assert report.families["gemm"]["rows"] == 100
    form = tmp_path / "mine.csv"
    lines = ["family,device,dtype,m,n,k,latency_s", *(f"gemm,{T4},fp16,{m},64,64,{m * 1e-6}" for m in range(1, 61))]
    form.write_text("\n".join(lines) + "\n")
    report = train_files([form], out=tmp_path / "b", regressor="roofline", store=store, most_rows=100)
    assert report.families["gemm"]["rows"] == 160
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    assert manifest["store"] == {"name": store.location.name, "most_rows": 100, "rows": {"gemm": 100}}
    with pytest.raises(SpecError, match="has no measured row of softmax"):
        train_files([], out=tmp_path / "c", store=store, families=["softmax"])
