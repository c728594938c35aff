"""Evaluation of models, comparison of regressors, and the HTML report."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kernelcast.features.errors import SpecError
from kernelcast.models.evaluation import evaluation as module
from kernelcast.models.evaluation.charts import quantity, write_page
from kernelcast.models.evaluation.evaluation import Evaluation, compare, evaluate, evaluate_files
from kernelcast.models.evaluation.reports import report_html, residual
from kernelcast.models.evaluation.scoring import PLOT_POINTS, Plot, score
from kernelcast.models.family_model.artifact import Artifact, save_artifact
from kernelcast.models.metrics import Metrics
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.models.training.labelled_cases import LabelledCases

MadeUp = Callable[..., LabelledCases]


@pytest.fixture(scope="module")
def tables(made_up: MadeUp) -> list[LabelledCases]:
    """Rows the model was not trained on, half of gemm's on a device it never saw."""
    gemm = made_up(200, seed=21, devices=("nvidia-a100-sxm-80gb", "nvidia-h100-sxm-80gb"))
    return [gemm, made_up(60, seed=22, family="softmax", impls=("torch",))]


@pytest.fixture(scope="module")
def evaluation(predictor: ArtifactPredictor, tables: list[LabelledCases]) -> Evaluation:
    return evaluate(predictor, tables)


def test_slices_are_the_metrics_of_their_rows(
    evaluation: Evaluation, predictor: ArtifactPredictor, tables: list[LabelledCases]
) -> None:
    gemm = tables[0]
    columns = predictor.predict_cases(gemm.cases).targets["latency_s"]
    rows = gemm.cases.device == "nvidia-h100-sxm-80gb"
    expected = Metrics.of(gemm.latency_s[rows], columns.value[rows], columns.lower[rows], columns.upper[rows])
    result = [
        item for item in evaluation.slices if item.family == "gemm" and item.name == "nvidia-h100-sxm-80gb (unseen)"
    ]
    assert [item.metrics for item in result if item.target == "latency_s"] == [expected]
    assert {item.target for item in result} == {"latency_s", "power_w", "energy_j"}


def overall(evaluation: Evaluation, family: str) -> Metrics:
    (result,) = (
        item.metrics
        for item in evaluation.slices
        if (item.family, item.target, item.by) == (family, "latency_s", "all")
    )
    return result


def test_the_whole_is_over_all_families(evaluation: Evaluation) -> None:
    whole, gemm, softmax = (overall(evaluation, family) for family in ("", "gemm", "softmax"))
    assert evaluation.overall("latency_s") == whole
    assert (whole.n, gemm.n, softmax.n) == (260, 200, 60)
    assert whole.mean_ape_pct == pytest.approx((200 * gemm.mean_ape_pct + 60 * softmax.mean_ape_pct) / 260, abs=0.01)
    assert not [item for item in evaluation.slices if (item.family, item.target) == ("softmax", "power_w")]
    assert evaluation.facts["rows"] == 260


def test_short_kernels_power_is_told_apart(evaluation: Evaluation) -> None:
    for target, bands in (("power_w", {"under 333 µs", "333 µs and up"}), ("latency_s", set())):
        result = {item.name for item in evaluation.slices if item.by == "kernel time" and item.target == target}
        assert result == bands


def test_the_lower_bound_stands_beside_the_model(evaluation: Evaluation) -> None:
    result = {(item.regressor, item.family): item.metrics for item in evaluation.compared if item.target == "latency_s"}
    assert set(result) == {(name, family) for name in ("xgboost", "lower bound") for family in ("gemm", "softmax")}
    for family in ("gemm", "softmax"):
        assert result["lower bound", family].mean_ape_pct > 2 * result["xgboost", family].mean_ape_pct
        assert result["lower bound", family].coverage_pct is None


def test_missing_power_is_never_judged(predictor: ArtifactPredictor, made_up: MadeUp) -> None:
    rows = made_up(100, seed=23, power=0.3)
    result = {item.target: len(item) for item in score(predictor, rows, coverage=0.9) if item.regressor == "xgboost"}
    known = int((~np.isnan(rows.power_w)).sum())
    assert result == {"latency_s": 100, "power_w": known, "energy_j": known}


def test_a_device_s_alias_is_the_device(predictor: ArtifactPredictor, made_up: MadeUp) -> None:
    rows = made_up(40, seed=24, devices=("nvidia-t4",))
    upper = replace(rows, cases=replace(rows.cases, device=np.char.upper(rows.cases.device)))
    assert evaluate(predictor, [upper]).slices == evaluate(predictor, [rows]).slices


def test_a_family_the_model_does_not_know_is_a_note(
    predictor: ArtifactPredictor,
    tables: list[LabelledCases],
    made_up: MadeUp,
    train: Callable[..., Artifact],
    tmp_path: Path,
) -> None:
    from kernelcast.models.predict.predictor import load_predictor

    save_artifact(train([made_up(60, power=0.0)]), tmp_path / "gemm-only")
    gemm_only = load_predictor(tmp_path / "gemm-only")
    result = evaluate(gemm_only, tables)
    assert result.notes == ("softmax: 60 rows not judged, the model was not trained on softmax",)
    assert {item.family for item in result.slices} == {"gemm"}
    with pytest.raises(SpecError, match="the model knows gemm, the rows are of softmax"):
        evaluate(gemm_only, tables[1:])


