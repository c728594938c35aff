"""Every published error of the shipped model: docs/accuracy.md, and beside the model what `GET /v1/accuracy` answers.

Run `make accuracy TABLES=folder`, where the folder has a folder of tables per source (`benchmarks/pretrained.py`). Rows of
public tables judge the shipped model and take seconds. For own rows models are trained without them: some minutes on two cores.
It is due whenever `benchmarks/pretrained.py` made the model anew.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from accuracy_public import COVERAGE, PUBLIC_GROUPS, PageRow, public_rows
from kernelcast.api.browse.accuracy import (
    PARITY_POINTS,
    AccuracyAnswer,
    AccuracySlice,
    AccuracySplit,
    ParityPoints,
    model_hash,
    read_accuracy,
    write_accuracy,
)
from kernelcast.datasets.rows.splits import held_out_region, held_out_shapes
from kernelcast.datasets.shipped import read_shipped, shipped_families
from kernelcast.models.evaluation.evaluation import trained_and_scored
from kernelcast.models.evaluation.scoring import LOWER_BOUND, Scored
from kernelcast.models.family_model.artifact import read_manifest
from kernelcast.models.metrics import Metrics
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.models.training.labelled_cases import LabelledCases, labelled_tables
from kernelcast.process import core_count

ROOT = Path(__file__).parents[1]
SHIPPED_MODEL = ROOT / "models" / "pretrained" / "kernels"
PAGE = ROOT / "docs" / "accuracy.md"
SHIPS = "blend"
HELD_OUT = {
    "hash": "Shapes held out by hash: 10 % of the shapes, in every dtype, thread count, cache state and configuration",
    "region": "A region held out: the 5 % of shapes with the most work, which a model must extrapolate to",
}
OWN_GROUPS = {"hash": "own rows, other shapes", "region": "own rows, largest shapes"}
GROUPS = (*PUBLIC_GROUPS, *OWN_GROUPS.values())
"""In the order of the page."""

HEADER = ("group", "what", "rows", "roofline", "best peer", "mean", "median", "within 10 %", "covers", "width")


def main(argv: Sequence[str] | None = None) -> None:
    """Judge the shipped model on public tables and models without own rows on these; write the page and the model's file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, help="folder of the public tables; default: the page keeps their rows")
    parser.add_argument("--only", choices=("public",), help="train nothing: the page keeps the own rows")
    parser.add_argument(
        "--families", default="", help="own rows of these alone, by commas; page and file keep the others'"
    )
    options = parser.parse_args(argv)
    chosen = options.families.split(",") if options.families else shipped_families()
    if options.only and not options.tables:
        parser.error("--only public needs --tables")
    rows: list[PageRow] = []
    if options.tables:
        rows += public_rows(options.tables, load_predictor(SHIPPED_MODEL))
    else:
        print(f"no TABLES: the rows of these groups stay as they are: {'; '.join(PUBLIC_GROUPS)}", flush=True)
    if not options.only:
        manifest = read_manifest(SHIPPED_MODEL)
        tables = labelled_tables({family: read_shipped(family) for family in chosen})
        splits, judged = own_rows(tables)
        rows += judged
        before = read_accuracy(SHIPPED_MODEL)
        if options.families and before is not None:
            splits = [_joined(split, before) for split in splits]
        write_accuracy(AccuracyAnswer(model_hash(manifest), manifest["regressor"], splits), SHIPPED_MODEL)
    PAGE.write_text(page(rows, PAGE.read_text(encoding="utf-8"), families=chosen), encoding="utf-8")


def _joined(split: AccuracySplit, before: AccuracyAnswer) -> AccuracySplit:
    """A split with what the file had of families that were not judged anew: each trains apart."""
    judged = {item.family for item in split.slices}
    (old,) = (each for each in before.splits if each.name == split.name)
    slices = [*split.slices, *(item for item in old.slices if item.family not in judged)]
    parity = [*split.parity, *(item for item in old.parity if item.family not in judged)]
    return msgspec.structs.replace(
        split, slices=sorted(slices, key=lambda item: item.family), parity=sorted(parity, key=lambda item: item.family)
    )


def page(rows: Iterable[PageRow], before: str, *, families: Sequence[str] | None = None) -> str:
    """The whole page; a group without rows keeps those it has in the page before, one of own rows those of other families."""
    groups: dict[str, list[Sequence[str]]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row.cells)
    old = _rows_of(before)
    for name in OWN_GROUPS.values():
        if name in groups and families is not None:
            kept = [cells for cells in old.get(name, ()) if cells[0] not in families]
            groups[name] = sorted([*kept, *groups[name]], key=lambda cells: cells[0])
    groups = old | groups
    lines = [("" if i else name, *cells) for name in GROUPS for i, cells in enumerate(groups.get(name, ()))]
    table = [HEADER, ["---"] * len(HEADER), *lines]
    return _HEAD + "\n" + "".join("| " + " | ".join(cells) + " |\n" for cells in table)


