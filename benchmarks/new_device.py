"""A CPU never trained on: error on shapes never measured, by rows so far, by what learns from them, and night by night.

    python -P benchmarks/new_device.py --model DIR [--rows 50,100,250,500,1000]   # the curve, three folds of shapes
    python -P benchmarks/new_device.py --model DIR --replay 45 [--seed 0]  # nights of 45 rows with the gate; a third judges
    python -P benchmarks/new_device.py --model DIR --home KERNELCAST_HOME [--out OUT.svg]   # nights that were run

The rows are the shipped ones of a CPU (`--device`). `--model` is a model that was trained without them, as
`benchmarks/pretrained.py --without DEVICE` makes it. Nights are judged by rows whose shapes no night measured. Prints
Markdown: mean and median absolute percentage error of latency.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
from kernelcast.datasets.rows.splits import mixed, shape_hashes
from kernelcast.datasets.shipped import read_shipped, shipped_families
from kernelcast.datasets.store.store import Store
from kernelcast.features.batch.cases import Floats
from kernelcast.features.device import catalogue
from kernelcast.models.family_model.nearby_rows import Method
from kernelcast.models.metrics import ape_pct
from kernelcast.models.predict.predictor import ArtifactPredictor, load_predictor
from kernelcast.models.selection.suggest import spec_at
from kernelcast.models.training.device_calibration import calibrated
from kernelcast.models.training.labelled_cases import LabelledCases
from kernelcast.models.training.store_rows import labelled_batches
from kernelcast.nightly.gate.challengers import fold_scores
from kernelcast.nightly.gate.evidence import Evidence
from kernelcast.nightly.gate.judge import Rules, chosen, judge
from kernelcast.nightly.record.folders import blocks_of
from kernelcast.nightly.record.record import NightRecord
from kernelcast.nightly.stages.choose import space_filling

METHODS: dict[str, Method] = {"adapted-median": "median", "adapted-nearby": "nearby", "adapted": "process"}
COLOURS = {
    "served": "#ee6677",
    "shipped": "#bbbbbb",
    "adapted-median": "#ccbb44",
    "adapted-nearby": "#4477aa",
    "adapted": "#228833",
}


def pool(device: str) -> list[LabelledCases]:
    """The shipped rows of a device, one table a family."""
    tables = {family: read_shipped(family, [device]) for family in shipped_families()}
    return [labelled(name, table) for name, table in tables.items() if table.num_rows]


def labelled(family: str, table: object) -> LabelledCases:
    """The good rows of a stored table."""
    good = table.filter(pc.field("status") == "ok")  # type: ignore[attr-defined]
    return replace(labelled_batches(family, good.to_batches(), known=catalogue()), source=None)


def errors(model: ArtifactPredictor, tables: Sequence[LabelledCases]) -> Floats:
    """Absolute percentage errors of all rows."""
    answers = [model.predict_cases(rows.cases).targets["latency_s"].value for rows in tables]
    return np.concatenate([ape_pct(rows.latency_s, value) for rows, value in zip(tables, answers, strict=True)])


def words(every: Floats) -> str:
    """Mean and median."""
    return f"{every.mean():.1f} / {np.median(every):.1f}"


def where(tables: Sequence[LabelledCases], masks: Sequence[object]) -> list[LabelledCases]:
    """The rows for which a mask holds, tables without any left out."""
    parts = [rows.take(np.flatnonzero(mask)) for rows, mask in zip(tables, masks, strict=True)]  # type: ignore[call-overload]
    return [rows for rows in parts if len(rows)]


def third(rows: LabelledCases) -> Floats:
    """The fold of each row, by its shape."""
    return np.asarray(mixed(shape_hashes(rows.cases)) % np.uint64(3), dtype=np.float64)


def curve(shipped: ArtifactPredictor, tables: Sequence[LabelledCases], counts: Sequence[int]) -> None:
    """Print errors by number of rows."""
    total = sum(map(len, tables)) * 2 / 3
    print(f"| rows | shipped | {' | '.join(METHODS)} |\n|---|---|{'---|' * len(METHODS)}")
    for count in counts:
        columns: dict[str, list[Floats]] = {}
        for fold in range(3):
            judged, rest = (where(tables, [(third(rows) == fold) == same for rows in tables]) for same in (True, False))
            order = [np.random.default_rng(fold).permutation(len(rows)) for rows in rest]
            learn = [
                rows.take(by[: max(2, round(count / total * len(by)))]) for rows, by in zip(rest, order, strict=True)
            ]
            columns.setdefault("shipped", []).append(errors(shipped, judged))
            for name, method in METHODS.items():
                columns.setdefault(name, []).append(errors(calibrated(shipped, learn, method=method)[0], judged))
        print(f"| {count} | {' | '.join(words(np.concatenate(column)) for column in columns.values())} |", flush=True)


def replay(shipped: ArtifactPredictor, tables: Sequence[LabelledCases], rows_a_night: int, seed: int) -> None:
    """Print what would serve night after night."""
    judged, rest = (where(tables, [(third(rows) == 0) == same for rows in tables]) for same in (True, False))
    place = {spec_at(rows.cases, i): (t, i) for t, rows in enumerate(rest) for i in range(len(rows))}
    drawn = [list(place)[i] for i in np.random.default_rng(seed).permutation(len(place)).tolist()]
    order = space_filling(drawn, [])
    served, evidence, by, rows_then = shipped, dict[str, Evidence](), "shipped", 1
    earlier: list[LabelledCases] = []
    print(f"| night | rows | served | {' | '.join(METHODS)} | by |\n|---|---|---|{'---|' * (1 + len(METHODS))}")
    for night in range(1, len(order) // rows_a_night + 1):
        index = [place[spec] for spec in order[(night - 1) * rows_a_night : night * rows_a_night]]
        tonight = [
            rest[t].take(np.array([i for table, i in index if table == t])) for t in sorted({t for t, _ in index})
        ]
        learn = [*earlier, *tonight]
        models = {name: calibrated(shipped, learn, method=method)[0] for name, method in METHODS.items()}
        verdicts = []
        for name, method in METHODS.items():
            judged_tonight = fold_scores(served, earlier, tonight, str(night), method, 0)
            growth = sum(map(len, learn)) / rows_then * by.startswith(f"{name},")
            known = evidence.get(name, Evidence())
            verdicts.append(judge(name, judged_tonight, known, [], Rules(), len(METHODS), refit=growth))
        evidence = {verdict.name: verdict.evidence for verdict in verdicts}
        if (winner := chosen(verdicts)) is not None:
            keep = {name: served.family(name) for name in winner.keep}
            served, evidence, by = models[winner.name].with_families(keep), {}, f"{winner.name}, night {night}"
            rows_then = sum(map(len, learn))
        earlier = learn
        cells = [words(errors(model, judged)) for model in (served, *models.values())]
        print(f"| {night} | {sum(map(len, learn))} | {' | '.join(cells)} | {by} |", flush=True)


def nights(shipped: ArtifactPredictor, tables: Sequence[LabelledCases], home: Path, out: Path | None) -> None:
    """Print, and draw, what served after each night that was run in `home`."""
    stored = Store(home / "measurements").read_all()
    folders = sorted(path for path in (home / "nights").iterdir() if path.is_dir())
    measured = {name: labelled(name, table) for name, table in stored.items()}
    judged = where(tables, [
        ~np.isin(shape_hashes(rows.cases), shape_hashes(measured[rows.cases.family.name].cases)) for rows in tables
    ])  # fmt: skip
    blocks: list[str] = []
    by, lines = shipped, dict[str, list[float]]()
    counts = []
    print(
        f"| night | rows | shipped | served | {' | '.join(METHODS)} | outcome |\n|---|---|---|---|{'---|' * (1 + len(METHODS))}"
    )
    for night, folder in enumerate(folders, start=1):
        record, blocks = NightRecord.read(folder / "state.json"), [*blocks, *blocks_of(folder)]
        parts = {name: table.filter(pc.field("block").isin(blocks)) for name, table in stored.items()}
        learn = [labelled(name, table) for name, table in parts.items() if table.num_rows]
        models = {name: calibrated(shipped, learn, method=method)[0] for name, method in METHODS.items()}
        if record.champion_after == "shipped":
            by = shipped
        if record.outcome == "promoted":
            verdicts = {verdict["name"]: verdict for verdict in record.stage("gate").facts["verdicts"]}
            winner = verdicts[record.stage("gate").facts["winner"]]
            by = models[winner["name"]].with_families({name: by.family(name) for name in winner.get("keep", ())})
        row = {"shipped": shipped, "served": by, **models}
        found = {name: errors(model, judged) for name, model in row.items()}
        for name, every in found.items():
            lines.setdefault(name, []).append(float(every.mean()))
        counts.append(sum(map(len, learn)))
        print(f"| {night} | {counts[-1]} | {' | '.join(map(words, found.values()))} | {record.outcome} |", flush=True)
    print(f"\n{sum(map(len, judged))} rows judge", json.dumps(lines))
    if out is not None:
        out.write_text(chart(lines, counts))


def chart(lines: dict[str, list[float]], counts: Sequence[int]) -> str:
    """The mean errors by night as SVG."""
    width, height, left, top, bottom = 640, 340, 50, 20, 70
    most = 5 * np.ceil(max(map(max, lines.values())) / 5)

    def at(i: int, value: float) -> str:
        x = left + (i + 0.5) / len(counts) * (width - left - 10)
        return f"{x:.1f} {top + (1 - value / most) * (height - top - bottom):.1f}"

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="#fff"/>']  # fmt: skip
    for tick in range(0, int(most) + 1, 10):
        y = at(0, tick).split()[1]
        parts.append(f'<path d="M{left} {y}H{width - 10}" stroke="#ccc"/><text x="{left - 6}" y="{float(y) + 4}" '
                     f'text-anchor="end">{tick} %</text>')  # fmt: skip
    for i, count in enumerate(counts):
        x = at(i, 0).split()[0]
        parts.append(f'<text x="{x}" y="{height - bottom + 16}" text-anchor="middle">{i + 1}: {count}</text>')
    for i, (name, colour) in enumerate(COLOURS.items()):
        path = " L".join(itertools.starmap(at, enumerate(lines[name])))
        parts.append(
            f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{3 if name == "served" else 1.5}"/>'
        )
        x, y = left + i * 115, height - 20
        parts.append(
            f'<path d="M{x} {y - 4}h18" stroke="{colour}" stroke-width="3"/><text x="{x + 22}" y="{y}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """What the module says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="50,100,250,500,1000")
    parser.add_argument("--replay", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="amd-epyc-9004-vm-2c", help="the CPU that plays the new one")
    parser.add_argument("--model", type=Path, required=True, help="a model that was trained without it")
    args = parser.parse_args()
    shipped, tables = load_predictor(args.model), pool(args.device)
    if args.home is not None:
        nights(shipped, tables, args.home, args.out)
    elif args.replay is not None:
        replay(shipped, tables, args.replay, args.seed)
    else:
        curve(shipped, tables, [int(count) for count in args.rows.split(",")])


if __name__ == "__main__":
    main()