def test_it_is_plain_data(evaluation: Evaluation) -> None:
    data = json.loads(json.dumps(evaluation.to_json(), allow_nan=False))
    assert data["slices"][0]["metrics"]["n"] == 260
    assert "plots" not in data


def test_plots_are_thinned_evenly_and_the_same_every_time(predictor: ArtifactPredictor, made_up: MadeUp) -> None:
    (scored, *_) = score(predictor, made_up(2000, seed=25, power=0.0), coverage=0.9)
    plot = Plot.of(scored)
    assert plot == Plot.of(scored)
    assert len(plot.measured) == PLOT_POINTS
    assert (plot.measured[0], plot.measured[-1]) == (scored.measured.min(), scored.measured.max())
    assert sum(item.n for item in plot.by_size) == 2000


def test_files_are_judged_and_training_rows_are_owned_up_to(
    made_up: MadeUp, train: Callable[..., Artifact], tmp_path: Path
) -> None:
    rows = made_up(80, power=0.0)
    data = tmp_path / "mine.parquet"
    columns = {"device": rows.cases.device, "dtype": rows.cases.dtype, "impl": rows.cases.impl,
               **{name: column.astype(int) for name, column in rows.cases.sizes.items()}}  # fmt: skip
    pq.write_table(pa.table({**{k: v.tolist() for k, v in columns.items()}, "latency_s": rows.latency_s}), data)
    from kernelcast.models.training.training import train_files

    train_files([data], out=tmp_path / "model", family="gemm", regressor="xgboost")
    result = evaluate_files(tmp_path / "model", [data], family="gemm")
    write_page(report_html(result), tmp_path / "out" / "report.html")
    assert result.facts["rows"] == 80
    assert result.notes == (
        "the model was trained on rows of mine.parquet that are judged here: their errors are flattered",
    )
    assert "mine.parquet" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_splits_are_slices_and_never_only_pooled(predictor: ArtifactPredictor, tables: list[LabelledCases]) -> None:
    gemm, softmax = tables
    parts = [gemm.take(np.arange(80)), gemm.take(np.arange(80, 200)), softmax]
    result = evaluate(predictor, parts, splits=["val_a", "val_b", ""], levels=())
    sizes = {
        item.name: item.metrics.n
        for item in result.slices
        if (item.family, item.by, item.target) == ("gemm", "split", "latency_s")
    }
    assert sizes == {"val_a": 80, "val_b": 120}
    across = {
        item.name: item.metrics.n
        for item in result.slices
        if (item.family, item.by, item.target) == ("", "split", "latency_s")
    }
    assert across == {"val_a": 80, "val_b": 120, "not given": 60}
    names = [item.name for item in result.slices if item.by == "split and device" and item.target == "latency_s"]
    assert "val_a, nvidia-h100-sxm-80gb (unseen)" in names
    assert result.shared["softmax"]["split"] == "not given"
    # In any number of tables, the whole is the same.
    assert overall(result, "gemm") == overall(evaluate(predictor, [gemm], levels=()), "gemm")


def test_what_all_rows_share_is_said_once(evaluation: Evaluation) -> None:
    assert evaluation.shared["gemm"]["dtype"] == "fp16"
    assert not {item.by for item in evaluation.slices if item.family == "gemm"} & set(evaluation.shared["gemm"])
    assert "All rows have source: made up" in report_html(evaluation)


def test_the_bias_is_of_all_rows_by_prediction(predictor: ArtifactPredictor, made_up: MadeUp) -> None:
    (item, *_) = score(predictor, made_up(300, seed=26, power=0.0), coverage=0.9)
    twice = replace(item, value=item.measured * 2.0)
    bias = Plot.of(twice).bias
    assert sum(part.n for part in bias) == 300
    for part in bias:
        assert (part.p10, part.median, part.p90) == pytest.approx((np.log(2),) * 3, abs=1e-5)
        assert part.high / part.low == pytest.approx(np.sqrt(10))
    assert "median +100.0 %" in residual(Plot.of(twice))


@pytest.fixture(scope="module")
def by_hash(made_up: MadeUp) -> Evaluation:
    tables = [made_up(300), made_up(100, family="softmax", power=0.0, impls=("torch",))]
    return compare(tables, ["roofline", "analytic", "xgboost"])


def test_comparing_reports_every_regressor_beside_the_roofline(by_hash: Evaluation) -> None:
    result = {(item.regressor, item.family): item.metrics for item in by_hash.compared if item.target == "latency_s"}
    assert set(result) == {
        (name, family) for name in ("roofline", "analytic", "xgboost") for family in ("gemm", "softmax")
    }
    for family in ("gemm", "softmax"):
        sizes = {result[name, family].n for name in ("roofline", "analytic", "xgboost")}
        assert len(sizes) == 1, "all are judged on the same rows"
        assert result["xgboost", family].mean_ape_pct < result["roofline", family].mean_ape_pct / 2
    assert by_hash.regressor == "xgboost"
    assert set(by_hash.facts["seconds to train and judge"]) == {"roofline", "analytic", "xgboost"}


