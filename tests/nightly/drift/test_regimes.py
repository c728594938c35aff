"""Regimes: a driver that moved kernels opens one, noise does not, a change back returns, and rows go where they belong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import KernelSpec
from kernelcast.nightly.drift.bridge import BridgeRule, bridge_cases, judge_bridge, judge_steps, rows_of, rows_under
from kernelcast.nightly.drift.ledger import Ledger
from kernelcast.nightly.drift.regimes import Settled, bridges_wanted, founded, founding_software, settle, settle_history
from kernelcast.nightly.drift.training_rows import rows_for_training

Tables = Mapping[str, pa.Table]
Stored = Callable[..., dict[str, pa.Table]]

DEVICE = "nvidia-h200-sxm-141gb"
OLD, NEW = "driver=550.1; torch=2.6", "driver=560.2; torch=2.6"
BEFORE, LATER, LATEST = "2026-10-01T00:00:00+00:00", "2026-11-01T00:00:00+00:00", "2026-12-01T00:00:00+00:00"
_SOME = [KernelSpec.of("gemm", "fp16", impl="torch", m=64 + 16 * i, n=128 + 32 * (i * 7 % 23), k=64 * (1 + i % 11))
         for i in range(20)]  # fmt: skip
SLOWER = {"gemm/torch": 0.077, "gemm/triton": 0.077}


def _night(ledger: Ledger, software: str, when: str, rows: Tables, tonight: Tables, **more: Any) -> Settled:
    """What the night does: bridges to all regimes it is asked for, and settles."""
    bridges = {name: judge_bridge(rows_of(rows, ledger, name), tonight, noise=0.004)
               for name in bridges_wanted(ledger, software, **more)}  # fmt: skip
    return settle(ledger, software, when, bridges, **more)


def _ledger() -> Ledger:
    return founded(Ledger(DEVICE), OLD)


def test_the_first_night_opens_the_first_regime() -> None:
    done = settle(Ledger(DEVICE), OLD, BEFORE, {})
    assert (done.state, done.regime) == ("first", "r1")
    assert done.ledger.regime_of(OLD, None) == "r1"
    assert settle(done.ledger, OLD, LATER, {}).state == "known"
    assert settle(done.ledger, OLD, LATER, {}).findings == ()


def test_a_driver_that_moves_gemm_only_opens_a_regime_and_moves_gemm_rows_alone(stored: Stored, added: Any) -> None:
    old = stored(OLD, BEFORE, per_group=30)
    tonight = stored(NEW, LATER, shifts=SLOWER, seed=1)
    done = _night(_ledger(), NEW, LATER, old, tonight)
    assert (done.state, done.regime) == ("opened", "r2")
    assert done.ledger.current is not None
    shifts = done.ledger.current.shifts
    assert {key: shift.verdict for key, shift in shifts.items()} == {
        "gemm/torch": "shifted", "gemm/triton": "shifted", "softmax/torch": "same"}  # fmt: skip
    said = done.findings[0].said
    assert "driver 550.1 -> 560.2" in said
    assert "gemm/torch by +8" in said or "gemm/torch by +7" in said
    assert "Regime r2 was opened" in said
    rows = added(old, tonight)
    gemm, counts = rows_for_training(rows["gemm"], "gemm", done.ledger, DEVICE)
    assert (counts.as_they_are, counts.moved, counts.left_out) == (40, 60, {})
    moved = np.array(gemm["latency_s"].to_pylist())[:60] / np.array(old["gemm"]["latency_s"].to_pylist())
    assert np.log(moved) == pytest.approx(0.077, abs=0.004)
    softmax, counts = rows_for_training(rows["softmax"], "softmax", done.ledger, DEVICE)
    assert (counts.as_they_are, counts.moved) == (50, 0)
    assert softmax["latency_s"].to_pylist()[:30] == old["softmax"]["latency_s"].to_pylist()


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_a_night_s_own_offset_join(seed: int, stored: Stored) -> None:
    tonight = stored(NEW, LATER, noise=0.012, offset=0.005, seed=10 + seed)
    done = _night(_ledger(), NEW, LATER, stored(OLD, BEFORE, noise=0.012, seed=seed, per_group=30), tonight)
    assert (done.state, done.regime) == ("joined", "r1")
    assert "joined regime r1" in done.findings[0].said
    assert done.ledger.regime_of(NEW, LATER) == "r1"
    assert len(done.ledger.regimes) == 1


def test_rows_measured_in_both_overlap_partially(stored: Stored, added: Any) -> None:
    """Half of tonight's cases were measured before; those alone are the bridge, and the rest is learned from as it is."""
    old = stored(OLD, BEFORE, per_group=24)
    tonight = stored(NEW, LATER, shifts=SLOWER, seed=1, per_group=48)
    done = _night(_ledger(), NEW, LATER, old, tonight)
    assert done.ledger.current is not None
    assert {shift.n for shift in done.ledger.current.shifts.values()} == {24}
    _, counts = rows_for_training(added(old, tonight)["gemm"], "gemm", done.ledger, DEVICE)
    assert (counts.as_they_are, counts.moved) == (96, 48)


