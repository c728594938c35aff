"""`kernelcast train`, `train-mlir`, `train-triton` and `train-tuning`, and `export-ops`: small models that compilers ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...features.errors import SpecError, listed
from ...files import home_dir
from .. import console

if TYPE_CHECKING:
    from ...models.training.training import TrainingReport
    from ...models.tuning.distillation import Errors, ExportReport
    from ...models.tuning.training import TuningReport
    from ...workloads.mlir.learned.training import ProgramReport
    from ...workloads.mlir.triton.training import CodeReport


def train(
    out_dir: console.ModelOut,
    data: console.OptionalData = None,
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
        str | None, typer.Option(help="Regressor to train (default: blend); an unknown name lists all.")
    ] = None,
    family: console.Family = None,
    skip_bad_rows: console.SkipBadRows = False,
    seed: console.Seed = 0,
    more_data: console.MoreData = None,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Train a model on measured rows: kernelcast train --data mine.parquet --out my-model.

    The rows that come with kernelcast: kernelcast data compact --with-shipped --out rows, then kernelcast train rows/*.parquet
    --out my-model.
    """
    paths = [*(data or []), *(more_data or [])]
    _check_given(paths, store, most_rows, families, split)
    families = families and [name for text in families for name in console.words(text)]
    with console.plain_errors("train", "train"):
        from ...datasets.store.store import Store
        from ...models.training.store_rows import MOST_ROWS
        from ...models.training.training import DEFAULT_REGRESSOR, train_files

        with console.progress_bar() as progress:
            report = train_files(
                paths, out=out_dir, split=split, regressor=regressor or DEFAULT_REGRESSOR, family=family,
                skip_bad_rows=skip_bad_rows, seed=seed, devices=console.read_catalogue(device_file), progress=progress,
                store=None if store is None else Store(store), families=families, most_rows=most_rows or MOST_ROWS,
            )  # fmt: skip
    _answer(report, as_json, _show_regressor, ())
    console.note(f"the model is in {out_dir}")


def _answer(report: Any, as_json: bool, show: Callable[[Any], None], left_out: Sequence[object]) -> None:
    """Print a report, and on stderr what training left out."""
    if as_json:
        console.print_json(report)
    else:
        show(report)
    for refusal in left_out:
        console.note(f"left out: {refusal}")


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


def _show_regressor(report: TrainingReport) -> None:
    heads = ("family", "rows", "devices", "target", "mean APE", "median APE", "within 10 %", "unseen device, mean APE")
    rows = []
    for family, facts in report.families.items():
        head = (family, str(facts["rows"]), str(len(facts["devices"])))
        for target, errors in (facts.get("held_out") or {}).items():
            away = (facts.get("device_left_out") or {}).get(target)
            # A target that only one device has (power, say) cannot be judged with that device left out.
            unseen = f"{away['mean_ape_pct']:.1f} %" if away and away["n"] else ""
            rows.append((*head, target, *_apes(errors), unseen))
            head = ("", "", "")
    title = f"{report.regressor}: errors on held-out shapes"
    console.show_table(heads, rows, numbers=set(heads) - {"family", "target"}, title=title)


def _apes(errors: Mapping[str, Any]) -> tuple[str, str, str]:
    return (
        f"{errors['mean_ape_pct']:.1f} %",
        f"{errors['median_ape_pct']:.1f} %",
        f"{errors['within_10_pct']:.0f} %",
    )


