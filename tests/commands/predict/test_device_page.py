"""`kernelcast devices NAME`: facts, what answers rest on, and what adapting would bring."""

from __future__ import annotations

import json

import pytest
from kernelcast.commands.predict import device_page


def test_a_measured_device(run):
    done = run("devices", "h200-sxm")
    assert done.code == 0, done.err
    for words in (
        "what the answers rest on",
        "measured",
        "how busy the device is",
        "here",
        "104.0 / 36.9",
        "22.7 / 17.9",
    ):
        assert words in done.out
    assert "energy is latency times power" in done.err


def test_a_device_that_nobody_measured(run):
    done = run("devices", "nvidia-h100-pcie-80gb")
    assert "carried over" in done.out
    assert "nvidia-h100-sxm-80gb 45 %" in done.out
    assert "(0.43)" in done.out
    assert "nvidia-h200-sxm-141gb" in done.out
    assert "No adaptation of a GPU was measured yet" in done.out


def test_json_has_every_line(run):
    page = json.loads(run("devices", "nvidia-a100-pcie-80gb", "--json").out)
    edition = next(line for line in page["basis"] if line["basis"] == "edition")
    assert edition["sources"][0]["distance"] < 0.2
    assert page["measured"]
    assert page["ten_minutes"]["measured"][0]["after"] == [22.7, 17.9]


def test_a_champion_that_cannot_be_read_leaves_the_facts(run, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELCAST_HOME", str(tmp_path))
    (tmp_path / "champion.json").write_text("no json")
    done = run("devices", "h200-sxm")
    assert done.code == 0
    assert "compute_units" in done.out
    assert "what answers rest on is not known: the champion pointer" in done.err


@pytest.mark.parametrize("words", [("devices", "h200-sxm", "--model", "absent"), ("devices", "h300")])
def test_bad_input_is_one_clear_sentence(run, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words[-1] in run(*words).error


def test_where_only_what_measures_is_installed_the_facts_are_shown(run, monkeypatch):
    def missing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'msgspec'", name="msgspec")

    monkeypatch.setattr(device_page, "read_page", missing)
    done = run("devices", "h200-sxm")
    assert done.code == 0
    assert "compute_units" in done.out
    assert "it needs msgspec; run: pip install kernelcast" in done.err
    assert "it needs msgspec; run: pip install kernelcast" in run("devices", "h200-sxm", "--json").error
