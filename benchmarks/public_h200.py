"""Our rows of one GPU beside public ones of the same device: the ratio theirs / ours, and how sure it is.

Run `.venv/bin/python benchmarks/public_h200.py --public DIR [--rows STORE|shipped] [--out PAGE.md]`; it takes some
minutes. DIR holds public tables (Parquet) in the bring-your-own form, docs/measurements-form.md.

Few shapes are in both, so three comparisons stand side by side:

* same shapes: rows that agree in dtype, variant and every size;
* our shapes: a model trained on the public rows of one library answers at our shapes;
* their shapes: a model trained on our rows answers at the public shapes, the other way round.

A model is only asked where a row it was trained on has every size within a factor of √2. Its own error is taken from
rows it was not trained on: public rows with a size that no other row had, and a quarter of our shapes. A median is said
to differ when it is further from 1 than its 95 % confidence interval and the model's error together explain.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from kernelcast.collectors.gpu.measure.timing import median_half_width
from kernelcast.datasets.rows.splits import held_out_shapes
from kernelcast.datasets.shipped import read_shipped
from kernelcast.datasets.store.store import Store
from kernelcast.features.batch.cases import Cases, Floats
from kernelcast.features.cost.bounds import work
from kernelcast.features.device import catalogue
from kernelcast.features.errors import SpecError
from kernelcast.features.kernel import CACHE_STATES
from kernelcast.models.family_model.artifact import save_artifact
from kernelcast.models.predict.predictor import load_predictor
from kernelcast.models.training.labelled_cases import LabelledCases, labelled_files, labelled_table
from kernelcast.models.training.training import train

Mask = npt.NDArray[np.bool_]
Model = Callable[[Cases], Floats]
"""Seconds at cases, shape `(n,)`."""
Trainer = Callable[[LabelledCases], Model]
Sizes = Mapping[str, Floats]
REGIMES = ("short", "memory, fits L2", "memory, beyond L2", "compute")
SHORT_S = 3e-6
"""Kernels that need less than this on paper: launching and draining take as long as their work."""

LEAST_ROWS = 5
"""Groups of fewer rows are not told: their median says nothing."""

NEAR = 0.5
"""Between two powers of two every size lies within half a doubling of one of them: beyond that a model extrapolates."""

LEAST_TRAINING_ROWS = 200
"""A public library with fewer comparable rows is left out."""

_HELD_OUT_EVERY, _MANY_VALUES, _OURS_HELD_OUT = 5, 8, 0.25

ALIKE: Mapping[str, Callable[[Sizes], Mask]] = {
    # Public grids have round n and k only; cuBLAS takes other kernels where rows are not 32 bytes apart.
    "gemm": lambda sizes: (sizes["n"] % 16 == 0) & (sizes["k"] % 16 == 0),
    # Public grids have few windows and head sizes; a padded head is another kernel.
    "attention": lambda sizes: (sizes["window"] == 0) & np.isin(sizes["head_dim"], (64, 128, 256)),
    # With experts on several ranks ours is an average rank's share, theirs may be the busiest rank's.
    "moe": lambda sizes: sizes["ep"] == 1,
}
"""Which shapes mean the same on both sides, by family; each takes the columns of sizes."""

SHORTEST: Mapping[str, Callable[[Sizes], Sizes]] = {
    # Sequences and key heads only say how often the same is done: public rows that become equal differ by 3 % (median).
    "attention": lambda s: {"batch": s["batch"] * s["kv_heads"], "heads": s["heads"] / s["kv_heads"],
                            "kv_heads": np.ones(len(s["heads"]))},
    # One rank's slice of every expert is a narrower expert.
    "moe": lambda s: {"inter": s["inter"] / s["tp"], "tp": np.ones(len(s["tp"]))},
}  # fmt: skip
"""Sizes that make equal work equal shapes, by family: there are more matches and fewer axes to interpolate along."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """What of ours is comparable to what of theirs: one kernel in one dtype; `impls` and `variants` are ours.

    `public_variant` is what they call ours, and `layout` the variant of ours that theirs is; None where names agree.
    """

    family: str
    dtype: str
    impls: tuple[str, ...]
    variants: tuple[str, ...]
    public_dtype: str
    public_variant: str | None = None
    layout: str | None = None

    @property
    def title(self) -> str:
        """A name for tables."""
        return f"{self.family} {self.variants[0]}" if len(self.variants) == 1 else self.family

    def of_public(self, rows: LabelledCases) -> LabelledCases:
        """The public rows that are comparable."""
        cases = rows.cases
        variants = self.variants if self.public_variant is None else (self.public_variant,)
        same = (cases.dtype == self.public_dtype) & (cases.kv_dtype == self.public_dtype)
        return rows.take(same & np.isin(cases.variant, variants) & ALIKE[self.family](cases.sizes))


def _gemm(dtype: str, public_dtype: str) -> Pairing:
    # Products without a bias; serving libraries hold weights as n rows of k, which is our `nt`.
    return Pairing("gemm", dtype, ("torch",), ("", "nt"), public_dtype, public_variant="", layout="nt")


_ATTENTION = ("torch", "torch-flash", "torch-cudnn")
PAIRINGS = (
    _gemm("bf16", "bf16"),
    _gemm("fp8", "fp8"),
    _gemm("fp8", "fp8_block"),
    Pairing("attention", "bf16", _ATTENTION, ("prefill",), "bf16"),
    Pairing("attention", "bf16", _ATTENTION, ("decode",), "bf16"),
    Pairing("moe", "bf16", ("torch-grouped",), ("balanced", "power_law_1.01", "power_law_1.2"), "bf16"),
)


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution of ratios theirs / ours.

    `half_width` is half the median's 95 % confidence interval over the median; `error` the median |ln| error of the
    model behind them, 0 where shapes are the same, None where it is not known.
    """

    n: int
    median: float
    q1: float
    q3: float
    half_width: float
    error: float | None

    @classmethod
    def of(cls, ratios: Floats, error: float | None, least: int = LEAST_ROWS) -> Spread | None:
        """The spread of ratios, shape `(n,)`; None for fewer than `least`."""
        if len(ratios) < least:
            return None
        q1, median, q3 = (float(x) for x in np.percentile(ratios, (25, 50, 75)))
        return cls(len(ratios), median, q1, q3, median_half_width(ratios.tolist()), error)

    @property
    def differs(self) -> bool:
        """Whether the median is further from 1 than chance and the model's error explain."""
        return self.error is not None and abs(np.log(self.median)) > np.log1p(self.half_width) + self.error

    def __str__(self) -> str:
        mark = "**" if self.differs else ""
        error = f", ± {self.error:.0%}" if self.error else ""
        return f"{mark}{self.median:.2f}{mark} ({self.q1:.2f}–{self.q3:.2f}; {self.n}{error})"


