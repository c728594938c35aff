"""Questions: bad input is refused with its field; prices of aliases are those of the device."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.workloads.serving.planning.question import read_prices


@pytest.mark.parametrize(
    ("others", "field"),
    [
        ({"gpus": 0}, "gpus"), ({"gpus": 10**6}, "gpus"), ({"gpus": 1.5}, "gpus"), ({"input_tokens": math.nan}, "input_tokens"),
        ({"input_tokens": 0}, "input_tokens"), ({"output_tokens": -1}, "output_tokens"),
        ({"output_tokens": 1e9}, "output_tokens"),
        ({"output_tokens": 131072}, "input_tokens"), ({"concurrency": 0}, "concurrency"),
        ({"concurrency": math.inf}, "concurrency"),
        ({"rate": 0}, "rate"), ({"rate": 1, "concurrency": 1}, "concurrency"), ({"ttft_s": 0}, "ttft_s"),
        ({"tpot_s": -1}, "tpot_s"), ({"concurrency": 2.5}, "concurrency"),
        ({"power_budget_w": 0}, "power_budget_w"), ({"cached": 1}, "cached"), ({"engines": []}, "engines"),
        ({"engines": ["pytorch"]}, "engines"), ({"engines": ["tgi"]}, "engine"), ({"devices": ()}, "devices"),
        ({"devices": ("no-such-gpu",)}, "device"), ({"devices": ("amd-epyc-9654",)}, "devices"),
        ({"prices": {"l40s": 1.0}}, "prices"), ({"prices": {"h100-sxm": -1}}, "prices"),
        ({"prices": {"h100-sxm": math.nan}}, "prices"),
        ({"model": "google/vit-base-patch16-224"}, "model"), ({"weights": ["fp8"] * 17}, "weights"),
    ],
)  # fmt: skip
def test_bad_input_names_its_field(ask: Any, others: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as refused:
        ask(**others)
    assert refused.value.field == field


def test_names_of_one_device_are_one_device(ask: Any) -> None:
    question = ask(devices=("h100", "h100-sxm"), prices={"H100-SXM": 2.5})
    assert question.devices == ("nvidia-h100-sxm-80gb",)
    assert question.price(question.devices[0]) == 2.5


def test_without_prices_a_cost_is_hours(ask: Any) -> None:
    question = ask()
    assert question.cost_unit == "GPU hours"
    assert question.price(question.devices[0]) == 1


@pytest.mark.parametrize("text", ["", "[1, 2]", "h100-sxm: free", "no-such-gpu: 2", "a: [", "1: 2", "h100-sxm: true"])
def test_prices_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(SpecError):
        read_prices(path, catalogue())


def test_prices_are_read_by_any_name(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("h100-sxm: 2.5\nl40s: 1\n")
    for source in (path, str(path)):
        assert read_prices(source, catalogue()) == {"nvidia-h100-sxm-80gb": 2.5, "nvidia-l40s": 1.0}
    with pytest.raises(SpecError, match="cannot read"):
        read_prices(tmp_path / "none.yaml", catalogue())


@pytest.mark.parametrize(
    ("devices", "setting", "words"),
    [
        (("h100-sxm",), {"power_limit_w": 5}, "give 117 to 700 W"),
        (("h100-sxm", "l40s"), {"power_limit_w": 500}, "500 W for nvidia-l40s, above its own limit"),
        (("h100-sxm",), {"clock_hz": 1e10}, "above its boost clock"),
    ],
)
def test_every_device_can_be_set_so(ask: Any, devices: tuple[str, ...], setting: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        ask(devices=devices, **setting)
