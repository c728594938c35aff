"""The shipped model on public tables: their rows held out of training, rows of labs never trained on, and whole models."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from kernelcast.features.kernel import KernelSpec
from kernelcast.models.evaluation.scoring import LOWER_BOUND, Scored, pooled, score
from kernelcast.models.metrics import POWER_BANDS, Metrics, ape_pct
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.models.training.labelled_cases import labelled_files
from llm_ops import TABLES as OPERATOR_FILES
from llm_ops import read_llm_ops
from pretrained import source_folder, with_timing
from whole_models import errors, read, whole_rows

COVERAGE = 0.9


@dataclass(frozen=True, slots=True)
class PageRow:
    """A row of the page.

    Attributes:
        group: Why its measurements count as new to the model; rows of a group stand together.
        what: What was measured.
        metrics: Of the predictions.
        roofline_pct: Mean APE of the lower bound; None where there is no bound.
        peer: Mean APE and name of the best other predictor that answers the same rows; empty where there is none.
    """

    group: str
    what: str
    metrics: Metrics
    roofline_pct: float | None = None
    peer: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text, without the group."""
        m = self.metrics
        roofline = "" if self.roofline_pct is None else f"{self.roofline_pct:.1f}"
        errors = (f"{m.mean_ape_pct:.1f}", f"{m.median_ape_pct:.1f}", f"{m.within_10_pct:.0f}")
        interval = (f"{m.coverage_pct:.0f}", f"{m.width_pct:.0f}")
        return self.what, f"{m.n:,}", roofline, self.peer, *errors, *interval


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that are new to the model for the same reason.

    Attributes:
        name: On the page.
        split: The split they are of; None for all rows.
        seen: Whether the model was trained on rows of their devices, `yes` or `no`.
    """

    name: str
    split: str | None
    seen: str = "yes"


SHAPES = Group("other shapes", "val_shapes")
SIZES = Group("larger sizes", "val_sizes")
DEVICES = Group("devices never measured in the family", "val_device", seen="no")
LABS = Group("other labs, never trained on", None)
POWER = Group("power and energy", "val_shapes")
WHOLE_MODELS = "whole models"
PUBLIC_GROUPS = (*(group.name for group in (SHAPES, SIZES, DEVICES, LABS, POWER)), WHOLE_MODELS)
"""In the order of the page."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows that are judged together.

    Attributes:
        what: Their name on the page.
        source: Folder of their tables.
        files: Names of the tables.
        group: Theirs if the model was trained on other rows of the source; else it is `LABS`.
        target: What is judged.
        band: Only kernels of this duration, one of `POWER_BANDS`; empty for all.
        device: Only rows of this device; empty for all.
    """

    what: str
    source: str
    files: tuple[str, ...]
    group: Group = SHAPES
    target: str = "latency_s"
    band: str = ""
    device: str = ""


_SHORT, _LONG = POWER_BANDS
_ATTENTION = ("attention_prefill", "attention_decode")

SLICES = (
    Slice("gemm, LLM", "aiconfigurator", ("gemm",)),
    Slice("attention, prefill", "aiconfigurator", ("attention_prefill",)),
    Slice("attention, decode", "aiconfigurator", ("attention_decode",)),
    Slice("moe", "aiconfigurator", ("moe",)),
    Slice("attention without a causal mask", "aiconfigurator", ("encoder_attention",)),
    Slice("quantize", "aiconfigurator", ("quantize",)),
    Slice("latent_attention", "aiconfigurator", ("mla_module",)),
    Slice("linear_attention and causal_conv1d", "aiconfigurator", ("linear_attention",)),
    Slice("gemm in Sarathi (Vidur)", "vidur", ("gemm",)),
    Slice("gemm in XLA", "xla", ("gemm",)),
    Slice("gemm, attention, rmsnorm (LLMServingSim)", "llmservingsim", ("gemm", "attention", "layernorm")),
    Slice("gemm in AITER", "aiter", ("gemm",)),
    Slice("moe in AITER", "aiter", ("moe",)),
    Slice("gemm in Tensile", "tensile", ("gemm",)),
    Slice("gemm in DeepBench", "deepbench", ("gemm",)),
    Slice("gemm in APEX+", "apex_plus", ("gemm",)),
    Slice("gemm in Kernel Tuner, other configurations", "kernel_tuner", ("gemm",)),
    Slice("conv2d in MIOpen", "miopen", ("conv2d",)),
    Slice("conv2d in DeepBench", "deepbench", ("conv2d",)),
    Slice("conv2d in Kernel Tuner, other configurations", "kernel_tuner", ("conv2d",)),
    Slice("gemm, fp32", "neusight", ("gemm",), SIZES),
    Slice("elementwise, fp32", "neusight", ("elementwise",), SIZES),
    Slice("layernorm, fp32", "neusight", ("layernorm",), SIZES),
    Slice("softmax, fp32", "neusight", ("softmax",), SIZES),
    Slice("gemm, fp32, A100 80 GB", "neusight", ("gemm",), DEVICES, device="nvidia-a100-pcie-80gb"),
    Slice("gemm, fp32, MI100", "neusight", ("gemm",), DEVICES, device="amd-mi100"),
    Slice("elementwise, fp32, A100 80 GB", "neusight", ("elementwise",), DEVICES),
    Slice("layernorm, fp32, A100 80 GB", "neusight", ("layernorm",), DEVICES),
    Slice("softmax, fp32, A100 80 GB", "neusight", ("softmax",), DEVICES),
    Slice("gemm in KernelBench", "kernelbench", ("gemm",)),
    Slice("conv2d in KernelBench", "kernelbench", ("conv2d",)),
    Slice("elementwise in KernelBench", "kernelbench", ("elementwise",)),
    Slice("layernorm, softmax in KernelBench", "kernelbench", ("layernorm", "softmax")),
    Slice("power of gemm, 333 µs and up", "aiconfigurator", ("gemm",), POWER, "power_w", _LONG),
    Slice("power of attention, 333 µs and up", "aiconfigurator", _ATTENTION, POWER, "power_w", _LONG),
    Slice("power of moe, 333 µs and up", "aiconfigurator", ("moe",), POWER, "power_w", _LONG),
    Slice("power of all three, under 333 µs", "aiconfigurator", ("gemm", *_ATTENTION, "moe"), POWER, "power_w", _SHORT),
    Slice("energy of gemm, 333 µs and up", "aiconfigurator", ("gemm",), POWER, "energy_j", _LONG),
    Slice("energy of attention, 333 µs and up", "aiconfigurator", _ATTENTION, POWER, "energy_j", _LONG),
    Slice("energy of moe, 333 µs and up", "aiconfigurator", ("moe",), POWER, "energy_j", _LONG),
)  # fmt: skip
"""In the order of the page."""

_PEER_NAMES = {"neusight": "NeuSight", "habitat": "Habitat", "micro": "Li et al."}
_MODES = {"inf": "inference", "train": "training"}
_FIGURE_SIZES = {"gemm": ("m", "n", "k"), "elementwise": ("rows", "cols")}
_WHOLE_FAMILIES = ("gemm", "elementwise", "softmax", "layernorm")


def public_rows(tables: Path, predictor: ArtifactPredictor) -> list[PageRow]:
    """The page's rows of public tables; a table that is not there is named on stdout."""
    trained = predictor.manifest["sources"]

    @cache
    def scored(source: str, file: str, split: str | None) -> Sequence[Scored]:
        of_operators = file in OPERATOR_FILES
        path = (tables / "llm_ops" if of_operators else source_folder(tables, source)) / f"{file}.parquet"
        if not path.exists():
            print(f"no {source}/{path.name}: its rows are left out")
            return ()
        if of_operators:
            return [
                part for rows in read_llm_ops(path, str(split)) if rows.cases.family.name in predictor.families
                for part in score(predictor, rows, coverage=COVERAGE)
            ]  # fmt: skip
        # DeepBench has devices that are not in the catalogue.
        labelled = labelled_files([path], split=split, skip_bad_rows=True)
        return [part for rows in map(with_timing, labelled) for part in score(predictor, rows, coverage=COVERAGE)]

    results = []
    for item in SLICES:
        group = item.group if item.source in trained else LABS
        parts = [part for file in item.files for part in scored(item.source, file, group.split)]
        bounds = [part for part in parts if part.regressor == LOWER_BOUND and item.target == "latency_s"]
        answers = [part for part in parts if part.regressor != LOWER_BOUND and part.target == item.target]
        if metrics := slice_metrics(item, group, answers):
            bound = slice_metrics(item, group, bounds)
            results.append(PageRow(group.name, item.what, metrics, bound and bound.mean_ape_pct))
    results += _figure_rows(tables / "devices" / "public_figures.csv", predictor)
    results.sort(key=lambda row: PUBLIC_GROUPS.index(row.group))
    return [*results, *_whole_model_rows(source_folder(tables, "neusight"), predictor)]


