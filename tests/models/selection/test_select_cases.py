"""What to measure tonight: planted cases whose right choice is known, and every way in which there is little to choose from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kernelcast.features.batch.cases import Cases
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.family_model.artifact_files import ArtifactError
from kernelcast.models.predict.prediction import TargetColumns
from kernelcast.models.selection import offers as choosing_offer
from kernelcast.models.selection import select_cases as choosing
from kernelcast.models.selection.select_cases import RULE, SelectedCase, choose
from kernelcast.models.selection.suggest import LONGEST_S

A100, T4, CPU = "nvidia-a100-sxm-80gb", "nvidia-t4", "amd-epyc-9005-vm-2c"
IMPL = "vllm-0.24.0"
SECONDS_OF_ONE = 0.062
"""About what measuring a short kernel on a GPU costs."""


def gemm(m: int, n: int, k: int, dtype: str = "fp16", **words: Any) -> KernelSpec:
    return KernelSpec.of("gemm", dtype, **{"impl": IMPL, **words}, m=m, n=n, k=k)


def gemms(count: int, seed: int = 1, **words: Any) -> list[KernelSpec]:
    sizes = (2 ** np.random.default_rng(seed).uniform(5, 12, (count, 3))).astype(int).tolist()
    return [gemm(m, n, k, **words) for m, n, k in sizes]


class Model:
    """A predictor that answers as planted."""

    def __init__(self, latency_s: Callable[[Cases], Any], width: Callable[[Cases], Any], regime: str = "seen") -> None:
        self.families = ("gemm",)
        self._latency_s, self._width, self._regime = latency_s, width, regime

    def predict_cases(self, cases: Cases, *, coverage: float) -> Any:
        value = np.broadcast_to(np.asarray(self._latency_s(cases), dtype=float), (len(cases),))
        half = np.broadcast_to(np.asarray(self._width(cases), dtype=float), (len(cases),))
        column = TargetColumns(value, value * np.exp(-half), value * np.exp(half))
        return SimpleNamespace(targets={"latency_s": column}, regimes=np.full(len(cases), self._regime))


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[SelectedCase]]:
    """`choose` with a planted model on an A100 where 40 rows are measured already, without repeats."""

    def chosen(
        candidates: Sequence[KernelSpec],
        *,
        latency_s: Any = 1e-5,
        width: Any = 0.1,
        regime: str = "seen",
        **options: Any,
    ) -> list[SelectedCase]:
        as_function = [value if callable(value) else (lambda cases, it=value: it) for value in (latency_s, width)]
        monkeypatch.setattr(choosing_offer, "load_predictor", lambda path, devices: Model(*as_function, regime))
        raw = {"seconds": 20 * SECONDS_OF_ONE, "measured": gemms(40, seed=9), "repeats": 0.0}
        return choose(Path("planted"), A100, candidates, **{**raw, **options})

    return chosen


def test_chosen_where_the_model_is_unsure(planted: Any) -> None:
    unsure = {"width": lambda cases: np.where(cases.sizes["m"] > 1024, 0.8, 0.04)}
    shares = {
        rows: np.mean([item.spec["m"] > 1024 for item in planted(gemms(400), measured=gemms(rows, seed=9), **unsure)])
        for rows in (40, 800)
    }
    assert shares[800] > 0.8
    # What a model learned of its errors from few rows is believed less.
    assert shares[40] < shares[800]
    sure = planted(gemms(400), measured=gemms(800, seed=9))
    assert np.mean([item.spec["m"] > 1024 for item in sure]) < 0.6
    assert {item.why for item in sure} == {"informative"}


@pytest.mark.parametrize("cheap_m", [64, 4096])
def test_of_equally_informative_cases_the_cheap_one(planted: Any, cheap_m: int) -> None:
    pair = [gemm(64, 4096, 256), gemm(4096, 64, 256)]
    latency_s = lambda cases: np.where(cases.sizes["m"] == cheap_m, 1e-5, 0.2)  # noqa: E731
    found = planted(pair, latency_s=latency_s, measured=[], seconds=100.0)
    assert [item.spec["m"] for item in found] == [cheap_m, 64 * 4096 // cheap_m]
    assert found[0].measuring_s < found[1].measuring_s
    assert found[0].worth > found[1].worth


def test_what_first_calls_cost_is_minded() -> None:
    candidates = [gemm(64, 4096, 256, impl="quick"), gemm(64, 4096, 256, impl="slow")]
    known = {("gemm", "slow"): 30.0, ("gemm", "quick"): 0.001}
    assert [item.spec.impl for item in choose(None, A100, candidates, seconds=99.0, first_call_s=known)] == [
        "quick",
        "slow",
    ]
    assert choose(None, A100, candidates, seconds=99.0, first_call_s=known)[1].measuring_s > 30.0


@pytest.mark.parametrize("at_a_time", [300, 2])
def test_of_near_duplicates_one(planted: Any, monkeypatch: pytest.MonkeyPatch, at_a_time: int) -> None:
    monkeypatch.setattr(choosing, "_STEPS", at_a_time)
    alike = [gemm(1000 + i, 1000, 1000) for i in range(20)]
    found = planted([*alike, *gemms(100)], width=0.5, seconds=12 * SECONDS_OF_ONE)
    assert len(found) >= 10
    assert sum(item.spec in set(alike) for item in found) <= 2


def test_without_an_update_near_duplicates_are_chosen(planted: Any) -> None:
    alike = [gemm(1000 + i, 1000, 1000) for i in range(40)]
    wide = {"width": lambda cases: np.where((cases.sizes["n"] == 1000) & (cases.sizes["k"] == 1000), 0.2, 0.1)}
    both = [planted([*alike, *gemms(40)], rule=rule, **wide) for rule in (RULE, replace(RULE, updated=False))]
    ours, plain = (sum(item.spec in set(alike) for item in found[:12]) for found in both)
    assert ours < plain


def test_measured_cases_are_never_chosen() -> None:
    candidates = gemms(60)
    found = choose(None, A100, candidates * 2, seconds=60.0, measured=candidates[:30], repeats=0.0)
    assert sorted(map(str, (item.spec for item in found))) == sorted(map(str, candidates[30:]))


def test_all_cores_of_a_cpu_are_the_same_case() -> None:
    unsaid, said = (gemm(64, 64, 64, "fp32", impl="torch", threads=threads) for threads in (None, 2))
    assert choose(None, CPU, [unsaid], seconds=5.0, measured=[said], repeats=0.0) == []
    assert len(choose(None, CPU, [unsaid, said], seconds=5.0)) == 1


def test_usage_pulls(planted: Any) -> None:
    usage = {gemm(2048, 2048, 2048, impl=""): 7.0, gemm(2048, 4096, 2048, impl=""): 3.0}

    def far(found: Sequence[SelectedCase]) -> float:
        return float(np.mean([abs(math.log2(item.spec["m"] * item.spec["k"]) - 22.0) for item in found]))

    pulled, plain = planted(gemms(300), usage=usage), planted(gemms(300))
    assert far(pulled) < far(plain)
    assert {item.why for item in pulled} == {"usage", "informative"}
    # A kernel nobody here can run, a count that is none: nothing changes.
    strange = {KernelSpec.of("softmax", "fp16", rows=8, cols=8): 1.0, gemm(9, 9, 9): math.nan, gemm(9, 9, 8): -1.0}
    assert planted(gemms(300), usage=strange) == plain


def test_usage_moves_seconds_between_families() -> None:
    candidates = [*gemms(60), *(KernelSpec.of("softmax", "fp16", impl="torch", rows=2**i, cols=j) for i in range(12)
                                for j in (100, 1000, 5000, 20000))]  # fmt: skip
    options: dict[str, Any] = {"seconds": 30 * SECONDS_OF_ONE}
    query = {KernelSpec.of("softmax", "fp16", rows=64, cols=5000): 1.0}
    plain, pulled = (
        Counter(item.spec.family for item in choose(None, A100, candidates, usage=usage, **options))
        for usage in (None, query)
    )
    assert set(plain) == {"gemm", "softmax"}
    assert pulled["softmax"] > plain["softmax"]


@pytest.mark.parametrize(
    ("device", "candidates"),
    [
        (A100, [KernelSpec.of("layernorm", "fp16", impl="torch", rows=2**i, cols=2**j) for i in range(5) for j in range(5)]),
        (CPU, gemms(20, dtype="fp32")),
        ("nvidia-p100-pcie-16gb", gemms(20)),
    ],
    ids=["a family the model does not know", "a kind of device", "a device"],
)  # fmt: skip
def test_what_the_model_does_not_know_is_chosen_to_fill_the_space(
    model_dir: Path, device: str, candidates: list[KernelSpec]
) -> None:
    found = choose(model_dir, device, candidates, seconds=2.0, measured=gemms(30, seed=5))
    assert len([item for item in found if item.why == "space-filling"]) >= 5
    assert {item.why for item in found} <= {"space-filling", "repeat"}
    assert all(item.latency_s > 0 and item.measuring_s > item.latency_s for item in found)


def test_a_trained_model_says_what_is_informative(model_dir: Path) -> None:
    found = choose(model_dir, T4, gemms(100), seconds=2.0, measured=gemms(50, seed=5), repeats=0.0)
    assert {item.why for item in found} == {"informative"}
    assert [item.worth for item in found] == sorted((item.worth for item in found), reverse=True)


def test_strata_with_few_rows_come_first(planted: Any) -> None:
    new = gemms(60, seed=3, impl="brand-new")
    found = planted([*gemms(200), *new], width=2.0, seconds=60 * SECONDS_OF_ONE)
    # Less than half of what a common one would get, and then what is worth most, in turn.
    assert [item.spec.impl for item in found[:2]] == ["brand-new"] * 2
    assert {item.spec.impl for item in found[2:8]} == {"brand-new", IMPL}
    assert {(item.spec.impl, item.why) for item in found} == {("brand-new", "space-filling"), (IMPL, "informative")}


def test_rare_strata_do_not_take_a_night() -> None:
    rare = [spec for i in range(30) for spec in gemms(4, seed=50 + i, impl=f"rare-{i}")]
    found = choose(None, A100, [*gemms(400), *rare], seconds=60 * SECONDS_OF_ONE)
    assert {f"rare-{i}" for i in range(30)} < {item.spec.impl for item in found[:33]}
    assert sum(item.spec.impl == IMPL for item in found) > 15


def test_equal_arguments_give_equal_choices(planted: Any) -> None:
    candidates, options = gemms(200), {"repeats": 0.2}
    assert planted(candidates, **options) == planted(candidates, **options)
    assert planted(candidates, **options) != planted(candidates, seed=1, **options)


@pytest.mark.parametrize("seconds", [0.01, 0.5, 3.0])
@pytest.mark.parametrize("repeats", [0.0, 0.3])
def test_the_seconds_are_spent_within_one_case(planted: Any, seconds: float, repeats: float) -> None:
    # Cases that cost from 0.06 to some 10 s.
    found = planted(
        gemms(150), seconds=seconds, repeats=repeats, latency_s=lambda cases: cases.sizes["m"] ** 2 * 1.5e-8
    )
    spent = [item.measuring_s for item in found]
    assert sum(spent) >= seconds
    last = [item for item in found if item.why != "repeat"][-1]
    assert sum(spent) - last.measuring_s < seconds


def test_a_share_is_measured_again() -> None:
    measured = [*gemms(60), *gemms(60, impl="vllm-0.22.0"), *gemms(60, seed=4, dtype="fp32")]
    found = choose(None, A100, gemms(300, seed=2), seconds=10.0, measured=measured, repeats=0.2)
    again = [item for item in found if item.why == "repeat"]
    assert found[-len(again) :] == again
    assert {item.spec for item in again} <= set(measured)
    assert len({item.spec for item in again}) == len(again)
    assert 1.8 < sum(item.measuring_s for item in again) <= 2.0
    counts = Counter((item.spec.impl, item.spec.dtype) for item in again)
    assert len(counts) == 3
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize(
    ("candidates", "measured", "seconds", "whys"),
    [
        ([], [], 10.0, []),
        ([], gemms(3), 10.0, ["repeat"] * 3),
        (gemms(3), gemms(3), 10.0, ["repeat"] * 3),
        (gemms(9), [], 0.0, []),
        (gemms(1), [], 10.0, ["space-filling"]),
        (gemms(1), gemms(1, seed=2), 10.0, ["space-filling", "repeat"]),
        ([gemm(64, 64, 64)] * 3, [], 10.0, ["space-filling"]),
    ],
    ids=["none", "none, some measured", "all measured", "no time", "one", "one and one", "the same thrice"],
)
def test_little_to_choose_from(
    candidates: list[KernelSpec], measured: list[KernelSpec], seconds: float, whys: list[str]
) -> None:
    assert [item.why for item in choose(None, A100, candidates, seconds=seconds, measured=measured)] == whys


@pytest.mark.parametrize("width", [math.nan, math.inf, 0.0])
def test_widths_that_are_none(planted: Any, width: float) -> None:
    found = planted(gemms(80), width=lambda cases: np.where(cases.sizes["m"] > 300, width, 0.1))
    assert len(found) > 10
    assert all(math.isfinite(item.worth) and item.worth > 0 for item in found)
    assert len({item.spec for item in found}) == len(found)
    nothing = planted(gemms(80), width=width)
    assert {item.why for item in nothing} == {"space-filling"}


def test_a_latency_that_is_none_is_guessed(planted: Any) -> None:
    found = planted(gemms(30), latency_s=math.nan, width=0.1)
    assert found
    assert all(math.isfinite(item.measuring_s) and item.latency_s >= 5e-6 for item in found)


def test_what_cannot_or_should_not_be_run_is_left_out(planted: Any) -> None:
    too_large, fine = gemm(2**19, 2**19, 64), gemm(64, 64, 64)
    assert [item.spec for item in choose(None, T4, [too_large, fine], seconds=9.0)] == [fine]
    assert planted(gemms(30), latency_s=1.01 * LONGEST_S) == []
    assert choose(None, T4, [fine], seconds=9.0, measured=[too_large], usage={too_large: 1.0})[0].spec == fine


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seconds": -1.0}, "seconds must be 0 or more, got -1.0"),
        ({"seconds": math.nan}, "seconds must be 0 or more, got nan"),
        ({"seconds": math.inf}, "seconds must be 0 or more, got inf"),
        ({"repeats": 1.5}, "repeats must be between 0 and 1, got 1.5"),
        ({"repeats": -0.1}, "repeats must be between 0 and 1, got -0.1"),
        ({"device": "no-such-card"}, "no-such-card"),
    ],
)
def test_what_is_refused(options: dict[str, Any], said: str) -> None:
    raw: dict[str, Any] = {"device": A100, "seconds": 1.0, **options}
    with pytest.raises(SpecError, match=said):
        choose(None, raw.pop("device"), gemms(2), **raw)


def test_a_damaged_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"has no manifest\.json"):
        choose(tmp_path, A100, gemms(2), seconds=1.0)


def test_progress_is_told() -> None:
    messages: list[tuple[str, int, int]] = []
    choose(None, A100, gemms(2), seconds=1.0, progress=lambda *step: messages.append(step))
    assert messages == [("looking at gemm", 0, 1), ("choosing", 1, 1)]
