"""`kernelcast train`, `train-mlir`, `train-triton` and `train-tuning`, and `export-ops`: small models that compilers ask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..features.errors import SpecError, listed
from ..files import home_dir
from .console import (
    DeviceFiles,
    Json,
    Model,
    check_folder,
    model_dir,
    need_extra,
    new_table,
    note,
    out,
    print_json,
    progress_bar,
    read_catalogue,
    store_errors,
)

if TYPE_CHECKING:
    from ..models.training.training import TrainingReport
    from ..models.tuning.distillation import Errors
    from ..models.tuning.export import Exported
    from ..workloads.mlir.learned.training import ProgramReport


_DATA = typer.Option("--data", metavar="FILE", help="Measured rows (.parquet, .csv); may be given again.")
Data = Annotated[list[Path], _DATA]
KeepGood = Annotated[
    bool, typer.Option("--skip-bad-rows", "--keep-good", help="Leave refused rows out instead of stopping at them.")
]


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
        str | None, typer.Option(help="Regressor to train (default: blend); a wrong name lists the known ones.")
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
        from ..datasets.store.store import Store
        from ..models.training.store_rows import MOST_ROWS
        from ..models.training.training import DEFAULT_REGRESSOR, train_files

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
    return None if names is None else [name.strip() for text in names for name in text.split(",") if name.strip()]


def _check_given(
    paths: list[Path], store: str | None, most_rows: int | None, families: list[str] | None, split: str | None
) -> None:
    """That options go together.

    Raises:
        SpecError: there is nothing to train on, or an option without what it speaks of.
    """
    if not paths and store is None:
        raise SpecError("give measured rows to train on: --data FILE, --store DIR, or both", field="data")
    for option, value in (("--most-rows", most_rows), ("--families", families)):
        if store is None and value is not None:
            raise SpecError(f"{option} goes with --store", field=option.strip("-"))
    if split is not None and not paths:
        raise SpecError("--split goes with --data; a store is thinned, not split", field="split")


def _show(report: TrainingReport) -> None:
    heads = ("family", "rows", "devices", "target", "mean APE", "median APE", "within 10 %", "unseen device, mean APE")
    table = new_table(
        *heads, numbers=set(heads) - {"family", "target"}, title=f"{report.regressor}: errors on held-out shapes"
    )
    for family, facts in report.families.items():
        for i, (target, errors) in enumerate(_targets(facts, "held_out").items()):
            away = _targets(facts, "device_left_out").get(target)
            head = (family, str(facts["rows"]), str(len(facts["devices"]))) if i == 0 else ("", "", "")
            held_out = (
                f"{errors['mean_ape_pct']:.1f} %",
                f"{errors['median_ape_pct']:.1f} %",
                f"{errors['within_10_pct']:.0f} %",
            )
            # A target that only one device has (power, say) cannot be judged with that device left out.
            table.add_row(*head, target, *held_out, f"{away['mean_ape_pct']:.1f} %" if away and away["n"] else "")
    out().print(table)


def _targets(facts: Any, what: str) -> dict[str, Any]:
    return dict(facts.get(what) or {})


def train_mlir(
    data: Annotated[
        list[Path],
        typer.Option("--data", metavar="DIR", help="What `collect-mlir` wrote, stored or packed; may be given again."),
    ],
    out_dir: Annotated[Path, typer.Option("--out", metavar="MODEL_DIR", help="Where the model goes.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    folds: Annotated[
        int, typer.Option(min=2, max=20, help="Parts the programs are dealt into, one held out at a time.")
    ] = 5,
    epochs: Annotated[float, typer.Option(min=0.01, help="Factor on how long the networks learn.")] = 1.0,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Train a model of whole MLIR programs on measured ones: kernelcast train-mlir --data programs/ --out my-model."""
    try:
        from ..workloads.mlir.learned.training import TrainingConfig, train_modules

        with progress_bar() as progress:
            report = train_modules(
                data, out_dir, config=TrainingConfig(folds=folds, seed=seed).lasting(epochs),
                devices=read_catalogue(device_file), progress=progress,
            )  # fmt: skip
    except ImportError as error:
        raise need_extra("train-mlir", "train", error) from error
    if as_json:
        print_json(report)
    else:
        _show_programs(report)
    note(f"the model is in {out_dir}")


