"""GET /v1/model-card: the card of the model that is served, from its directory or its manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernelcast.api.browse.model_card import CARD_FILE, card_of, model_card
from kernelcast.api.model_source import FixedSource, LoadedModel
from kernelcast.api.settings import Settings
from kernelcast.api.transport.problems import ProblemError
from kernelcast.features.device import catalogue
from kernelcast.models.family_model.artifact import read_manifest

SHIPPED = Path(__file__).parents[3] / "models" / "pretrained" / "kernels"


class WithManifest:
    def __init__(self, manifest: Any) -> None:
        self.manifest = manifest


def loaded(directory: Path | None, manifest: Any) -> LoadedModel:
    predictor: Any = WithManifest(manifest)
    return LoadedModel(predictor, catalogue(), "one", directory, {}, "2026-01-01T00:00:00+00:00")


def test_the_shipped_models_card_says_what_its_manifest_says() -> None:
    manifest = read_manifest(SHIPPED)
    card = card_of(loaded(SHIPPED, manifest))
    assert card.startswith("# Model one\n")
    trained = (
        "aiconfigurator",
        "Apache-2.0 (NVIDIA)",
        "463,829",
        f"{manifest['own_rows']:,}",
        manifest["data"][0]["sha256"],
    )
    for words in (
        "| regressor | blend |",
        manifest["created"],
        "nvidia-h200-sxm-141gb",
        "latency, power, energy",
        *trained,
    ):
        assert words in card, words
    copy = manifest["families"]["copy"]["metrics"]["held_out"]["latency"]
    assert f"| copy | latency | {copy['n']:,} | {copy['mean_ape_pct']:.1f} % | {copy['median_ape_pct']:.1f} % |" in card


def test_a_card_in_the_models_directory_goes_first(tmp_path: Path) -> None:
    (tmp_path / CARD_FILE).write_text("# Mine – größer\n", encoding="utf-8")
    assert card_of(loaded(tmp_path, {"families": {}})) == "# Mine – größer\n"


@pytest.mark.parametrize(
    ("content", "said"), [(b"\xff\xfe", "not UTF-8"), (b"x" * (257 << 10), "longer than"), (None, "cannot be read")]
)
def test_a_card_that_cannot_be_used_is_told(tmp_path: Path, content: bytes | None, said: str) -> None:
    if content is None:
        (tmp_path / CARD_FILE).mkdir()
    else:
        (tmp_path / CARD_FILE).write_bytes(content)
    with pytest.raises(ProblemError, match=said) as caught:
        card_of(loaded(tmp_path, {"families": {}}))
    assert caught.value.status == 500
    assert str(tmp_path) not in caught.value.detail


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"families": None, "sources": 3, "data": "x", "versions": [1]},
        {"families": {"copy": {}, "gemm": None}, "data": [None, {}], "calibrated": {"a": 1}},
        {
            "families": {
                "copy": {"metrics": {"held_out": {"latency": {"n": "many", "mean_ape_pct": None}}}, "devices": 7}
            }
        },
    ],
)
def test_a_poor_manifest_makes_a_poor_card_and_no_failure(manifest: dict[str, Any]) -> None:
    card = model_card("poor", manifest, "0" * 64)
    assert card.startswith("# Model poor\n")
    assert "None" not in card.replace("None known", "")


def test_text_of_a_manifest_stays_text() -> None:
    hostile = {"regressor": "<script>alert(1)</script>|x\n\n# Head", "sources": {"a|b": {"what": "<img src=x>"}}}
    card = model_card("n<b>", hostile, "0" * 64)
    assert "<script" not in card
    assert "<img" not in card
    assert "\n# Head" not in card
    assert "a\\|b" in card


def test_a_model_without_errors_says_how_to_judge_it() -> None:
    assert "kernelcast evaluate" in model_card("n", {"families": {"copy": {}}}, "0" * 64)


def test_the_route_serves_markdown(serve: Callable[..., Any]) -> None:
    source = FixedSource(WithManifest({"regressor": "blend", "families": {}}), catalogue())
    with serve(source, Settings()) as client:
        response = client.get("/v1/model-card")
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/markdown; charset=utf-8"
        assert response.text.startswith("# Model fixed")


@pytest.mark.parametrize(
    ("url", "status", "said"),
    [
        ("/v1/model-card", 404, "no card and no manifest"),
        ("/v1/model-card?path=/etc/passwd", 422, "this address takes none"),
    ],
)
def test_what_it_refuses(client: Any, url: str, status: int, said: str) -> None:
    response = client.get(url)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert said in response.json()["detail"]


def test_it_needs_a_model(serve: Callable[..., Any]) -> None:
    with serve(FixedSource(None, catalogue()), Settings()) as empty:
        assert empty.get("/v1/model-card").status_code == 503