@dataclass(frozen=True, slots=True)
class Found:
    """One line of the result: what is compared, in words, and the spreads at the same, at our and at their shapes."""

    what: tuple[str, ...]
    spreads: tuple[Spread | None, Spread | None, Spread | None]

    def cells(self) -> list[str]:
        """The cells of a markdown row."""
        return [*self.what, *(str(spread or "") for spread in self.spreads)]


def regimes(cases: Cases) -> npt.NDArray[np.str_]:
    """The regime of each case, shape `(n,)`, by what it needs on paper with all bytes from memory."""
    cost = work(cases, catalogue())
    compute, memory = cost.bounds_s["compute"], cost.dram_all_s
    cache_b = np.array([catalogue().get(name).last_level_cache_b for name in cases.device.tolist()])
    chosen = [np.maximum(compute, memory) < SHORT_S, compute >= memory, cost.footprint_b <= cache_b]
    return np.select(chosen, [REGIMES[0], REGIMES[3], REGIMES[1]], REGIMES[2])


def unseen_sizes(cases: Cases) -> Mask:
    """Rows of a grid that have a size no other row may have in training: every fifth inner value of each long axis."""
    out = np.zeros(len(cases), dtype=np.bool_)
    for place, column in enumerate(cases.sizes.values()):
        values = np.unique(column)
        if len(values) >= _MANY_VALUES:
            # Axes begin at different places, so that equal axes do not all lose the same value.
            out |= np.isin(column, values[1 + place % _HELD_OUT_EVERY : -1 : _HELD_OUT_EVERY])
    return out


def trained(rows: LabelledCases) -> Model:
    """Boosted trees on the ratio to the lower bound, as `kernelcast train --regressor xgboost` makes them."""
    # Power is not compared; without it training is twice as fast.
    artifact = train([replace(rows, power_w=np.full(len(rows), np.nan))], regressor="xgboost")
    with tempfile.TemporaryDirectory() as folder:
        save_artifact(artifact, Path(folder) / "model")
        predictor = load_predictor(Path(folder) / "model")
        predictor.load_all()
    return lambda cases: predictor.predict_cases(cases).targets["latency_s"].value


@dataclass(frozen=True, slots=True)
class Side:
    """Our rows of one family, a model of them, and that model's |ln| error for rows held out (NaN for others)."""

    rows: LabelledCases
    model: Model
    errors: Floats

    @classmethod
    def of(cls, rows: LabelledCases, trainer: Trainer) -> Side:
        """Trains twice: without a quarter of the shapes, for the errors, and on all."""
        out = held_out_shapes(rows.cases, _OURS_HELD_OUT)
        errors = np.full(len(rows), np.nan)
        errors[out] = log_error(trainer(rows.take(~out)), rows.take(out))
        return cls(rows, trainer(rows), errors)


