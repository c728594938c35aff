"""`kernelcast train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..features.errors import SpecError
from .console import DeviceFiles, Json, need_extra, note, out, print_json, progress_bar, read_catalogue
from .store_option import store_errors

if TYPE_CHECKING:
    from ..models.training import TrainingReport

_DATA = typer.Option("--data", metavar="FILE", help="Measured rows (.parquet, .csv); may be given again.")
Data = Annotated[list[Path], _DATA]
KeepGood = Annotated[bool, typer.Option("--keep-good", help="Go on with the good rows when others are refused.")]


def train(
    out_dir: Annotated[Path, typer.Option("--out", metavar="MODEL_DIR", help="Where the model goes.")],
    data: Annotated[list[Path] | None, _DATA] = None,
    store: Annotated[
        str | None, typer.Option(metavar="DIR|URL", help="A store to train on, alone or beside --data; streamed.")
    ] = None,
    most_rows: Annotated[
        int | None,
        typer.Option(min=1, help="With --store: rows kept of a family (default: 20000); common kinds are thinned."),
    ] = None,
    families: Annotated[
        list[str] | None, typer.Option("--families", help="With --store: only this family; may be given again.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Only rows whose split column says this.")] = None,
    regressor: Annotated[
        str | None, typer.Option(help="What learns (default: blend); a wrong name lists what there is.")
    ] = None,
    family: Annotated[str | None, typer.Option(help="Family of all rows, for tables without such a column.")] = None,
    keep_good: KeepGood = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    more_data: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="More files, as after --data.")
    ] = None,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Train a model on measured rows: kernelcast train --data mine.parquet --out my-model."""
    paths = [*(data or []), *(more_data or [])]
    _check_given(paths, store, most_rows, families, split)
    try:
        from ..datasets.store import Store
        from ..models.stored import MOST_ROWS
        from ..models.training import DEFAULT_REGRESSOR, train_files

        with store_errors(), progress_bar() as progress:
            report = train_files(
                paths, out=out_dir, split=split, regressor=regressor or DEFAULT_REGRESSOR, family=family,
                keep_good=keep_good, seed=seed, devices=read_catalogue(device_file), progress=progress,
                store=None if store is None else Store(store), families=_separate(families), most_rows=most_rows or MOST_ROWS,
            )  # fmt: skip
    except ImportError as error:
        raise need_extra("train", "train", error) from error
    if as_json:
        print_json(report)
    else:
        _show(report)
    note(f"the model is in {out_dir}")


def _separate(names: list[str] | None) -> list[str] | None:
    """Names given one by one or separated by commas."""
    return None if names is None else [name.strip() for one in names for name in one.split(",") if name.strip()]


def _check_given(
    paths: list[Path], store: str | None, most_rows: int | None, families: list[str] | None, split: str | None
) -> None:
    """That options go together.

    Raises:
        SpecError: there is nothing to train on, or an option without what it speaks of.
    """
    if not paths and store is None:
        raise SpecError("give measured rows to train on: --data FILE, --store DIR, or both", field="data")
    for option, given in (("--most-rows", most_rows), ("--families", families)):
        if store is None and given is not None:
            raise SpecError(f"{option} goes with --store", field=option.strip("-"))
    if split is not None and not paths:
        raise SpecError("--split goes with --data; a store is thinned, not split", field="split")


def _show(report: TrainingReport) -> None:
    from rich.table import Table

    table = Table(title=f"{report.regressor}: errors on held-out shapes", box=None, pad_edge=False)
    table.add_column("family")
    for title in ("rows", "devices", "target", "mean APE", "median APE", "within 10 %", "unseen device, mean APE"):
        table.add_column(title, justify="left" if title == "target" else "right")
    for family, facts in report.families.items():
        for i, (target, errors) in enumerate(_targets(facts, "held_out").items()):
            away = _targets(facts, "device_left_out").get(target)
            head = (family, str(facts["rows"]), str(len(facts["devices"]))) if i == 0 else ("", "", "")
            own = (
                f"{errors['mean_ape_pct']:.1f} %",
                f"{errors['median_ape_pct']:.1f} %",
                f"{errors['within_10_pct']:.0f} %",
            )
            # A target that only one device has (power, say) cannot be judged with that device left out.
            table.add_row(*head, target, *own, f"{away['mean_ape_pct']:.1f} %" if away and away["n"] else "")
    out().print(table)


def _targets(facts: Any, what: str) -> dict[str, Any]:
    return dict(facts.get(what) or {})
