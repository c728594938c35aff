"""Prices of an hour: by device, of the only device, and from files, in one option."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelcast.commands.console import read_prices
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError

H100 = "nvidia-h100-sxm-80gb"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "prices.yaml"
    path.write_text("h100-sxm: 2.5\nl4: 0.5\nl40s: 1\n")
    return str(path)


def test_devices_files_and_a_number_for_one_device(file):
    known = catalogue()
    l4 = known.get("l4").name
    assert read_prices(["h100-sxm=2.99", "L4=0"], [H100, l4], known) == {H100: 2.99, l4: 0.0}
    assert read_prices([file], [H100, l4], known) == {H100: 2.5, l4: 0.5}
    assert read_prices(["2.5"], [H100], known) == {H100: 2.5}
    assert read_prices([], [H100], known) == {}


@pytest.mark.parametrize(
    "word", ["2.5", "h100-sxm=", "h100-sxm=cheap", "h100-sxm=-1", "h100-sxm=nan", "h100-sxm=1e7", "cheap", "=", ""]
)
def test_other_words_are_refused(word):
    with pytest.raises(SpecError, match="--price takes DEVICE=PRICE") as refusal:
        read_prices([word], [H100, "nvidia-l40s"], catalogue())
    assert refusal.value.field == "price"


def test_two_prices_and_foreign_devices_are_refused(file):
    with pytest.raises(SpecError, match=r"twice, at 2\.5 and 3"):
        read_prices([file, "h100-sxm=3"], [H100], catalogue())
    with pytest.raises(SpecError, match="not among the devices"):
        read_prices(["l4=1"], [H100], catalogue())
    with pytest.raises(SpecError, match="no price of nvidia-a40; add one"):
        read_prices([file], ["nvidia-a40"], catalogue())
    with pytest.raises(SpecError, match="cannot read the prices"):
        read_prices(["none.yaml"], [H100], catalogue())
