"""`kernelcast train` and `kernelcast evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..features.errors import SpecError
from .console import (
    DeviceFiles,
    Json,
    Model,
    model_dir,
    need_extra,
    note,
    out,
    print_json,
    progress_bar,
    read_catalogue,
)
from .scores import show_evaluation

if TYPE_CHECKING:
    from ..models.training import TrainingReport

Data = Annotated[
    list[Path], typer.Option("--data", metavar="FILE", help="Measured rows (.parquet, .csv); may be given again.")
]
KeepGood = Annotated[bool, typer.Option("--keep-good", help="Go on with the good rows when others are refused.")]


def train(
    data: Data,
    out_dir: Annotated[Path, typer.Option("--out", metavar="MODEL_DIR", help="Where the model goes.")],
    split: Annotated[str | None, typer.Option(help="Only rows whose split column says this.")] = None,
    regressor: Annotated[
        str | None, typer.Option(help="What learns [default: blend]; a wrong name lists what there is.")
    ] = None,
    family: Annotated[str | None, typer.Option(help="Family of all rows, for tables without such a column.")] = None,
    keep_good: KeepGood = False,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    more_data: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="More files, as after --data.")
    ] = None,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Train a model on measured rows: kernelcast train --data mine.parquet --out my-model."""
    try:
        from ..models.training import DEFAULT_REGRESSOR, train_files

        with progress_bar() as progress:
            report = train_files(
                [*data, *(more_data or [])], out=out_dir, split=split, regressor=regressor or DEFAULT_REGRESSOR, family=family,
                keep_good=keep_good, seed=seed, devices=read_catalogue(device_file), progress=progress,
            )  # fmt: skip
    except ImportError as error:
        raise need_extra("train", "train", error) from error
    if as_json:
        print_json(report)
    else:
        _show(report)
    note(f"the model is in {out_dir}")


def evaluate(
    data: Data,
    model: Model = None,
    split: Annotated[str | None, typer.Option(help="Only rows whose split column says this.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a report with parity plots.")] = None,
    compare: Annotated[
        str,
        typer.Option(
            metavar="HELD_OUT", help="Train every regressor anew; judge on held-out rows: hash, region, device."
        ),
    ] = "",
    coverage: Annotated[float, typer.Option(help="Share of cases the intervals are to contain.")] = 0.9,
    family: Annotated[str | None, typer.Option(help="Family of all rows, for tables without such a column.")] = None,
    keep_good: KeepGood = False,
    more_data: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="More files, as after --data.")
    ] = None,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Compare predictions with measured rows: errors by slice, ranking, coverage and width of the intervals."""
    if compare and model is not None:
        raise SpecError("--compare trains its own models; leave --model out")
    files = [*data, *(more_data or [])]
    devices = read_catalogue(device_file)
    try:
        from ..models import evaluation

        if compare:
            from ..models.tables import labelled_files

            tables = labelled_files(files, split=split, family=family, keep_good=keep_good, devices=devices)
            with progress_bar() as progress:
                found = evaluation.compare(
                    tables, held_out=compare, coverage=coverage, devices=devices, progress=progress
                )
            if html is not None:
                from ..models.report import write_report

                write_report(found, html)
        else:
            found = evaluation.evaluate_files(
                model_dir(model), files, split=split, family=family, keep_good=keep_good, html=html, coverage=coverage,
                devices=devices,
            )  # fmt: skip
    except ImportError as error:
        raise need_extra("evaluate", "train", error) from error
    if as_json:
        print_json(found.to_json())
    else:
        show_evaluation(found)
    if html is not None:
        note(f"the report is in {html}")


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
