"""Options that several commands have, and how their values are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ...features.device import Catalogue

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
DeviceFiles = Annotated[
    list[Path] | None, typer.Option("--device-file", metavar="YAML", help="Add a device; may be given again.")
]
Model = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Model directory; default: the champion, or the shipped model.")
]

Coverage = Annotated[float, typer.Option(help="Share of cases the intervals are to contain.")]
PowerLimit = Annotated[
    float | None, typer.Option("--power-limit-w", metavar="WATTS", help="Power limit that the GPU is set to.")
]
Clock = Annotated[
    float | None, typer.Option("--clock-hz", metavar="HERTZ", help="Clock that the GPU is locked to, such as 1.2e9.")
]
GpuName = Annotated[
    str | None, typer.Option("--device", help="Catalogue name of the GPU; default: found by the name it reports.")
]
GpuIndex = Annotated[int, typer.Option(min=0, help="Index of the GPU, as torch counts them.")]
Families = Annotated[str, typer.Option(help="Kernel families separated by commas; default: all.")]
Family = Annotated[str | None, typer.Option(help="Family of all rows, for tables without such a column.")]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave refused rows out instead of stopping at them.")
]
_DATA = typer.Option("--data", metavar="FILE", help="Measured rows (.parquet, .csv); may be given again.")
Data = Annotated[list[Path], _DATA]
OptionalData = Annotated[list[Path] | None, _DATA]
MoreData = Annotated[list[Path] | None, typer.Argument(metavar="FILE", help="More files, as after --data.")]
ModelOut = Annotated[Path, typer.Option("--out", metavar="MODEL_DIR", help="Directory to write the model to.")]
Folds = Annotated[int, typer.Option(min=2, max=20, help="Parts the programs are dealt into, one held out at a time.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]
# A string: a path would take the second slash out of a URL.
StoreRoot = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="DIR|URL",
        help="Measured rows: a folder, or a URL (s3://bucket/prefix); default: measurements in KERNELCAST_HOME.",
    ),
]
RowsTo = Annotated[
    str | None,
    typer.Option("--store", metavar="DIR|URL", help="Where rows go; default: measurements in KERNELCAST_HOME."),
]
RowsFolder = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where rows go; run again to resume.")]


def read_catalogue(files: list[Path] | None) -> Catalogue:
    """The shipped devices and those of the user's files.

    Raises:
        SpecError: a file is no device file.
    """
    from ...features.device import catalogue_with

    return catalogue_with(files or ())


def model_dir(path: Path | None) -> Path:
    """The model directory asked for, or the default one.

    Raises:
        SpecError: the champion pointer is unreadable.
    """
    if path is not None:
        return path
    from ...models.family_model.artifact import default_model_dir

    return default_model_dir()


def words(text: str) -> list[str]:
    """The words of a list separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]