def compare(pairing: Pairing, ours: Side, theirs: LabelledCases, trainer: Trainer) -> Iterator[Found]:
    """Lines of one pairing against one public library, whose comparable rows are `theirs`."""
    mine = np.isin(ours.rows.cases.variant, pairing.variants) & (ours.rows.cases.dtype == pairing.dtype)
    mine &= ALIKE[pairing.family](ours.rows.cases.sizes)
    rows, errors, library = ours.rows.take(mine), ours.errors[mine], str(theirs.cases.impl[0])
    as_theirs = recast(rows.cases, library, "hot", pairing.public_dtype, pairing.public_variant)
    here, there = regimes(rows.cases), regimes(theirs.cases)
    public = dict(zip(keys(theirs.cases, "variant"), theirs.latency_s.tolist(), strict=True))
    same = np.array([public.get(key, np.nan) for key in keys(as_theirs, "variant")])
    unseen = unseen_sizes(theirs.cases)
    grid_error = _medians(log_error(trainer(theirs.take(~unseen)), theirs.take(unseen)), there[unseen])
    value, inside = trainer(theirs)(as_theirs), near(as_theirs, theirs.cases)
    for impl in pairing.impls:
        of_impl = rows.cases.impl == impl
        own_error = _medians(errors[of_impl], here[of_impl])
        for cache_state in CACHE_STATES:
            answered = ours.model(recast(theirs.cases, impl, cache_state, pairing.dtype, pairing.layout))
            chosen = of_impl & (rows.cases.cache_state == cache_state)
            known = near(theirs.cases, rows.cases.take(chosen))
            what = (pairing.title, pairing.public_dtype, library, f"{impl} {pairing.dtype}, {cache_state}")
            exact = Spread.of((same / rows.latency_s)[chosen & ~np.isnan(same)], 0.0, least=1)
            items = [Found((*what, "all"), (exact, None, None))]
            for name in REGIMES:
                at_ours = (value / rows.latency_s)[chosen & inside & (here == name)]
                at_theirs = (theirs.latency_s / answered)[known & (there == name)]
                spreads = None, Spread.of(at_ours, grid_error[name]), Spread.of(at_theirs, own_error[name])
                items.append(Found((*what, name), spreads))
            yield from (line for line in items if any(line.spreads))


def between_versions(pairing: Pairing, theirs: LabelledCases) -> Iterator[list[str]]:
    """How versions of a public library differ at the same shapes: cells of a markdown row for each two and regime."""
    regime, names = regimes(theirs.cases), list(keys(theirs.cases, "variant"))
    for first, second in pairwise(sorted(set(theirs.cases.impl.tolist()))):
        before = {names[i]: float(theirs.latency_s[i]) for i in np.flatnonzero(theirs.cases.impl == first)}
        after = np.array([i for i in np.flatnonzero(theirs.cases.impl == second) if names[i] in before], dtype=np.intp)
        ratio = np.array([theirs.latency_s[i] / before[names[i]] for i in after])
        for name in REGIMES:
            if spread := Spread.of(ratio[regime[after] == name], 0.0):
                yield [pairing.title, pairing.public_dtype, f"{second} / {first}", name, str(spread)]


def near(cases: Cases, rows: Cases) -> Mask:
    """Which of `cases` have one of `rows` with every size within `NEAR` doublings."""
    here, there = (np.log2(np.maximum(np.stack(list(side.sizes.values()), axis=1), 1.0)) for side in (cases, rows))
    return np.array([bool((np.abs(there - item).max(axis=1) <= NEAR).any()) if len(there) else False for item in here])


def log_error(model: Model, rows: LabelledCases) -> Floats:
    """|ln(answered / measured)| of each row."""
    error: Floats = np.abs(np.log(model(rows.cases) / rows.latency_s))
    return error


def recast(cases: Cases, impl: str, cache_state: str, dtype: str, variant: str | None) -> Cases:
    """The cases as the other side names them; `variant` None leaves theirs."""
    words = [np.full(len(cases), word) for word in (impl, cache_state, dtype)]
    same = cases.variant if variant is None else np.full(len(cases), variant)
    return replace(cases, impl=words[0], cache_state=words[1], dtype=words[2], kv_dtype=words[2], variant=same)


def keys(cases: Cases, *columns: str) -> Iterator[tuple[Any, ...]]:
    """What each case is: its sizes and the text columns named."""
    parts = [column.tolist() for column in cases.sizes.values()]
    return zip(*parts, *(getattr(cases, name).tolist() for name in columns), strict=True)


