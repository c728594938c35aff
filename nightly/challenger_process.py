"""Challengers made in a process of their own: it can be ended when its time is over, and its memory is not the night's.

    python -P -m kernelcast.nightly.challenger_process FOLDER NAME PARENT

`FOLDER` is the night's; a result is `challengers/NAME/` and, written last, `challengers/NAME.json`: the challenger, or why
there is none.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from ..datasets.store.store import Store, StoreError
from ..features.device import Catalogue, catalogue_with
from ..features.errors import SpecError
from ..files import write_whole
from ..models.family_model.nearby_rows import Method
from ..models.predict.predictor import load_predictor
from ..process import die_with_parent
from .gate.challengers import Challenger, adapted, fold_scores, night_scores, retrained
from .gate.model_ledger import serving_model
from .record.folders import CHALLENGERS, PLAN_JSON, STATE, blocks_of
from .record.plan import Plan
from .record.record import NightRecord
from .rows import TrainingRows, in_blocks, night_software, other_rows, together

RETRAINED, ADAPTED = "retrained", "adapted"

ADAPTATIONS: Mapping[str, Method] = MappingProxyType({
    ADAPTED: "process", "adapted-median": "median", "adapted-nearby": "nearby",
})  # fmt: skip
"""Challengers that the one process `ADAPTED` makes, and by which method; the last two are what calibration has to beat."""


def challenger_file(folder: Path, name: str) -> Path:
    """What says how a challenger was made, and that it is complete."""
    return folder / CHALLENGERS / f"{name}.json"


def read_challenger(folder: Path, name: str) -> Challenger | str | None:
    """The challenger as it was made, why there is none, or None where it was not tried to its end.

    Raises:
        SpecError: the file is damaged.
    """
    path = challenger_file(folder, name)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if "error" in content:
            return str(content["error"])
        return msgspec.convert(content, Challenger, dec_hook=lambda _, text: Path(text))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SpecError(f"{path} is damaged ({error}); go on with --from train") from error


def write_challenger(folder: Path, name: str, outcome: Challenger | str) -> None:
    """Write down what `read_challenger` reads.

    Raises:
        OSError: the folder is full or not writable.
    """
    content: Mapping[str, Any] = (
        {"error": outcome} if isinstance(outcome, str) else {**asdict(outcome), "path": str(outcome.path)}
    )
    write_whole(challenger_file(folder, name), json.dumps(content) + "\n")


def read_setup(folder: Path) -> tuple[Plan, Catalogue, dict[str, Any]]:
    """The plan a night follows, the catalogue it knows, and what else was written down when it began.

    Raises:
        SpecError: the file is damaged.
    """
    path = folder / PLAN_JSON
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        known = catalogue_with([Path(name) for name in content["device_files"]])
        return msgspec.convert(content["plan"], Plan), known, content
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SpecError(f"{path} is damaged or missing ({error}); begin a new night") from error


def make(folder: Path, name: str) -> Iterator[Challenger]:
    """The challengers that the process `name` makes, on disk, each as soon as it is complete.

    Raises:
        SpecError: there are too few rows for it, or see `gate.challengers`.
        StoreError: the store cannot be read.
    """
    plan, known, setup = read_setup(folder)
    record = NightRecord.read(folder / STATE)
    devices, (champion, _) = list(setup["devices"]), serving_model()
    rows = TrainingRows(Store(setup["store"]), plan, known, night_software(record, devices))
    blocks, out = blocks_of(folder), folder / CHALLENGERS
    earlier, tonight = rows.read(devices, ~in_blocks(blocks)), rows.read(devices, in_blocks(blocks))
    facts = {"night": record.id, "plan": plan.name}
    if name == ADAPTED:
        served = load_predictor(champion, known)
        for each, method in ADAPTATIONS.items():
            judged = fold_scores(served, earlier, tonight, record.id, method, plan.seed)
            model = adapted(champion, [*earlier, *tonight], out / each, name=each, method=method, facts=facts, devices=known,
                           seed=plan.seed)  # fmt: skip
            yield replace(model, scores=tuple(judged))
        return
    regressors = plan.train.regressors
    regressor = regressors[0] if name == RETRAINED else name.removeprefix(f"{RETRAINED}-")
    # Training takes too long to be repeated by folds: it learns from earlier nights, and all of tonight judges it.
    tables = together(earlier, other_rows(rows, devices), plan.train.most_rows, plan.seed)
    model = retrained(
        champion, tables, out / name, name=name, regressor=regressor,
        fresh={each.cases.family.name for each in earlier}, may_forget=plan.gate.may_forget, facts=facts, devices=known,
        seed=plan.seed,
    )  # fmt: skip
    yield replace(model, scores=tuple(night_scores(champion, model.path, earlier, tonight, known)))


def main(argv: list[str]) -> int:
    """Make the challenger that the arguments name and write down how that went."""
    die_with_parent()
    if os.getppid() != int(argv[3]):
        # The night was killed while this started; the process that continues it makes its own.
        return 1
    folder, name = Path(argv[1]), argv[2]
    try:
        for challenger in make(folder, name):
            write_challenger(folder, challenger.name, challenger)
    except (SpecError, StoreError, MemoryError) as error:
        for each in ADAPTATIONS if name == ADAPTED else (name,):
            if read_challenger(folder, each) is None:
                write_challenger(folder, each, str(error) or type(error).__name__)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