def slice_metrics(item: Slice, group: Group, parts: Sequence[Scored]) -> Metrics | None:
    """Metrics of a slice; None where no row is of it."""
    if not parts:
        return None
    labels = ("device", "device seen in training", *(("kernel time",) if item.band else ()))
    whole = pooled(parts, family="", labels=labels)
    rows = whole.labels["device seen in training"] == group.seen
    rows &= np.char.startswith(whole.labels["device"], item.device)
    if item.band:
        rows &= whole.labels["kernel time"] == item.band
    return whole.metrics(rows) if rows.any() else None


def _figure_rows(path: Path, predictor: ArtifactPredictor) -> Iterator[PageRow]:
    """Well-known single figures: kernels in words, such as `gemm 8192 8192 8192 bf16`, of a kernel alone.

    They are not all unseen: device files have some as peaks, which no answer of a measured kernel reads, and `STREAM_SHARES` is
    from the source of the streams.
    """
    if not path.exists():
        print(f"no {path.name}: well-known figures are left out")
        return
    with path.open(encoding="utf-8", newline="") as file:
        figures = list(csv.DictReader(file))
    specs = []
    for figure in figures:
        family, *words = figure["kernel"].split()
        sizes = dict(zip(_FIGURE_SIZES[family], map(int, filter(str.isdecimal, words)), strict=True))
        dtype, *variant = (word for word in words if not word.isdecimal())
        specs.append(KernelSpec.of(family, dtype, variant="".join(variant), timing="device", **sizes))
    labels = np.array([float(figure["latency_s"]) for figure in figures])
    answers = predictor.predict(specs, [figure["device"] for figure in figures], coverage=COVERAGE)
    ends = np.array([(item.latency_s.value, item.latency_s.lower, item.latency_s.upper) for item in answers])
    bound = ape_pct(labels, np.array([max(item.breakdown.values()) for item in answers]))
    yield PageRow(
        LABS.name, "well-known peaks of products and streams", Metrics.of(labels, *ends.T), float(bound.mean())
    )