def test_a_change_and_a_change_back_return_to_the_first_regime(stored: Stored, added: Any) -> None:
    old, tonight = stored(OLD, BEFORE), stored(NEW, LATER, shifts=SLOWER, seed=1)
    opened = _night(_ledger(), NEW, LATER, old, tonight)
    rows = added(old, tonight)
    back = _night(opened.ledger, OLD, LATEST, rows, stored(OLD, LATEST, seed=2))
    assert (back.state, back.regime, len(back.ledger.regimes)) == ("returned", "r1", 2)
    assert "returned to r1" in back.findings[0].said
    _, counts = rows_for_training(rows["gemm"], "gemm", back.ledger, DEVICE)
    # Rows of r1 as they are, rows of r2 moved back.
    assert (counts.as_they_are, counts.moved) == (40, 40)
    table, _ = rows_for_training(rows["gemm"], "gemm", back.ledger, DEVICE)
    both = np.log(np.array(table["latency_s"].to_pylist()))
    assert np.median(both[40:] - both[:40]) == pytest.approx(0.0, abs=0.005)


def test_a_driver_that_mends_what_the_last_one_broke_returns_too(stored: Stored, added: Any) -> None:
    old, tonight = stored(OLD, BEFORE), stored(NEW, LATER, shifts=SLOWER, seed=1)
    opened = _night(_ledger(), NEW, LATER, old, tonight)
    third = "driver=570.9; torch=2.6"
    done = _night(opened.ledger, third, LATEST, added(old, tonight), stored(third, LATEST, seed=3))
    assert (done.state, done.regime) == ("returned", "r1")


@pytest.mark.parametrize("per_group", [0, 3])
def test_a_bridge_too_small_decides_nothing_and_its_rows_wait(per_group: int, stored: Stored, added: Any) -> None:
    old, tonight = stored(OLD, BEFORE), stored(NEW, LATER, shifts=SLOWER, seed=1, per_group=per_group)
    done = _night(_ledger(), NEW, LATER, old, tonight)
    assert (done.state, done.regime) == ("undecided", None)
    assert done.ledger == _ledger()
    assert f"({3 * per_group})" in done.findings[0].said
    _, counts = rows_for_training(added(old, tonight).get("gemm"), "gemm", done.ledger, DEVICE)
    assert counts.as_they_are == 40
    assert counts.left_out == ({"software nobody has decided about yet": 2 * per_group} if per_group else {})