def _show_programs(report: ProgramReport) -> None:
    for device, members in report.errors.items():
        title = f"{device}: errors for {report.n_programs[device]} programs, each held out once"
        heads = ("", "rows", "mean APE", "median APE", "within 10 %", "Kendall τ")
        table = new_table(*heads, numbers=heads[1:], title=title)
        rows = {**{name: member["all"] for name, member in members.items()},
                **{f"  blend, {name}": member for name, member in members["blend"].items() if name != "all"}}  # fmt: skip
        for name, errors in rows.items():
            table.add_row(
                name, f"{errors['n']:.0f}", f"{errors['mean_ape_pct']:.1f} %", f"{errors['median_ape_pct']:.1f} %",
                f"{errors['within_10_pct']:.0f} %", f"{errors['kendall_tau']:.3f}",
            )  # fmt: skip
        out().print(table)
    for refusal in report.left_out:
        note(f"left out: {refusal}")


def train_triton(
    out_dir: Annotated[Path, typer.Option("--out", metavar="MODEL_DIR", help="Where the model goes.")],
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="PARQUET|DIR",
            help="What `compile-triton-programs` wrote; may be given again; default: the shipped table.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    folds: Annotated[
        int, typer.Option(min=2, max=20, help="Parts the programs are dealt into, one held out at a time.")
    ] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Trees of each member.")] = 300,
    as_json: Json = False,
) -> None:
    """Train a model of compiled code on Triton programs: kernelcast train-triton --out my-model."""
    try:
        from ..workloads.mlir.triton.training import TrainingConfig, train_labels

        with progress_bar() as progress:
            report = train_labels(data or [], out_dir, TrainingConfig(folds=folds, rounds=rounds, seed=seed), progress)
    except ImportError as error:
        raise need_extra("train-triton", "train", error) from error
    if as_json:
        print_json(report)
    else:
        _show_code(report.errors)
    for refusal in report.left_out:
        note(f"left out: {refusal}")
    note(f"{report.n_rows} rows of {report.n_programs} programs; the model is in {out_dir}")


def _show_code(errors: dict[str, dict[str, float]]) -> None:
    heads = ("", "rows", "registers R²", "off by", "spills AUC", "instructions off by", "shared memory exact")
    table = new_table(*heads, numbers=heads[1:], title="errors for programs, each held out once")
    for name, error in errors.items():
        table.add_row(
            name, f"{error['n']:.0f}", f"{error['registers_r2']:.3f}", f"{error['registers_mae']:.1f}",
            f"{error['spill_auc']:.3f}", f"{error['instructions_median_ape_pct']:.1f} %", f"{error['shared_exact_pct']:.0f} %",
        )  # fmt: skip
    out().print(table)


def train_tuning(
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind", metavar="NAME", help="Kinds of tuning problems; may be given again; default: all with rows."
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="A store or a folder of tables; may be given again; default: the shipped rows and yours.",
        ),
    ] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Where models go; default: KERNELCAST_HOME/tuning.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train the models that rank a compiler's choices, from measured configurations: kernelcast train-tuning."""
    folder = out_dir if out_dir is not None else home_dir() / "tuning"
    if out_dir is not None:
        check_folder(folder)
    try:
        from ..models.tuning.training import train_files

        with progress_bar() as progress:
            report = train_files(data, folder, names=kind, progress=progress)
    except ImportError as error:
        raise need_extra("train-tuning", "train", error) from error
    if as_json:
        print_json(report)
    else:
        _show_scores(report.scores, report.n_rows)
    for refusal in report.left_out:
        note(f"left out: {refusal}")
    note(f"the models are in {folder}")