def _whole_model_rows(folder: Path, predictor: ArtifactPredictor) -> Iterator[PageRow]:
    """Inference and training, on devices of which all four families were measured and on the others."""
    paths = folder / "model_e2e.parquet", folder / "model_ops.parquet"
    if missing := [path.name for path in paths if not path.exists()]:
        print(f"no {missing[0]}: whole models are left out")
        return
    judged = list(whole_rows(*map(read, paths), predictor))
    families = predictor.manifest["families"]
    measured = set.intersection(*(set(families[name]["devices"]) for name in _WHOLE_FAMILIES))
    for mode, title in _MODES.items():
        for is_measured, where in ((True, "devices measured"), (False, "devices not or partly measured")):
            rows = [one for one in judged if one.what == mode and (one.row["device"] in measured) == is_measured]
            if not rows:
                continue
            ends = [one.whole.latency_s for one in rows]
            columns = [(one.label_s, end.value, end.lower, end.upper) for one, end in zip(rows, ends, strict=True)]
            bound = ape_pct(np.array([one.label_s for one in rows]), np.array([one.whole.bound_s for one in rows]))
            # A peer that leaves rows out is judged on other rows.
            peers = {name: errors(rows, peer) for peer, name in _PEER_NAMES.items()}
            means = {name: ape.mean() for name, ape in peers.items() if len(ape) == len(rows)}
            best = min(means, key=means.__getitem__, default="")
            peer = f"{means[best]:.1f} ({best})" if best else ""
            metrics = Metrics.of(*np.array(columns).T)
            yield PageRow(WHOLE_MODELS, f"{title}, {where}", metrics, float(bound.mean()), peer)
