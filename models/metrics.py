"""How far predictions are from measurements: error, rank and interval metrics, and the slices they are told by.

Everything takes numpy columns of shape `(n,)` in one SI unit (seconds, watts or joules); percentages are in percent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..features.batch.cases import Cases, Floats, Strings
from .family_model.utilisation import SURE_POWER_S

Mask = npt.NDArray[np.bool_]

_WITHIN_PCT = 10.0


@dataclass(frozen=True, slots=True)
class Metrics:
    """Errors of predictions. An absolute percentage error (APE) is |predicted / measured - 1|.

    Attributes:
        n: Number of predictions.
        mean_ape_pct: Mean APE.
        median_ape_pct: Median APE.
        within_10_pct: Share of predictions with an APE of at most 10 %.
        spearman: Spearman's rank correlation; None for fewer than two distinct values on a side.
        kendall: Kendall's rank correlation; None likewise.
        coverage_pct: Share of measurements inside their interval; None without intervals.
        width_pct: Median of (upper - lower) / value; None without intervals.
    """

    n: int
    mean_ape_pct: float
    median_ape_pct: float
    within_10_pct: float
    spearman: float | None = None
    kendall: float | None = None
    coverage_pct: float | None = None
    width_pct: float | None = None

    @classmethod
    def of(cls, measured: Floats, value: Floats, lower: Floats | None = None, upper: Floats | None = None) -> Metrics:
        """Metrics of predictions, all columns positive and without NaN, at least one row."""
        ape = ape_pct(measured, value)
        coverage = width = None
        if lower is not None and upper is not None:
            coverage = _rounded(np.mean((lower <= measured) & (measured <= upper)) * 100)
            width = _rounded(np.median((upper - lower) / value) * 100)
        return cls(
            n=len(measured),
            mean_ape_pct=_rounded(ape.mean()),
            median_ape_pct=_rounded(np.median(ape)),
            within_10_pct=_rounded(np.mean(ape <= _WITHIN_PCT) * 100),
            spearman=spearman(measured, value),
            kendall=kendall(measured, value),
            coverage_pct=coverage,
            width_pct=width,
        )


def ape_pct(measured: Floats, value: Floats) -> Floats:
    """Absolute percentage error of each prediction, in percent."""
    return np.abs(value / measured - 1.0) * 100.0


def error_summary(log_errors: Floats) -> dict[str, float]:
    """Mean and median absolute percentage error and the share within 10 %, from ln(measured / predicted).

    NaN marks rows without a label or an answer; `{"n": 0}` where there are no others.
    """
    known = log_errors[~np.isnan(log_errors)]
    if not len(known):
        return {"n": 0}
    ape = np.abs(np.expm1(-known)) * 100
    return {
        "n": len(known),
        "mean_ape_pct": _rounded(ape.mean()),
        "median_ape_pct": _rounded(np.median(ape)),
        "within_10_pct": _rounded(np.mean(ape <= _WITHIN_PCT) * 100),
    }


def wilson_pct(share_pct: float, n: int) -> tuple[float, float]:
    """What chance alone allows beside a share of `n` rows: its 95 % interval (Wilson, "Probable inference", JASA 1927)."""
    z, share = 1.959964, share_pct / 100
    centre = share + z**2 / (2 * n)
    reach = z * float(np.sqrt(share * (1 - share) / n + z**2 / (4 * n * n)))
    return max((centre - reach) / (1 + z**2 / n), 0.0) * 100, min((centre + reach) / (1 + z**2 / n), 1.0) * 100


def spearman(a: Floats, b: Floats) -> float | None:
    """Spearman's rank correlation; None for fewer than two distinct values on a side. Needs the `train` extra."""
    return _rank_correlation("spearmanr", a, b)


def kendall(a: Floats, b: Floats) -> float | None:
    """Kendall's tau-b (Kendall, "The treatment of ties in ranking problems", 1945); None and needs likewise."""
    return _rank_correlation("kendalltau", a, b)