def _show_scores(scores: Mapping[str, Mapping[str, float | None]], n_rows: Mapping[str, int]) -> None:
    heads = ("", "rows", "operations", "error", "median", "within 10 %", "Kendall tau", "top-1 regret", "top-5 regret")
    table = new_table(*heads, numbers=heads[1:], title="operations of shapes that were held out, means over operations")
    for name, score in scores.items():
        table.add_row(
            name, f"{n_rows[name]:,}", f"{score['n_tasks']:.0f}", *(_score(score, *column) for column in _COLUMNS)
        )
    out().print(table)


_COLUMNS = (
    ("task_mean_mean_ape_pct", "{:.1f} %"), ("task_mean_median_ape_pct", "{:.1f} %"), ("task_mean_within_10_pct", "{:.0f} %"),
    ("task_mean_kendall_tau", "{:.2f}"), ("task_mean_top_1_regret_pct", "{:.1f} %"), ("task_mean_top_5_regret_pct", "{:.1f} %"),
)  # fmt: skip


def _score(scores: Mapping[str, float | None], name: str, form: str) -> str:
    value = scores[name]
    return "" if value is None else form.format(value)


def export_ops(
    device: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="NAME", help="Devices the models know; may be given again; default: all."),
    ] = None,
    family: Annotated[
        list[str] | None,
        typer.Option("--family", metavar="NAME", help="Kernel families; may be given again; default: all that can be."),
    ] = None,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where the files go; default: where plug-ins look first."),
    ] = None,
    model: Model = None,
    rows: Annotated[
        int, typer.Option(min=50, max=1_000_000, help="Operations asked about per device and number format measured.")
    ] = 20_000,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of everything random.")] = 0,
    device_file: DeviceFiles = None,
    as_json: Json = False,
) -> None:
    """Small models of single operations for compilers' passes: kernelcast export-ops --device my-gpu.

    They are taught by the model: your own with --model, or the champion. Takes minutes.
    """
    folder = home_dir() / "tuning" if out_dir is None else out_dir
    if out_dir is not None:
        check_folder(folder)
    try:
        from ..models.predict.predictor import load_predictor
        from ..models.tuning.distillation import TrainingConfig, families
        from ..models.tuning.export import export_files

        catalogue = read_catalogue(device_file)
        devices = [catalogue.get(name) for name in dict.fromkeys(device or catalogue.names())]
        wanted = list(dict.fromkeys(family or families()))
        if unknown := [name for name in wanted if name not in families()]:
            raise SpecError(
                f"no models of single operations of {unknown[0]!r}; families: {listed(families())}", field="family"
            )
        config = TrainingConfig.of_rows(rows, seed)
        predictor = load_predictor(model_dir(model), catalogue)
        with progress_bar() as progress:
            report = export_files(predictor, wanted, devices, folder, config=config, progress=progress)
    except ImportError as error:
        raise need_extra("export-ops", "train", error) from error
    if as_json:
        print_json(report)
    else:
        _show_exported(report.exported)
    for refusal in report.left_out:
        note(f"left out: {refusal}")
    took_s = sum(kind.asking_s + kind.fitting_s for kind in report.exported)
    size_b = sum(kind.size_b for kind in report.exported)
    note(f"{len(report.exported)} models of {size_b / 1e6:.2f} MB together, made in {took_s:.0f} s, are in {folder}")


def _show_exported(exported: Iterable[Exported]) -> None:
    heads = ("model", "device", "numbers", "against the predictor's fresh answers", "against measured rows")
    title = "errors in latency: mean / median absolute, and share within 10 %"
    table = new_table(*heads, numbers=heads[3:], title=title)
    for kind in exported:
        by_rows = {(errors.device, errors.dtype): errors for errors in kind.against_rows}
        for errors in kind.against_teacher:
            rows = by_rows.get((errors.device, errors.dtype))
            carried = "" if errors.measured else " (carried over)"
            table.add_row(kind.kind, errors.device + carried, errors.dtype, _errors(errors), _errors(rows))
    out().print(table)


def _errors(errors: Errors | None) -> str:
    if errors is None or not errors.latency.get("n"):
        return "–"
    latency = errors.latency
    within = f"{latency['within_10_pct']:.0f} % of {latency['n']:.0f}"
    return f"{latency['mean_ape_pct']:.1f} / {latency['median_ape_pct']:.1f} %, {within}"