def test_a_group_too_small_is_left_out_of_an_opened_regime(stored: Stored, added: Any) -> None:
    old = stored(OLD, BEFORE)
    tonight = {"gemm": stored(NEW, LATER, shifts=SLOWER, seed=1)["gemm"], **stored(NEW, LATER, seed=1, per_group=2)}
    tonight["gemm"] = stored(NEW, LATER, shifts=SLOWER, seed=1)["gemm"]
    done = _night(_ledger(), NEW, LATER, old, tonight)
    assert done.state == "opened"
    assert "Nothing can be said of softmax/torch" in done.findings[0].said
    _, counts = rows_for_training(added(old, tonight)["softmax"], "softmax", done.ledger, DEVICE)
    assert counts.left_out == {"r1, softmax/torch: the shift is not known": 20}
    assert counts.as_they_are == 2


def test_a_shift_known_too_widely_leaves_rows_out(stored: Stored, added: Any) -> None:
    old = stored(OLD, BEFORE, noise=0.1)
    tonight = stored(NEW, LATER, shifts={"gemm/torch": 0.6}, noise=0.1, seed=1)
    done = _night(_ledger(), NEW, LATER, old, tonight)
    assert done.state == "opened"
    _, counts = rows_for_training(added(old, tonight)["gemm"], "gemm", done.ledger, DEVICE)
    assert counts.left_out["r1, gemm/torch: the shift is too wide"] == 20


def test_a_confirmed_drift_opens_a_regime_of_the_same_software(stored: Stored, added: Any) -> None:
    old, tonight = stored(OLD, BEFORE), stored(OLD, LATER, shifts={**SLOWER, "softmax/torch": 0.08}, seed=1)
    assert settle(_ledger(), OLD, LATER, {}).state == "known"
    done = _night(_ledger(), OLD, LATER, old, tonight, drifted=True)
    assert (done.state, done.regime) == ("opened", "r2")
    assert done.findings[0].level == "needs-person"
    assert done.ledger.regime_of(OLD, BEFORE) == "r1"
    assert done.ledger.regime_of(OLD, "20261101T000000Z-every-night") == "r2"
    _, counts = rows_for_training(added(old, tonight)["gemm"], "gemm", done.ledger, DEVICE)
    assert (counts.as_they_are, counts.moved) == (40, 40)
    calm = _night(_ledger(), OLD, LATER, old, stored(OLD, LATER, seed=3), drifted=True)
    assert (calm.state, calm.ledger) == ("joined", _ledger())
    assert "are what they were" in calm.findings[0].said


def test_other_devices_rows_and_devices_without_regimes_stay_as_they_are(stored: Stored) -> None:
    table = stored(NEW, LATER)["gemm"]
    same, counts = rows_for_training(table, "gemm", Ledger(DEVICE), DEVICE)
    assert (same.equals(table), counts.as_they_are) == (True, 40)
    same, counts = rows_for_training(table, "gemm", founded(Ledger("nvidia-t4"), OLD), "nvidia-t4")
    assert (same.equals(table), counts.as_they_are) == (True, 0)


def test_the_bridge_takes_every_group_over_short_and_long(stored: Stored) -> None:
    rows = stored(OLD, BEFORE, per_group=60)
    chosen = bridge_cases(rows, _ledger(), DEVICE, 36)
    groups = [f"{spec.family}/{spec.impl}" for spec in chosen]
    assert {group: groups.count(group) for group in set(groups)} == {
        "gemm/torch": 12, "gemm/triton": 12, "softmax/torch": 12}  # fmt: skip
    assert len({spec.case_id for spec in chosen}) == 36
    assert chosen == bridge_cases(rows, _ledger(), DEVICE, 36)
    longest = sorted(rows["softmax"]["latency_s"].to_pylist())[40]
    times = dict(zip(rows["softmax"]["case_id"].to_pylist(), rows["softmax"]["latency_s"].to_pylist(), strict=True))
    long = [spec for spec in chosen if spec.family == "softmax" and times[spec.case_id] >= longest]
    assert 2 <= len(long) <= 6
    # Too few for all groups: one of them is done properly.
    assert len({(spec.family, spec.impl) for spec in bridge_cases(rows, _ledger(), DEVICE, 14)}) == 1