def _rank_correlation(name: str, a: Floats, b: Floats) -> float | None:
    from scipy import stats

    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return _rounded(getattr(stats, name)(a, b).statistic, 5)


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows for which a label has one value.

    Attributes:
        by: The label (device, dtype …).
        name: Its value.
        rows: Mask of shape `(n,)`.
    """

    by: str
    name: str
    rows: Mask


def slices(labels: Mapping[str, Strings]) -> Iterator[Slice]:
    """Slices by each label, in the order of `labels`; a label with a single word tells nothing and is left out.

    Words come in the order of `ORDER`; those it does not list follow alphabetically.
    """
    for by, column in labels.items():
        words = np.unique(column).tolist()
        if len(words) > 1:
            first = {word: i for i, word in enumerate(ORDER.get(by, ()))}
            for word in sorted(words, key=lambda word: (first.get(word, len(first)), word)):
                yield Slice(by, word, column == word)


def shared_words(labels: Mapping[str, Strings]) -> dict[str, str]:
    """The labels that read the same for all rows, which `slices` leaves out, with what they read."""
    words = {by: np.unique(column) for by, column in labels.items()}
    return {by: str(column[0]) for by, column in words.items() if len(column) == 1}


def labels_of(
    cases: Cases, measured_s: Floats, seen_devices: Sequence[str], source: Strings | None = None
) -> dict[str, Strings]:
    """The labels that cases of one family are sliced by, each of shape `(n,)`.

    Args:
        cases: `n` cases, devices by the catalogue's names.
        measured_s: measured latencies in seconds, for the size bands.
        seen_devices: devices the model was trained on; the others are marked as unseen.
        source: where each row comes from, None if not known.
    """
    devices = np.unique(cases.device)
    named = np.array([name if name in seen_devices else f"{name} (unseen)" for name in devices.tolist()])
    seen = np.isin(cases.device, list(seen_devices))
    threads = np.where(
        np.isnan(cases.threads), "not given", np.nan_to_num(cases.threads).astype(np.int64).astype(np.str_)
    )
    return {
        "source": _or(source if source is not None else np.full(len(cases), ""), "not given"),
        "device": named[np.searchsorted(devices, cases.device)],
        "device seen in training": np.where(seen, "yes", "no"),
        "dtype": np.where(cases.dtype == cases.kv_dtype, cases.dtype,
                          np.char.add(np.char.add(cases.dtype, ", cache "), cases.kv_dtype)),
        "variant": _or(cases.variant, "plain"),
        "impl": _or(cases.impl, "not given"),
        "threads": np.where(np.isnan(cases.threads), "not given", threads),
        "cache state": cases.cache_state,
        "size": size_bands(measured_s),
    }  # fmt: skip


def size_bands(measured_s: Floats) -> Strings:
    """The decade of each measured latency in seconds, in words (`SIZE_BANDS`)."""
    return np.array(SIZE_BANDS)[np.searchsorted(_EDGES_S, measured_s, side="right")]


def power_bands(measured_s: Floats) -> Strings:
    """Whether each kernel ran long enough for its power to be trusted (`utilisation.SURE_POWER_S`), in words."""
    return np.where(measured_s < SURE_POWER_S, *POWER_BANDS)


_EDGES_S = np.array([1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
SIZE_BANDS = ("under 10 µs", "10–100 µs", "100 µs–1 ms", "1–10 ms", "10–100 ms", "over 100 ms")
POWER_BANDS = ("under 333 µs", "333 µs and up")
ORDER = {"size": SIZE_BANDS, "kernel time": POWER_BANDS, "device seen in training": ("yes", "no"),
         "in domain": ("yes", "no")}  # fmt: skip
"""Words that have an order of their own."""


def _or(column: Strings, word: str) -> Strings:
    return np.where(column == "", word, column)


def _rounded(value: Any, digits: int = 3) -> float:
    return round(float(value), digits)
