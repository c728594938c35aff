"""Night by night over a recorded history with changes of software: retraining against models kept from earlier nights.

After every night each policy makes or picks a model; all are judged on the next night's rows of cases never measured before.
The history that comes with kernelcast (datasets/data/history) has twelve nights on one processor. A table of the public form
with several `impl` versions of one software (aiconfigurator's tables of an H200, say) can be played as nights too: its versions
become the software, its rows are dealt to nights.

    python -P benchmarks/history.py [--base N] [--table FILE.parquet ... --device NAME] [--models DIR] [--json OUT.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from kernelcast.datasets.rows.splits import shape_hashes
from kernelcast.datasets.shipped import HISTORY_DIR, read_shipped
from kernelcast.datasets.store.parquet_files import family_schema, provenance_of, read_file
from kernelcast.features.batch.cases import Floats
from kernelcast.models.family_model.artifact import save_artifact
from kernelcast.models.metrics import ape_pct
from kernelcast.models.predict.predictor import ArtifactPredictor, load_predictor
from kernelcast.models.regressor import get_regressor
from kernelcast.models.regressors.xgboost import XGBoost
from kernelcast.models.training import training
from kernelcast.models.training.fitting import MIN_ROWS
from kernelcast.models.training.labelled_cases import LabelledCases, joined, labelled_files, labelled_table
from kernelcast.models.training.training import train
from kernelcast.nightly.gate.challengers import adapted
from kernelcast.nightly.gate.model_ledger import ModelEntry

PLAYED = "aaabbaaabbba"
"""Versions of the nights that a table is played as; the table's oldest version is `a`."""

PLAYED_ROWS = 150
"""Rows of a family in a played night."""


SMALL = XGBoost(name="small", sizes=((100_000_000, 16, 150, 0.1),))
"""Boosted trees that some hundred rows a family are enough for, and that are trained in a second."""


@dataclass(frozen=True)
class Night:
    """One night: what software ran, and its rows by family; `fresh` are those of cases that no earlier night measured."""

    id: str
    software: str
    rows: Mapping[str, LabelledCases]
    fresh: Mapping[str, LabelledCases]

    @property
    def device(self) -> str:
        """What it was measured on."""
        return str(next(iter(self.rows.values())).cases.device[0])


@dataclass(frozen=True)
class Made:
    """A model of a policy: where it is, and the processor seconds it took."""

    path: Path
    seconds: float


def recorded(folder: Path = HISTORY_DIR) -> list[Night]:
    """The nights of the recorded history."""
    result: dict[int, dict[str, LabelledCases]] = {}
    software: dict[int, str] = {}
    for path in sorted(folder.glob("*.parquet")):
        table = read_file(path, family_schema(path.stem))
        facts = provenance_of(table)
        nights = np.array([facts[block]["night"] for block in table["block"].to_pylist()])
        software |= {int(facts[block]["night"]): str(facts[block]["libraries"]) for block in facts}
        for night in np.unique(nights).tolist():
            rows = labelled_table(table.filter(nights == night), path.stem)
            result.setdefault(night, {})[path.stem] = replace(rows, source=None)
    return _nights([(software[night], result[night]) for night in sorted(result)])


def played(paths: Sequence[Path], device: str, rows: int = PLAYED_ROWS) -> list[Night]:
    """Rows of one device dealt to nights; the `impl` is one and the same then, and its versions are the software."""
    rng = np.random.default_rng(20261122)
    tables = [
        labelled_file.take(np.flatnonzero(labelled_file.cases.device == device))
        for labelled_file in labelled_files(paths)
    ]
    versions = sorted({name for table in tables for name in table.cases.impl.tolist()})
    if len(versions) < 2:
        raise SystemExit(f"{device} has one version only: {versions}")
    letters = dict(zip("ab", versions, strict=False))
    nights: list[tuple[str, dict[str, LabelledCases]]] = [(letters[letter], {}) for letter in PLAYED]
    for table in tables:
        for letter, version in letters.items():
            order = rng.permutation(np.flatnonzero(table.cases.impl == version))
            parts = [order[start : start + rows] for start in range(0, len(order), rows)]
            single = replace(table.cases, impl=np.full(len(table), version.partition("-")[0]))
            for part, place in zip(parts, [i for i, name in enumerate(PLAYED) if name == letter], strict=False):
                nights[place][1][table.cases.family.name] = replace(table, cases=single, source=None).take(part)
    return _nights(nights)


def append_log_base(nights: Sequence[Night], most: int) -> list[Night]:
    """The nights after a campaign of `most` shipped rows a family (one thread, hot), in the first night's software."""
    first = nights[0]
    base = {}
    for family in first.rows:
        rows = labelled_table(read_shipped(family, [first.device]), family)
        alike = (rows.cases.threads == 1) & (rows.cases.cache_state == "hot") & (rows.cases.impl == "torch")
        drawn = np.random.default_rng(20261122).permutation(np.flatnonzero(alike))[:most]
        base[family] = replace(rows, source=None).take(np.sort(drawn))
    return _nights([(first.software, base), *((night.software, night.rows) for night in nights)])


