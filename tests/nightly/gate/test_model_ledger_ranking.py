"""Past models in the order in which they may challenge again: same software, then recent error, then nearness in time."""

from __future__ import annotations

from kernelcast.nightly.gate.model_ledger import ModelEntry, RecentError, excess_errors, ranked

T4 = "nvidia-t4"


def night(day: int) -> str:
    return f"202611{day:02d}T220000Z-home"


def error(day: int, pct: float, n: int = 100) -> RecentError:
    return RecentError(night(day), T4, "gemm", n, pct)


def entry(version: str, day: int, *errors: RecentError, software: str = "driver=1") -> ModelEntry:
    return ModelEntry(
        version, f"/models/{version}", "retrained", night(day), "", software={T4: software}, errors=errors
    )


def order(models: list[ModelEntry], software: str = "driver=1") -> list[str]:
    return [item.version for item in ranked(models, night(20), {T4: software})]


def test_models_of_the_same_software_come_first_then_the_least_wrong() -> None:
    models = [
        entry("old", 2, error(19, 30.0)),
        entry("new", 17, error(19, 10.0), software="driver=2"),
        entry("newer", 18, error(19, 15.0), software="driver=2"),
    ]
    assert order(models) == ["old", "new", "newer"]
    assert order(models, "driver=2") == ["new", "newer", "old"]
    assert order(models, "") == ["new", "newer", "old"]  # software is not known: by error alone
    assert order([]) == []


def test_a_handful_of_lucky_rows_is_not_believed() -> None:
    lucky, steady = (
        entry("lucky", 5, error(19, 5.0, n=2)),
        entry("steady", 5, *(error(day, 6.0) for day in (17, 18, 19))),
    )
    bad = entry("bad", 5, *(error(day, 20.0) for day in (17, 18, 19)))
    assert order([lucky, bad, steady]) == ["steady", "lucky", "bad"]


def test_a_hard_night_is_no_fault_of_the_models_that_were_there() -> None:
    # Both were asked on night 19; only the older one also on night 10, when everything was wrong.
    older = entry("older", 5, error(10, 80.0), error(19, 10.0))
    younger = entry("younger", 15, error(19, 12.0))
    excess = excess_errors([older, younger], night(20))
    assert excess["older"] < 0 < excess["younger"]
