"""Other predictors' figures: the table is sound, and only what compares stands beside ours."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernelcast.features.kernel import families
from kernelcast.models.evaluation.published_errors import BASES, beside, held_out_kinds, peers
from kernelcast.models.evaluation.scoring import Scored
from kernelcast.models.metrics import Metrics
from kernelcast.models.predict.prediction import TARGETS


def test_every_figure_is_of_something_and_has_a_source() -> None:
    for peer in peers():
        assert peer.family in {"", *families()}
        assert not peer.variant or peer.variant in families()[peer.family].variants
        assert peer.target in TARGETS
        assert peer.basis in BASES
        assert peer.held_out in ("shapes", "sizes", "device", "layers", "models")
        assert any(word in peer.source for word in ("arXiv", "CACM", "MICRO", "KDD", "Machine Learning"))
        figures = (peer.mean_ape_pct, peer.median_ape_pct, peer.within_10_pct)
        assert any(figures), peer
        for figure in figures:
            assert figure is None or 0 < figure[0] <= figure[1]
    assert len(set(peers())) == len(peers())


def test_known_figures_stand_as_they_were_found() -> None:
    result = {(item.name, item.held_out): item for item in peers() if item.data == "neusight" and not item.family}
    assert result["NeuSight", "layers"].mean_ape_pct == (34.0, 34.0)
    assert result["Habitat", "layers"].within_10_pct == (8.0, 8.0)
    published = [item for item in peers() if item.name.startswith("GPPerf") and item.target == "latency_s"]
    assert [item.mean_ape_pct for item in published] == [(15.6, 15.6)]


def scored(source: str, seen: list[str], split: list[str] | None = None, *, variant: str = "bias") -> Scored:
    n = len(seen)
    labels = {"source": np.full(n, source), "variant": np.full(n, variant), "device seen in training": np.array(seen)}
    if split is not None:
        labels["split"] = np.array(split)
    measured = np.ones(n)
    value = 1.0 + np.arange(1, n + 1) / 100
    return Scored("xgboost", "gemm", "latency_s", measured, value, value, value, labels)


def test_rows_are_held_out_as_their_split_and_device_say() -> None:
    item = scored(
        "neusight", ["yes", "yes", "yes", "no", "no"], ["val_shapes", "val_sizes", "train", "val_sizes", "train"]
    )
    assert held_out_kinds(item.labels).tolist() == ["shapes", "sizes", "", "device", "device"]
    assert held_out_kinds(scored("neusight", ["yes", "no"]).labels).tolist() == ["shapes", "device"]


def test_ours_are_the_rows_that_compare() -> None:
    item = scored("neusight", ["yes", "no", "no"], ["random shapes", "val_device", "val_device"])
    result = {(two.peer.name, two.peer.held_out): two.ours for two in beside([item])}
    # Row by row the errors are 1, 2 and 3 %.
    assert set(result) == {("XGBoost", "shapes"), ("XGBoost", "device")}
    assert result["XGBoost", "shapes"] == item.metrics([0])
    assert result["XGBoost", "device"] == Metrics.of(item.measured[1:], item.value[1:], item.lower[1:], item.upper[1:])
    assert result["XGBoost", "device"].mean_ape_pct == pytest.approx(2.5)


def test_figures_of_other_tables_splits_or_variants_are_not_put_beside_ours() -> None:
    assert beside([scored("mine", ["yes"])]) == []
    assert beside([scored("another source", ["yes"])]) == [], "data of nobody here is matched by nothing"
    assert beside([scored("neusight", ["yes"], ["val_sizes"])]) == []
    assert beside([scored("neusight", ["yes"], ["train"])]) == []
    (item,) = beside([scored("neusight", ["no"], variant="batched")])
    assert item.peer.mean_ape_pct == (24.1, 24.1)
    names = {two.peer.basis for two in beside([scored("aiconfigurator", ["yes"], ["val_shapes"])])}
    assert "same rows" in names
    (some,) = (two for two in beside([scored("aiconfigurator", ["yes"], ["val_shapes"])]) if two.peer.split)
    assert some.basis == "measured by us on all 11,938 rows of val_shapes", "one row is not the same rows"
    assert replace(some, ours=replace(some.ours, n=11_938)).basis == "measured by us on the same rows"
    assert "same rows" not in {two.peer.basis for two in beside([scored("aiconfigurator", ["yes"], ["val_other"])])}