def _cases(rows: LabelledCases) -> list[tuple[int, str, str, str]]:
    cases = rows.cases
    columns = (shape_hashes(cases), cases.dtype, cases.kv_dtype, cases.variant)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _nights(parts: Sequence[tuple[str, Mapping[str, LabelledCases]]]) -> list[Night]:
    seen: dict[str, set[tuple[int, str, str, str]]] = {}
    results = []
    for i, (software, rows) in enumerate(parts):
        fresh = {}
        for family, row in rows.items():
            cases = _cases(row)
            fresh[family] = row.take([i for i, case in enumerate(cases) if case not in seen.get(family, set())])
            seen.setdefault(family, set()).update(cases)
        results.append(Night(f"202611{i + 1:02d}T220000Z-history", software, rows, fresh))
    return results


class History:
    """What is known after night `n` (counted from 0), and the models kept so far; software of night `n + 1` is known."""

    def __init__(self, nights: Sequence[Night], folder: Path, regressor: str) -> None:
        self.nights, self.folder, self.regressor = nights, folder, regressor
        self.kept: list[ModelEntry] = []
        self._made: dict[tuple[str, ...], Made] = {}
        self._predictors: dict[Path, ArtifactPredictor] = {}

    def trained(self, which: Sequence[int]) -> Made | None:
        """A model of these nights' rows; made once. None where every family has too few."""
        key = tuple(map(str, which))
        if key not in self._made:
            parts: dict[str, list[LabelledCases]] = {}
            for i in which:
                for family, rows in self.nights[i].rows.items():
                    parts.setdefault(family, []).append(rows)
            tables = [joined(parts[family]) for family in sorted(parts)]
            if not (tables := [table for table in tables if len(table) >= MIN_ROWS]):
                return None
            path = self.folder / f"model-{'-'.join(key)}"
            took = path.with_suffix(".seconds")
            if not took.exists():
                began = time.process_time()
                save_artifact(train(tables, regressor=self.regressor), path)
                took.write_text(str(time.process_time() - began))
            self._made[key] = Made(path, float(took.read_text()))
        return self._made[key]

    def of_software(self, n: int, software: str) -> list[int]:
        """Nights up to `n` of one software."""
        return [i for i in range(n + 1) if self.nights[i].software == software]

    def keep(self, n: int) -> None:
        """Keep the model of night `n`: of the rows of its software so far."""
        night = self.nights[n]
        created = self.trained(self.of_software(n, night.software))
        assert created is not None
        self.kept.append(
            ModelEntry(night.id, str(created.path), "retrained", night.id, "", software={night.device: night.software})
        )

    def errors_on(self, model: Path, rows: Mapping[str, LabelledCases]) -> dict[str, Floats]:
        """Absolute percentage errors on rows by family; families the model lacks are answered by nobody."""
        if model not in self._predictors:
            self._predictors[model] = load_predictor(model)
        predictor = self._predictors[model]
        return {
            family: ape_pct(row.latency_s, predictor.predict_cases(row.cases).targets["latency_s"].value)
            for family, row in rows.items()
            if len(row) and family in predictor.families
        }

    def picked(self, n: int) -> ModelEntry:
        """The newest kept model of the software of the night after `n`, else of any; none made in night `n` itself."""
        coming = self.nights[n + 1]
        models = self.kept[:-1] or self.kept
        return max(models, key=lambda item: (item.software.get(coming.device) == coming.software, item.version))

    def adapted(self, base: Path, n: int) -> Made:
        """`base` adapted with the rows of the coming software so far; as it is where there are none."""
        nights = self.of_software(n, self.nights[n + 1].software)
        tables = [rows for i in nights for rows in self.nights[i].rows.values()]
        if not tables:
            return Made(base, 0.0)
        out = self.folder / f"{base.name}-adapted-{'-'.join(map(str, nights))}"
        took = out.with_suffix(".seconds")
        if not took.exists():
            began = time.process_time()
            adapted(base, tables, out)
            took.write_text(str(time.process_time() - began))
        return Made(out, float(took.read_text()))


def _kept(history: History, n: int) -> Made:
    return Made(Path(history.picked(n).path), 0.0)


def _current(history: History, n: int) -> Made:
    same = history.of_software(n, history.nights[n + 1].software)
    created = history.trained(same or list(range(n + 1)))
    assert created is not None
    return created


def _everything(history: History, n: int) -> Made:
    created = history.trained(list(range(n + 1)))
    assert created is not None
    return created


def _everything_adapted(history: History, n: int) -> Made:
    every = _everything(history, n)
    there = history.adapted(every.path, n)
    return Made(there.path, every.seconds + there.seconds)


def _past_adapted(history: History, n: int) -> Made:
    return history.adapted(Path(history.picked(n).path), n)


def _first_adapted(history: History, n: int) -> Made:
    return history.adapted(Path(history.kept[0].path), n)