def distinct(rows: LabelledCases) -> LabelledCases:
    """Rows in `SHORTEST` sizes, one per case, with the median latency where there were more."""
    sizes = rows.cases.sizes
    if shorten := SHORTEST.get(rows.cases.family.name):
        rows = replace(rows, cases=replace(rows.cases, sizes={**sizes, **shorten(sizes)}))
    places: dict[tuple[Any, ...], list[int]] = {}
    for i, key in enumerate(keys(rows.cases, "impl", "cache_state", "dtype", "kv_dtype", "variant")):
        places.setdefault(key, []).append(i)
    latency = np.array([np.median(rows.latency_s[same]) for same in places.values()])
    return replace(rows.take([same[0] for same in places.values()]), latency_s=latency)


def our_rows(where: str, family: str, device: str) -> LabelledCases:
    """Our rows of libraries that take no configuration, one per case.

    Raises:
        SpecError: there are none.
    """
    table = read_shipped(family, [device]) if where == "shipped" else Store(Path(where)).read(family, [device])
    rows = labelled_table(table, family)
    tuned = [~np.isnan(column) for column in rows.cases.config.values()]
    plain = np.char.startswith(rows.cases.impl, "torch") & ~np.any(
        [np.zeros(len(rows), dtype=np.bool_), *tuned], axis=0
    )
    if not plain.any():
        raise SpecError(f"no row of {family} on {device} in {where}; give a store that has some with --rows")
    return distinct(rows.take(plain))


def public_rows(folder: Path, device: str) -> dict[str, LabelledCases]:
    """The rows of `device` in a folder's tables, by family; a file that is no measurement form is named and left out.

    Raises:
        SpecError: no row is of the device.
    """
    readable = []
    for path in sorted(folder.rglob("*.parquet")):
        try:
            labelled_files([path], skip_bad_rows=True)
            readable.append(path)
        except SpecError as error:
            print(f"left out: {error}", flush=True)
    tables = labelled_files(readable, skip_bad_rows=True) if readable else []
    items = [rows.take(rows.cases.device == device) for rows in tables]
    if not any(map(len, items)):
        raise SpecError(f"no row of {device} in {folder}/**/*.parquet")
    return {rows.cases.family.name: distinct(rows) for rows in items if len(rows)}


def _medians(errors: Floats, regime: npt.NDArray[np.str_]) -> dict[str, float | None]:
    """The median error of each regime; None where fewer than `LEAST_ROWS` are known."""
    known = {name: errors[(regime == name) & ~np.isnan(errors)] for name in REGIMES}
    return {name: float(np.median(some)) if len(some) >= LEAST_ROWS else None for name, some in known.items()}


def page(found: Iterable[Found], versions: Iterable[list[str]], device: str) -> str:
    """Both tables as markdown."""
    head = ("kernel", "dtype", "theirs", "ours", "regime", "same shapes", "our shapes", "their shapes")
    first = _table(head, (line.cells() for line in found))
    second = _table(("kernel", "dtype", "versions", "regime", "same shapes"), versions)
    return f"# {device} beside public tables\n\n{_HEAD}\n{first}\n\n## Versions of public libraries\n\n{second}\n"


def _table(head: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


_HEAD = """Ratios theirs / ours (versions: later / earlier): median (quartiles; rows, ± median error of the model between).
Bold: further from 1 than the median's 95 % confidence interval and that error together explain.
"""


def main() -> None:
    """Compare, print, and write the page where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--public", type=Path, required=True, help="folder of public tables, *.parquet")
    parser.add_argument("--rows", default="shipped", help="a store of measurements, or 'shipped'")
    parser.add_argument("--device", default="nvidia-h200-sxm-141gb", help="catalogue name")
    parser.add_argument("--out", type=Path, help="markdown file to write")
    options = parser.parse_args()
    try:
        text = compared(options.public, options.rows, catalogue().get(options.device).name)
    except SpecError as error:
        raise SystemExit(str(error)) from None
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


def compared(folder: Path, where: str, device: str) -> str:
    """The page on all pairings of which both sides have rows."""
    public = public_rows(folder, device)
    sides: dict[str, Side] = {}
    items: list[Found] = []
    versions: list[list[str]] = []
    for pairing in PAIRINGS:
        if pairing.family not in public:
            continue
        theirs = pairing.of_public(public[pairing.family])
        names, counts = np.unique(theirs.cases.impl, return_counts=True)
        for library in names[counts >= LEAST_TRAINING_ROWS].tolist():
            print(f"{pairing.title} {pairing.public_dtype} {library}", flush=True)
            if pairing.family not in sides:
                sides[pairing.family] = Side.of(our_rows(where, pairing.family, device), trained)
            items += compare(pairing, sides[pairing.family], theirs.take(theirs.cases.impl == library), trained)
        versions += between_versions(pairing, theirs) if len(names) > 1 else ()
    return page(items, versions, device)


if __name__ == "__main__":
    main()