def test_the_bridge_leaves_out_other_devices_software_and_noisy_rows(stored: Stored) -> None:
    rows = stored(OLD, BEFORE)
    noisy = rows["softmax"].set_column(rows["softmax"].column_names.index("noisy"), "noisy", pa.array([True] * 20))
    chosen = bridge_cases({**rows, "softmax": noisy}, _ledger(), DEVICE, 100)
    assert {spec.family for spec in chosen} == {"gemm"}
    assert bridge_cases(rows, _ledger(), "nvidia-t4", 10) == []
    assert bridge_cases(stored(NEW, LATER), _ledger(), DEVICE, 10) == []
    assert bridge_cases(rows, Ledger(DEVICE), DEVICE, 10) == []
    with pytest.raises(SpecError, match="has no regime 'r7'; regimes: r1"):
        bridge_cases(rows, _ledger(), DEVICE, 10, regime="r7")


def test_false_openings_are_rare(stored: Stored) -> None:
    """Bridges of 60 groups of noise alone, 200 times: at most the stated 5 % say that something moved."""
    rng = np.random.default_rng(0)
    level = 1 - BridgeRule().false_alarms / 60
    verdicts = [
        {judge_steps(0.15 * rng.standard_t(3, 24), level, 0.003, BridgeRule()).verdict for _ in range(60)}
        for _ in range(200)
    ]
    assert sum("shifted" in some for some in verdicts) <= 200 * 0.05 + 7


def test_rows_of_several_softwares_are_settled_by_cases_in_both(stored: Stored, added: Any) -> None:
    mended, strange = "driver=550.2; torch=2.6", "driver=470.1; torch=2.6"
    rows = added(stored(OLD, BEFORE), stored(mended, BEFORE, seed=1), stored(NEW, BEFORE, shifts=SLOWER, seed=2),
                 stored(strange, BEFORE, per_group=2, seed=3))  # fmt: skip
    done = settle_history(_ledger(), rows)
    assert done.ledger.current is not None
    assert done.ledger.current.id == "r1"
    assert [done.ledger.regime_of(word) for word in (OLD, mended, NEW, strange)] == ["r1", "r1", "r2", None]
    assert "3 other softwares: 1 ran the same cases alike" in done.findings[0].said
    assert "6 rows of 1 cannot be compared" in done.findings[0].said
    table, counts = rows_for_training(rows["gemm"], "gemm", done.ledger, DEVICE)
    assert (counts.as_they_are, counts.moved) == (80, 40)
    assert counts.left_out == {"software nobody has decided about yet": 4}
    both = np.log(np.array(table["latency_s"].to_pylist()))
    assert np.median(both[80:] - both[:40]) == pytest.approx(0.0, abs=0.005)
    assert Ledger.from_json(done.ledger.to_json()) == done.ledger
    again = settle_history(done.ledger, {"gemm": rows["gemm"].slice(0, 100)})
    assert (again.state, again.findings) == ("known", ())
    assert settle_history(Ledger(DEVICE), rows).regime is None


def test_cases_of_waiting_nights_are_judged_together(stored: Stored, added: Any) -> None:
    old = stored(OLD, BEFORE)
    nights = added(*(stored(NEW, LATER, shifts=SLOWER, seed=i, specs=_SOME[i::4]) for i in range(4)))
    one = judge_bridge(old, stored(NEW, LATER, shifts=SLOWER, seed=0, specs=_SOME[0::4]), noise=0.004)
    assert one.verdict == "too few"
    assert judge_bridge(old, rows_under(added(old, nights), NEW), noise=0.004).verdict == "shifted"


def test_the_founding_software_is_that_of_most_rows() -> None:
    assert founding_software([OLD, NEW, NEW]) == NEW
    assert founding_software([]) is None