CANDIDATES: Mapping[str, Callable[[History, int], Made]] = {
    "retrained on all rows": _everything,
    "retrained on all rows, adapted": _everything_adapted,
    "retrained on the current software": _current,
    "the first night's model": lambda history, n: Made(Path(history.kept[0].path), 0.0),
    "the model of the night before": lambda history, n: Made(Path((history.kept[:-1] or history.kept)[-1].path), 0.0),
    "past model of the software": _kept,
    "past model of the software, adapted": _past_adapted,
    "first night's model, adapted": _first_adapted,
}
"""What each policy serves in the night after `n`. No past model is of night `n` itself: nothing was trained for it then."""


def kind_of(nights: Sequence[Night], n: int) -> str:
    """What night `n` is: the software of the night before, new, or come back."""
    if nights[n].software == nights[n - 1].software:
        return "same"
    return "back" if nights[n].software in {night.software for night in nights[:n]} else "new"


def play(nights: Sequence[Night], regressor: str, models: Path | None = None) -> list[dict[str, object]]:
    """Every policy over the nights: one line per policy, night and family with its errors. `models` keeps what is trained."""
    lines: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        if models is not None:
            models.mkdir(parents=True, exist_ok=True)
        history = History(nights, models or Path(folder), regressor)
        for n in range(len(nights) - 1):
            history.keep(n)
            for name, make in CANDIDATES.items():
                created = make(history, n)
                for family, errors in history.errors_on(created.path, nights[n + 1].fresh).items():
                    lines.append({"policy": name, "night": n + 2, "software": nights[n + 1].software,
                                  "kind": kind_of(nights, n + 1), "family": family, "seconds": created.seconds,
                                  "errors": errors.tolist()})  # fmt: skip
            print(f"night {n + 2} of {len(nights)} judged", flush=True)
    return lines


def _figures(lines: Sequence[dict[str, object]]) -> dict[str, float]:
    errors = np.concatenate([np.asarray(line["errors"], dtype=float) for line in lines])
    return {"rows": len(errors), "mean": float(errors.mean()), "median": float(np.median(errors)),
            "within_10": float((errors <= 10).mean() * 100)}  # fmt: skip


def table_of(lines: Sequence[dict[str, object]]) -> str:
    """The figures of every policy in Markdown: all nights, and by what happened before the night."""
    heads = ["policy", "mean", "median", "within 10 %", "same: mean", "new: mean", "back: mean", "processor s a night"]
    rows = [heads, ["---"] * len(heads)]
    for name in CANDIDATES:
        items = [line for line in lines if line["policy"] == name]
        every = _figures(items)
        kinds = [[item for item in items if item["kind"] == kind] for kind in ("same", "new", "back")]
        spent = {item["night"]: float(str(item["seconds"])) for item in items}
        rows.append([name, f"{every['mean']:.1f} %", f"{every['median']:.1f} %", f"{every['within_10']:.0f} %",
                     *(f"{_figures(part)['mean']:.1f} %" if part else "–" for part in kinds),
                     f"{np.mean(list(spent.values())):.1f}"])  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def by_family(lines: Sequence[dict[str, object]]) -> str:
    """Mean error of every policy by family."""
    families = sorted({str(line["family"]) for line in lines})
    rows = [["policy", *families], ["---"] * (len(families) + 1)]
    for name in CANDIDATES:
        parts = [[line for line in lines if (line["policy"], line["family"]) == (name, family)] for family in families]
        rows.append([name, *(f"{_figures(part)['mean']:.1f} %" for part in parts)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def by_night(lines: Sequence[dict[str, object]]) -> dict[str, dict[int, float]]:
    """Mean error of every policy by night."""
    nights = sorted({int(str(line["night"])) for line in lines})
    return {name: {night: _figures([line for line in lines if (line["policy"], line["night"]) == (name, night)])["mean"]
                   for night in nights} for name in CANDIDATES}  # fmt: skip


def main() -> None:
    """What the module says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, nargs="+", help="tables of the public form, played as nights")
    parser.add_argument("--device", default="nvidia-h200-sxm-141gb", help="whose rows of the tables are played")
    parser.add_argument("--rows", type=int, default=PLAYED_ROWS, help="rows of a family in a played night")
    parser.add_argument("--history", type=Path, default=HISTORY_DIR)
    parser.add_argument("--regressor", default=SMALL.name, help="small: boosted trees for few rows; or any regressor")
    parser.add_argument("--base", type=int, default=0, metavar="N", help="begin with N shipped rows a family")
    parser.add_argument("--models", type=Path, help="keep trained models here, and go on from those that are there")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    training.get_regressor = lambda name: SMALL if name == SMALL.name else get_regressor(name)
    nights = played(args.table, args.device, args.rows) if args.table else recorded(args.history)
    nights = append_log_base(nights, args.base) if args.base else nights
    for i, night in enumerate(nights):
        counts = {family: len(rows) for family, rows in night.rows.items()}
        print(f"night {i + 1}: {night.software}, rows {counts}")
    lines = play(nights, args.regressor, args.models)
    print(table_of(lines), by_family(lines), sep="\n\n")
    print(json.dumps(by_night(lines)))
    if args.json:
        args.json.write_text(json.dumps(lines))


if __name__ == "__main__":
    main()