def train_mlir(
    data: Annotated[
        list[Path],
        typer.Option("--data", metavar="DIR", help="What `collect-mlir` wrote, stored or packed; may be given again."),
    ],
    out_dir: console.ModelOut,
    seed: console.Seed = 0,
    folds: console.Folds = 5,
    epochs: Annotated[float, typer.Option(min=0.01, help="Factor on how long the networks learn.")] = 1.0,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Train a model of whole MLIR programs on measured ones: kernelcast train mlir --data programs/ --out my-model."""
    with console.plain_errors("train mlir", "train"):
        from ...workloads.mlir.learned.training import TrainingConfig, train_modules

        with console.progress_bar() as progress:
            report = train_modules(
                data, out_dir, config=TrainingConfig(folds=folds, seed=seed).lasting(epochs),
                devices=console.read_catalogue(device_file), progress=progress,
            )  # fmt: skip
    _answer(report, as_json, _show_programs, report.left_out)
    console.note(f"the model is in {out_dir}")


def _show_programs(report: ProgramReport) -> None:
    heads = ("", "rows", "mean APE", "median APE", "within 10 %", "Kendall τ")
    for device, members in report.errors.items():
        parts = {f"  blend, {name}": errors for name, errors in members["blend"].items() if name != "all"}
        rows = {name: member["all"] for name, member in members.items()} | parts
        console.show_table(
            heads,
            (
                (name, f"{errors['n']:.0f}", *_apes(errors), f"{errors['kendall_tau']:.3f}")
                for name, errors in rows.items()
            ),
            numbers=heads[1:],
            title=f"{device}: errors for {report.n_programs[device]} programs, each held out once",
        )


def train_triton(
    out_dir: console.ModelOut,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="PARQUET|DIR",
            help="What `kernelcast measure triton` wrote; may be given again; default: the shipped table.",
        ),
    ] = None,
    seed: console.Seed = 0,
    folds: console.Folds = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Trees of each member.")] = 300,
    as_json: console.Json = False,
) -> None:
    """Train a model of compiled code on Triton programs: kernelcast train triton --out my-model."""
    with console.plain_errors("train triton", "train"):
        from ...workloads.mlir.triton.training import TrainingConfig, train_labels

        with console.progress_bar() as progress:
            report = train_labels(data or [], out_dir, TrainingConfig(folds=folds, rounds=rounds, seed=seed), progress)
    _answer(report, as_json, _show_code, report.left_out)
    console.note(f"{report.n_rows} rows of {report.n_programs} programs; the model is in {out_dir}")


def _show_code(report: CodeReport) -> None:
    heads = ("", "rows", "registers R²", "off by", "spills AUC", "instructions off by", "shared memory exact")
    rows = (
        (
            name, f"{error['n']:.0f}", f"{error['registers_r2']:.3f}", f"{error['registers_mae']:.1f}",
            f"{error['spill_auc']:.3f}", f"{error['instructions_median_ape_pct']:.1f} %", f"{error['shared_exact_pct']:.0f} %",
        )
        for name, error in report.errors.items()
    )  # fmt: skip
    console.show_table(heads, rows, numbers=heads[1:], title="errors for programs, each held out once")


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
    as_json: console.Json = False,
) -> None:
    """Train the models that rank a compiler's choices, from measured configurations: kernelcast train tuning."""
    folder = out_dir if out_dir is not None else home_dir() / "tuning"
    if out_dir is not None:
        console.check_folder(folder)
    with console.plain_errors("train tuning", "train"):
        from ...models.tuning.training import train_files

        with console.progress_bar() as progress:
            report = train_files(data, folder, names=kind, progress=progress)
    _answer(report, as_json, _show_scores, report.left_out)
    console.note(f"the models are in {folder}")


_SCORES = (
    ("n_tasks", "{:.0f}"), ("task_mean_mean_ape_pct", "{:.1f} %"), ("task_mean_median_ape_pct", "{:.1f} %"),
    ("task_mean_within_10_pct", "{:.0f} %"), ("task_mean_kendall_tau", "{:.2f}"),
    ("task_mean_top_1_regret_pct", "{:.1f} %"), ("task_mean_top_5_regret_pct", "{:.1f} %"),
)  # fmt: skip


def _show_scores(report: TuningReport) -> None:
    heads = ("", "rows", "operations", "error", "median", "within 10 %", "Kendall tau", "top-1 regret", "top-5 regret")
    rows = []
    for name, score in report.scores.items():
        shown = ("" if score[column] is None else form.format(score[column]) for column, form in _SCORES)
        rows.append((name, f"{report.n_rows[name]:,}", *shown))
    title = "operations of shapes that were held out, means over operations"
    console.show_table(heads, rows, numbers=heads[1:], title=title)


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
    model: console.Model = None,
    rows: Annotated[
        int, typer.Option(min=50, max=1_000_000, help="Operations asked about per device and number format measured.")
    ] = 20_000,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Random seed.")] = 0,
    device_file: console.DeviceFiles = None,
    as_json: console.Json = False,
) -> None:
    """Export small models of single operations for compiler passes: kernelcast train export-ops --device my-gpu.

    They are taught by the model: your own with --model, or the champion. Takes minutes.
    """
    folder = home_dir() / "tuning" if out_dir is None else out_dir
    if out_dir is not None:
        console.check_folder(folder)
    with console.plain_errors("train export-ops", "train"):
        from ...features.tuning.family_kinds import VARIANT_CODES
        from ...models.predict.predictor import load_predictor
        from ...models.tuning.distillation import TrainingConfig, export_files

        catalogue = console.read_catalogue(device_file)
        devices = [catalogue.get(name) for name in dict.fromkeys(device or catalogue.names())]
        wanted = list(dict.fromkeys(family or VARIANT_CODES))
        if unknown := [name for name in wanted if name not in VARIANT_CODES]:
            raise SpecError(
                f"no models of single operations of {unknown[0]!r}; families: {listed(VARIANT_CODES)}", field="family"
            )
        config = TrainingConfig.of_rows(rows, seed)
        predictor = load_predictor(console.model_dir(model), catalogue)
        with console.progress_bar() as progress:
            report = export_files(predictor, wanted, devices, folder, config=config, progress=progress)
    _answer(report, as_json, _show_exported, report.left_out)
    took_s = sum(kind.asking_s + kind.fitting_s for kind in report.exported)
    size_b = sum(kind.size_b for kind in report.exported)
    console.note(
        f"{len(report.exported)} models of {size_b / 1e6:.2f} MB together, made in {took_s:.0f} s, are in {folder}"
    )


def _show_exported(report: ExportReport) -> None:
    heads = ("model", "device", "numbers", "against the predictor's fresh answers", "against measured rows")
    rows = []
    for kind in report.exported:
        by_rows = {(errors.device, errors.dtype): errors for errors in kind.against_rows}
        for errors in kind.against_teacher:
            remark = "" if errors.measured else " (carried over)"
            measured = by_rows.get((errors.device, errors.dtype))
            rows.append((kind.kind, errors.device + remark, errors.dtype, _errors(errors), _errors(measured)))
    console.show_table(
        heads, rows, numbers=heads[3:], title="errors in latency: mean / median absolute, and share within 10 %"
    )


def _errors(errors: Errors | None) -> str:
    if errors is None or not errors.latency.get("n"):
        return "–"
    latency = errors.latency
    within = f"{latency['within_10_pct']:.0f} % of {latency['n']:.0f}"
    return f"{latency['mean_ape_pct']:.1f} / {latency['median_ape_pct']:.1f} %, {within}"
