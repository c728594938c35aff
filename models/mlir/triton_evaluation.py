"""How far predictions of compiled code are from what compilers made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...features.cases import Floats
from .triton_labels import CompiledRows


def r_squared(true: Floats, predicted: Floats) -> float:
    """Share of the variance that is explained; NaN where nothing varies."""
    total = float(((true - true.mean()) ** 2).sum())
    return 1.0 - float(((true - predicted) ** 2).sum()) / total if total else float("nan")


def area_under_curve(is_positive: Any, score: Floats) -> float:
    """Area under the receiver operating characteristic: the chance that a positive scores higher than a negative
    (ties count half).
    """
    positive, negative = score[is_positive], score[~is_positive]
    if not len(positive) or not len(negative):
        return float("nan")
    ordered = np.sort(negative)
    below, upto = np.searchsorted(ordered, positive, "left"), np.searchsorted(ordered, positive, "right")
    return float((below + upto).sum() / 2.0 / len(positive) / len(negative))


def errors_of(
    rows: CompiledRows, *, registers: Floats, instructions: Floats | None = None, shared_b: Floats | None = None,
    spill_score: Floats | None = None,
) -> dict[str, float]:  # fmt: skip
    """Errors of predictions for rows by name; those of targets not predicted are left out.

    `registers_r2_kept` leaves out code of which the assembler gave up on registers.
    """
    kept = ~rows.collapsed
    found: dict[str, float] = {
        "n": float(len(rows)),
        "registers_r2": r_squared(rows.registers, registers),
        "registers_r2_kept": r_squared(rows.registers[kept], registers[kept]),
        "registers_mae": float(np.abs(rows.registers - registers).mean()),
        "registers_median_ae": float(np.median(np.abs(rows.registers - registers))),
    }
    if spill_score is not None:
        found["spill_auc"] = area_under_curve(rows.spilled, spill_score)
        found["any_stack_auc"] = area_under_curve(rows.spill_b > 0, spill_score)
    if instructions is not None:
        off = 100.0 * np.abs(instructions / rows.instructions - 1.0)
        found |= {"instructions_mean_ape_pct": float(off.mean()), "instructions_median_ape_pct": float(np.median(off))}
    if shared_b is not None:
        off = np.abs(shared_b - rows.shared_b)
        found |= {"shared_exact_pct": 100.0 * float((off < 1.0).mean()), "shared_mae_b": float(off.mean())}
    return {name: round(value, 4) for name, value in found.items()}


def expected_calibration_error(is_positive: Any, probability: Floats, bins: int = 10) -> float:
    """Mean distance of probabilities from the shares found, over bins of equal width weighed by their rows."""
    place = np.minimum((probability * bins).astype(int), bins - 1)
    total = 0.0
    for one in range(bins):
        own = place == one
        if own.any():
            total += abs(float(probability[own].mean() - np.asarray(is_positive)[own].mean())) * float(own.mean())
    return total


def by_slice(rows: CompiledRows, answers: Mapping[str, Floats]) -> dict[str, dict[str, float]]:
    """Errors over all rows, by target, and with products of matrices or without. `answers` are `errors_of`'s."""
    from ...features.mlir.triton_vectors import NAMES

    has_products = rows.x[:, NAMES.index("tt.dot")] > 0
    masks = {"all": np.ones(len(rows), dtype=bool),
        **{one: np.array(rows.targets) == one for one in sorted(set(rows.targets))},
             "with products": has_products, "without products": ~has_products}  # fmt: skip
    return {
        name: errors_of(rows.take(mask), **{key: own[mask] for key, own in answers.items()})
        for name, mask in masks.items() if mask.any()
    }  # fmt: skip
