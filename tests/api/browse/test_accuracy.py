"""GET /v1/accuracy: the served model's own errors, or plainly none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kernelcast.api.browse.accuracy import (
    ACCURACY_FILE,
    PARITY_POINTS,
    AccuracyAnswer,
    AccuracyFileError,
    accuracy_of,
    model_hash,
    read_accuracy,
    write_accuracy,
)
from kernelcast.api.model_source import FixedSource, LoadedModel
from kernelcast.api.settings import Settings
from kernelcast.api.transport.problems import ProblemError
from kernelcast.datasets.shipped import shipped_families
from kernelcast.features.device import catalogue
from kernelcast.models.family_model.artifact import read_manifest
from kernelcast.models.family_model.artifact_files import MANIFEST

SHIPPED = Path(__file__).parents[3] / "models" / "pretrained" / "kernels"
MANIFEST_OF_ONE = {
    "regressor": "blend",
    "families": {
        "copy": {
            "metrics": {
                "held_out": {
                    "latency": {"n": 974, "mean_ape_pct": 10.5, "median_ape_pct": 6.5, "within_10_pct": 64.0},
                    "power": {"n": 0},
                }
            }
        },
        "odd": {"metrics": [1, 2]},
    },
}


class WithManifest:
    def __init__(self, manifest: Any) -> None:
        self.manifest = manifest


def loaded(directory: Path | None, manifest: Any) -> LoadedModel:
    predictor: Any = WithManifest(manifest)
    return LoadedModel(predictor, catalogue(), "one", directory, {}, "2026-01-01T00:00:00+00:00")


@pytest.fixture(scope="module")
def shipped() -> AccuracyAnswer:
    return accuracy_of(loaded(SHIPPED, read_manifest(SHIPPED)))


def test_the_shipped_model_has_accuracy_data_of_its_own(shipped: AccuracyAnswer) -> None:
    stored = read_accuracy(SHIPPED)
    assert stored is not None
    assert stored.model == model_hash(read_manifest(SHIPPED)), "run .venv/bin/python benchmarks/accuracy.py"
    assert shipped.notes == []
    assert [item.name for item in shipped.splits][:2] == ["hash", "region"]
    assert (SHIPPED / ACCURACY_FILE).stat().st_size < 600_000
    for split in shipped.splits[:2]:
        assert {item.family for item in split.slices} == set(shipped_families())


def test_slices_and_points_are_lawful(shipped: AccuracyAnswer) -> None:
    for split in shipped.splits:
        for item in split.slices:
            assert item.n > 0
            assert 0 <= item.within_10 <= 1
            assert item.median >= 0
            assert item.covered is None or 0 <= item.covered <= 1
        whole = {(item.family, item.target): item for item in split.slices if item.device is None}
        points: dict[tuple[str, str], int] = {}
        for item in split.parity:
            lengths = {len(column) for column in (item.measured, item.predicted, item.lower, item.upper)}
            assert len(lengths) == 1
            points[item.family, item.target] = points.get((item.family, item.target), 0) + lengths.pop()
            assert all(
                low <= value <= high for low, value, high in zip(item.lower, item.predicted, item.upper, strict=True)
            )
        for key, n in points.items():
            assert n == min(PARITY_POINTS, whole[key].n)


def test_the_page_tells_the_same_errors(shipped: AccuracyAnswer) -> None:
    page = (SHIPPED.parents[2] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    for item in shipped.splits[0].slices:
        if item.target == "latency_s" and item.device is None:
            shown = [100 * value for value in (item.mean, item.median, item.within_10, item.covered or 0)]
            words = "| {:.1f} | {:.1f} | {:.0f} | {:.0f} |".format(*shown)
            assert words in page, "run .venv/bin/python benchmarks/accuracy.py"


def test_a_manifest_alone_tells_its_held_out_errors() -> None:
    result = accuracy_of(loaded(None, MANIFEST_OF_ONE))
    (split,) = result.splits
    (item,) = split.slices
    assert (item.family, item.device, item.target, item.n, item.mean, item.within_10) == (
        "copy",
        None,
        "latency_s",
        974,
        0.105,
        0.64,
    )
    assert item.covered is None
    assert split.parity == []


def test_a_calibrated_model_says_where_its_errors_are_others() -> None:
    manifest = MANIFEST_OF_ONE | {"calibrated": [{"family": "copy", "device": "nvidia-l4", "rows": 9}, "odd"]}
    assert "calibrated on nvidia-l4" in accuracy_of(loaded(None, manifest)).notes[0]


def test_another_models_file_is_not_shown(tmp_path: Path) -> None:
    shutil.copy(SHIPPED / ACCURACY_FILE, tmp_path)
    result = accuracy_of(loaded(tmp_path, MANIFEST_OF_ONE))
    assert len(result.splits) == 1
    assert "is of another one" in result.notes[0]
    with pytest.raises(ProblemError, match="kernelcast evaluate") as caught:
        accuracy_of(loaded(tmp_path, {"families": {}}))
    assert caught.value.status == 404
    assert "is of another one" in caught.value.detail


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cut short"),
        (b"no gzip", "damaged"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "cut short"),
        ("json", "damaged"),
        ("typed", "damaged"),
        ("folder", "cannot be read"),
    ],
)
def test_a_damaged_file_is_told_and_not_fatal(tmp_path: Path, content: Any, said: str) -> None:
    import gzip

    path = tmp_path / ACCURACY_FILE
    if content == "folder":
        path.mkdir()
    else:
        path.write_bytes({"json": gzip.compress(b"{"), "typed": gzip.compress(b"[]")}.get(content, content))
    with pytest.raises(AccuracyFileError, match=said):
        read_accuracy(tmp_path)
    result = accuracy_of(loaded(tmp_path, MANIFEST_OF_ONE))
    assert said in result.notes[0]
    assert result.splits


def test_what_is_written_is_read(tmp_path: Path, shipped: AccuracyAnswer) -> None:
    write_accuracy(shipped, tmp_path)
    first = (tmp_path / ACCURACY_FILE).read_bytes()
    assert read_accuracy(tmp_path) == shipped
    write_accuracy(shipped, tmp_path)
    assert (tmp_path / ACCURACY_FILE).read_bytes() == first


def test_the_hash_is_of_content_not_of_order() -> None:
    turned = json.loads((SHIPPED / MANIFEST).read_text(encoding="utf-8"))
    assert model_hash(dict(reversed(turned.items()))) == model_hash(turned)
    assert model_hash(turned | {"seed": 1}) != model_hash(turned)


def test_the_route_answers_for_the_model_it_serves(serve: Callable[..., Any]) -> None:
    from kernelcast.features.device import catalogue as devices

    with serve(FixedSource(WithManifest(MANIFEST_OF_ONE), devices()), Settings()) as client:
        first = client.get("/v1/accuracy")
        assert first.status_code == 200
        assert first.headers["content-type"] == "application/json"
        assert msgspec.json.decode(first.content, type=AccuracyAnswer).model == model_hash(MANIFEST_OF_ONE)
        assert client.get("/v1/accuracy").content == first.content


@pytest.mark.parametrize(
    ("url", "status", "said"),
    [
        ("/v1/accuracy", 404, "no accuracy data of its own"),
        ("/v1/accuracy?model=other", 422, "this address takes none"),
        ("/v1/accuracy?%ff=1", 422, "percent-encoded UTF-8"),
    ],
)
def test_what_it_refuses(client: Any, url: str, status: int, said: str) -> None:
    response = client.get(url)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert said in response.json()["detail"]


def test_it_takes_no_body_and_needs_a_model(client: Any, serve: Callable[..., Any]) -> None:
    assert client.request("POST", "/v1/accuracy").status_code == 405
    with serve(FixedSource(None, catalogue()), Settings()) as empty:
        assert empty.get("/v1/accuracy").status_code == 503