def _rows_of(text: str) -> dict[str, list[Sequence[str]]]:
    """The cells of a page's rows by group; only the first row of a group names it."""
    groups: dict[str, list[Sequence[str]]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("| "):
            first, *cells = (cell.strip() for cell in line.strip().strip("|").split("|"))
            name = first or name
            groups.setdefault(name, []).append(cells)
    return groups


_HEAD = """# Accuracy

Written by `make accuracy TABLES=folder` (`benchmarks/accuracy.py`). Figures are absolute percentage errors of latency, or of
power or energy where the row says so (mean, median, share within 10 %), and coverage and median width of the 90 % interval, all
in percent; `roofline` is the mean error of the lower bound, `best peer` that of the best predictor whose answers the public
tables have for all of the rows. Rows of public tables judge the [shipped model](model-card.md), which was trained on other rows
of the same tables, but on none of the other labs'. Own rows judge models trained by the same regressor on the other own rows
alone; `GET /v1/accuracy` has their errors by device.
"""


def own_rows(tables: Sequence[LabelledCases]) -> tuple[list[AccuracySplit], list[PageRow]]:
    """Errors on own rows by models that were trained on the others, for the service and for the page."""
    splits, rows = [], []
    for held_out, title in HELD_OUT.items():
        with ThreadPoolExecutor(core_count()) as pool:
            scored = [part for parts in pool.map(partial(_scored, held_out), tables) for part in parts]
        bounds = {part.family: part.metrics().mean_ape_pct for part in scored if part.regressor == LOWER_BOUND}
        answers = [part for part in scored if part.regressor != LOWER_BOUND]
        slices = [item for part in answers for item in _slices(part)]
        parity = [points for part in answers for points in _parity(part)]
        splits.append(AccuracySplit(held_out, _DOC.format(title=title, regressor=SHIPS), slices, parity))
        whole = [item for item in slices if item.target == "latency_s" and item.device is None]
        rows += [PageRow(OWN_GROUPS[held_out], item.family, _metrics(item), bounds[item.family]) for item in whole]
    return splits, rows


_DOC = (
    "{title}. Rows are those that ship. To have predictions of rows never seen, a second model was trained by the same "
    "regressor ({regressor}) on the other shipped rows alone; the served one has seen all of them, and public rows beside."
)


def _scored(held_out: str, rows: LabelledCases) -> Sequence[Scored]:
    print(f"{held_out}: {rows.cases.family.name}", flush=True)
    out = held_out_region(rows.cases) if held_out == "region" else held_out_shapes(rows.cases, seed=0)
    return trained_and_scored(rows.take(~out), [rows.take(out)], SHIPS, COVERAGE, None)


def _slices(scored: Scored) -> Iterator[AccuracySlice]:
    """Errors on all devices together, then on each."""
    for device in (None, *np.unique(scored.labels["device"]).tolist()):
        rows = slice(None) if device is None else scored.labels["device"] == device
        m = scored.metrics(rows)
        shares = [None if pct is None else round(pct / 100, 6) for pct in (m.coverage_pct, m.width_pct)]
        yield AccuracySlice(
            scored.family, device, scored.target, m.n, round(m.mean_ape_pct / 100, 6), round(m.median_ape_pct / 100, 6),
            round(m.within_10_pct / 100, 6), shares[0], COVERAGE, shares[1],
        )  # fmt: skip


def _metrics(item: AccuracySlice) -> Metrics:
    """The same in percent; the page is made of what the service answers, so that both round alike."""
    assert item.covered is not None
    assert item.width is not None
    shares = (item.mean, item.median, item.within_10, item.covered, item.width)
    mean, median, within, covered, width = (100 * share for share in shares)
    return Metrics(item.n, mean, median, within, coverage_pct=covered, width_pct=width)


def _parity(scored: Scored) -> Iterator[ParityPoints]:
    """Rows spread evenly over all of them in order of size, the same every time, by device."""
    order = np.argsort(scored.measured, kind="stable")
    places = np.linspace(0, len(order) - 1, min(len(order), PARITY_POINTS)).round().astype(np.int64)
    shown = order[np.unique(places)]
    for device in np.unique(scored.labels["device"][shown]).tolist():
        local = shown[scored.labels["device"][shown] == device]
        columns = (scored.measured[local], scored.value[local], scored.lower[local], scored.upper[local])
        yield ParityPoints(
            scored.family, device, scored.target, *([float(f"{x:.5g}") for x in column] for column in columns)
        )


if __name__ == "__main__":
    main()
