"""One challenger, made in a process of its own: it can be ended when its time is over, and its memory is not the night's.

    python -P -m kernelcast.nightly.challenger_process FOLDER NAME PARENT

`FOLDER` is the night's; the result is `challengers/NAME/` and, written last, `challengers/NAME.json`: the challenger, or why
there is none.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from ..datasets.store.store import Store, StoreError
from ..features.device import Catalogue, catalogue_with
from ..features.errors import SpecError
from ..files import write_whole
from ..process import die_with_parent
from .gate.challengers import Challenger, adapted, retrained
from .gate.model_ledger import Ledger, serving_model
from .record.folders import CHALLENGERS, PLAN_JSON, STATE, blocks_of
from .record.plan import Plan
from .record.record import NightRecord
from .rows import TrainingRows, night_software, night_split, other_rows, together

RETRAINED = "retrained"

ADAPTED_PAST = "adapted-past-"
"""What the name of an adapted past model begins with; its version follows."""


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
        return Challenger(**{**content, "path": Path(content["path"]), "families": tuple(content["families"])})
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


def make(folder: Path, name: str) -> Challenger:
    """The challenger called `name`, on disk.

    Raises:
        SpecError: there are too few rows for it, or see `gate.challengers`.
        StoreError: the store cannot be read.
    """
    plan, known, setup = read_setup(folder)
    record = NightRecord.read(folder / STATE)
    devices, (champion, _) = list(setup["devices"]), serving_model()
    rows = TrainingRows(Store(setup["store"]), plan, known, night_software(record, devices))
    split = night_split(rows, record.id, devices, blocks_of(folder))
    out = folder / CHALLENGERS / name
    facts = {"night": record.id, "plan": plan.name}
    if name == "adapted":
        return adapted(champion, split.learn, out, facts=facts, devices=known, seed=plan.seed)
    if name.startswith(ADAPTED_PAST):
        path = Path(Ledger().find(name.removeprefix(ADAPTED_PAST)).path)
        return adapted(path, split.learn, out, name=name, facts=facts, devices=known, seed=plan.seed)
    regressors = plan.train.regressors
    regressor = regressors[0] if name == RETRAINED else name.removeprefix(f"{RETRAINED}-")
    fresh = {rows_of_family.cases.family.name for rows_of_family in split.learn}
    tables = together(split.learn, other_rows(rows, devices), plan.train.most_rows, plan.seed)
    return retrained(
        champion, tables, out, name=name, regressor=regressor, fresh=fresh, may_forget=plan.gate.may_forget,
        facts=facts, devices=known, seed=plan.seed,
    )  # fmt: skip


def main(argv: list[str]) -> int:
    """Make the challenger that the arguments name and write down how that went."""
    die_with_parent()
    if os.getppid() != int(argv[3]):
        # The night was killed while this started; the process that continues it makes its own.
        return 1
    folder, name = Path(argv[1]), argv[2]
    try:
        challenger: Challenger | str = make(folder, name)
    except (SpecError, StoreError, MemoryError) as error:
        challenger = str(error) or type(error).__name__
    write_challenger(folder, name, challenger)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
