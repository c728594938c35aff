"""`kernelcast train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import DeviceFiles, Json, need_extra, note, out, print_json, progress_bar, read_catalogue

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