def test_no_judged_shape_was_trained_on(made_up: MadeUp, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = made_up(200)
    twice = rows.take(np.repeat(np.arange(100), 2))
    sides: list[tuple[set[tuple[float, ...]], set[tuple[float, ...]]]] = []
    real = module.trained_and_scored

    def shapes(table: LabelledCases) -> set[tuple[float, ...]]:
        return {tuple(row) for row in np.stack(list(table.cases.sizes.values()), axis=1).tolist()}

    def spy(rows: LabelledCases, judged: list[LabelledCases], *rest: object) -> object:
        sides.append((shapes(judged[0]), shapes(rows)))
        return real(rows, judged, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "trained_and_scored", spy)
    for held_out in ("hash", "region"):
        compare([twice], ["roofline"], held_out=held_out)
    assert len(sides) == 2
    for judged, trained in sides:
        assert judged
        assert not judged & trained


def test_every_device_is_left_out_in_turn(made_up: MadeUp) -> None:
    steps: list[str] = []
    result = compare(
        [made_up(160)], ["roofline"], held_out="device", progress=lambda what, done, total: steps.append(what)
    )
    latency = [item for item in result.compared if item.target == "latency_s"]
    assert {item.device for item in latency} == {"", "nvidia-a100-sxm-80gb", "nvidia-t4"}
    assert sum(item.metrics.n for item in latency if item.device) == 160
    assert {item.name for item in result.slices if item.by == "device"} == {
        "nvidia-a100-sxm-80gb (unseen)", "nvidia-t4 (unseen)",
    }  # fmt: skip
    assert steps[0] == "roofline on gemm without nvidia-a100-sxm-80gb"


def test_what_cannot_be_compared_says_why(made_up: MadeUp) -> None:
    with pytest.raises(SpecError, match="cannot hold out 'moon'; it is one of hash, region, device"):
        compare([made_up(50)], held_out="moon")
    one_device = made_up(50, devices=("nvidia-t4",))
    with pytest.raises(SpecError, match="nothing to compare: gemm is not compared: too few rows or devices"):
        compare([one_device], held_out="device")


class _Checked(HTMLParser):
    """Counts tags and notes everything that would be fetched from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "i"):
            self.open.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "i"):
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


@pytest.mark.parametrize("which", ["evaluation", "by_hash"])
def test_the_report_needs_nothing_else(which: str, request: pytest.FixtureRequest) -> None:
    html = report_html(request.getfixturevalue(which))
    page = _Checked()
    page.feed(html)
    assert page.open == []
    assert page.fetched == []
    assert "script" not in page.tags
    assert not re.search(r"https?://|@import|url\((?!#)", html)
    assert page.tags.count("svg") >= (15 if which == "evaluation" else 6)
    assert "nan" not in re.sub(r"<style>.*</style>", "", html).lower()


def test_the_report_has_what_was_asked(by_hash: Evaluation) -> None:
    html = report_html(by_hash)
    for words in ("Every regressor beside the roofline", "roofline", "analytic", "latency by slice",
                  "predicted against measured", "error by size",
                  "prefers-color-scheme: dark", "error against prediction"):  # fmt: skip
        assert words in html


def test_the_report_of_a_model_has_its_reliability_and_its_peers(
    predictor: ArtifactPredictor, tables: list[LabelledCases]
) -> None:
    html = report_html(evaluate(predictor, tables))
    assert "coverage asked for and found" in html
    assert "Others on the same kind of rows" not in html
    public = replace(tables[0], source=np.full(len(tables[0]), "aiconfigurator"))
    html = report_html(evaluate(predictor, [public], levels=()))
    assert "coverage asked for and found" not in html
    assert "random forest" in html
    assert "measured by us on the same tables" in html


def test_words_from_data_cannot_become_markup(evaluation: Evaluation) -> None:
    html = report_html(replace(evaluation, title="<script>alert(1)</script>", notes=("<img src=x>",)))
    assert "<script>" not in html
    assert "<img" not in html


def test_a_report_that_cannot_be_written_says_so(evaluation: Evaluation, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot write the report"):
        write_page(report_html(evaluation), tmp_path / "file" / "report.html")
    write_page(report_html(evaluation), tmp_path / "report.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "report.html"]


@pytest.mark.parametrize(
    ("value", "target", "words"),
    [(1e-5, "latency_s", "10 µs"), (2.5e-10, "latency_s", "0.25 ns"), (1.0, "latency_s", "1 s"), (350.0, "power_w", "350 W"),
     (1e3, "power_w", "1 kW"), (1e-3, "energy_j", "1 mJ")],
)  # fmt: skip
def test_quantities_are_for_people(value: float, target: str, words: str) -> None:
    assert quantity(value, target) == words
