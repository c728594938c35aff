"""The ledger on disk: written in one piece, read back the same, and a damaged file is kept, never lost."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from kernelcast.datasets.store import StoreError
from kernelcast.features.errors import SpecError
from kernelcast.nightly.drift.ledger import (
    Ledger,
    Regime,
    Shift,
    Span,
    ledger_path,
    read_ledger,
    seconds_of,
    write_ledger,
)

DEVICE = "nvidia-h200-sxm-141gb"


def _shift(log_ratio: float, verdict: str = "shifted", half: float = 0.01) -> Shift:
    return Shift(log_ratio, log_ratio - half, log_ratio + half, 20, verdict)  # type: ignore[arg-type]


def _ledger() -> Ledger:
    """r1 <- r2 <- r3, and r4 again against r1."""
    regimes = (
        Regime("r1", "", "a=1", "the first night"),
        Regime("r2", "2026-11-01", "a=2", "bridge", "r1", {"gemm/torch": _shift(0.08), "copy/torch": _shift(0.001, "same")}),
        Regime("r3", "2026-12-01", "a=3", "bridge", "r2", {"gemm/torch": _shift(-0.05), "copy/torch": _shift(0.0, "too few")}),
        Regime("r4", "2027-01-01", "a=4", "bridge", "r1", {"gemm/torch": _shift(0.2)}),
    )  # fmt: skip
    return Ledger(DEVICE, regimes, tuple(Span(one.since, one.software, one.id) for one in regimes))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    assert read_ledger(DEVICE, tmp_path) == (Ledger(DEVICE), [])
    path = write_ledger(_ledger(), tmp_path)
    assert read_ledger(DEVICE, tmp_path) == (_ledger(), [])
    assert path == tmp_path / f"{DEVICE}.json"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_home_is_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    assert write_ledger(_ledger()) == tmp_path / "regimes" / f"{DEVICE}.json"


def test_shifts_add_up_along_the_way_and_turn_around(tmp_path: Path) -> None:
    ledger = _ledger()
    assert ledger.shift("r1", "r1", "gemm/torch") == Shift(0.0, 0.0, 0.0, 0, "same")
    forth, back = ledger.shift("r1", "r3", "gemm/torch"), ledger.shift("r3", "r1", "gemm/torch")
    assert forth is not None
    assert back is not None
    assert (forth.log_ratio, back.log_ratio) == (pytest.approx(0.03), pytest.approx(-0.03))
    assert forth.high - forth.low == pytest.approx(0.04)
    over = ledger.shift("r3", "r4", "gemm/torch")
    assert over is not None
    assert over.log_ratio == pytest.approx(0.17)
    assert ledger.shift("r1", "r2", "copy/torch") == Shift(0.0, 0.0, 0.0, 20, "same")
    assert ledger.shift("r1", "r3", "copy/torch") is None
    assert ledger.shift("r1", "r2", "softmax/torch") is None


def test_a_row_belongs_by_software_and_time() -> None:
    ledger = _ledger().with_span(Span("2027-02-01", "a=2", "r1"))
    assert ledger.regime_of("a=1") == "r1"
    assert ledger.regime_of("a=9") is None
    assert ledger.regime_of("a=2", "2026-12-24T00:00:00+00:00") == "r2"
    assert ledger.regime_of("a=2", "2027-02-24T00:00:00+00:00") == "r1"
    assert ledger.regime_of("a=2") == "r2"
    assert ledger.current is not None
    assert ledger.current.id == "r1"


@pytest.mark.parametrize(
    ("given", "same_as"),
    [("2026-11-01T00:00:00+00:00", "2026-11-01"), ("20261101T000000Z-every-night", "2026-11-01"),
     ("2026-11-01T01:00:00+01:00", "2026-11-01")],
)  # fmt: skip
def test_times_of_rows_and_nights_are_one(given: str, same_as: str) -> None:
    assert seconds_of(given) == seconds_of(same_as)


@pytest.mark.parametrize("given", [None, "", "yesterday", "-", "Z-"])
def test_no_time_is_before_all(given: str | None) -> None:
    assert seconds_of(given) == -math.inf


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "null",
        "[]",
        '"x"',
        '{"format_version": 1}',
        '{"format_version": 9, "regimes": []}',
        "\x00\x01",
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_kept_and_the_one_before_it_serves(damage: str, tmp_path: Path) -> None:
    first = Ledger(DEVICE, _ledger().regimes[:1], _ledger().spans[:1])
    write_ledger(first, tmp_path)
    path = write_ledger(_ledger(), tmp_path)
    path.write_text(damage)
    found, findings = read_ledger(DEVICE, tmp_path)
    assert found == first
    assert findings[0].level == "needs-person"
    assert "could not be read" in findings[0].said
    kept = [one for one in tmp_path.iterdir() if ".damaged-" in one.name]
    assert [one.read_text() for one in kept] == [damage]
    assert kept[0].name in findings[0].said
    # Once told, what is written next is whole again.
    write_ledger(found, tmp_path)
    assert read_ledger(DEVICE, tmp_path) == (first, [])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("regimes", 1, "against"), "r9"),
        (("regimes", 1, "id"), "r1"),
        (("regimes", 1, "shifts", "gemm/torch", "low"), None),
        (("regimes", 1, "shifts", "gemm/torch", "low"), 1e999),
        (("regimes", 1, "shifts", "gemm/torch", "verdict"), "fine"),
        (("regimes", 1, "software"), 7),
        (("spans", 0, "regime"), "r9"),
        (("spans", 0, "software"), None),
        (("device",), "another"),
    ],
)
def test_wrong_values_are_damage_too(place: tuple[str | int, ...], value: object, tmp_path: Path) -> None:
    path = write_ledger(_ledger(), tmp_path)
    content = json.loads(path.read_text())
    inner = content
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    path.write_text(json.dumps(content))
    found, findings = read_ledger(DEVICE, tmp_path)
    assert found == Ledger(DEVICE)
    assert len(findings) == 1
    assert "opens the first regime" in findings[0].said


@pytest.mark.parametrize("device", ["../up", "", "a/b", ".hidden"])
def test_a_device_that_cannot_name_a_file_is_refused(device: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot name a file"):
        ledger_path(device, tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="cannot write"):
        write_ledger(_ledger(), tmp_path)


def test_a_file_where_a_folder_belongs_is_said(tmp_path: Path) -> None:
    (tmp_path / "regimes").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        write_ledger(_ledger(), tmp_path / "regimes")
    with pytest.raises(StoreError, match="cannot read"):
        read_ledger(DEVICE, tmp_path / "regimes")
