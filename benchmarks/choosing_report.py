"""What the replays of `benchmarks/choosing.py` say: `docs/choosing.json`, a drawing, and the tables of `docs/choosing.md`.

Errors are means over seeds, made to fall with seconds (isotonic regression of ln error, for every policy alike), and read off
between the rounds on logarithmic scales: what share of its seconds does a policy need for the error random ends a round with?
Every curve ends where all rows are measured, which is the same for all policies; an error that even these do not reach
counts as all of these seconds, so that a level never reached makes a policy look bad, not good. Prints tables as Markdown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kernelcast.features.batch.cases import Floats
from kernelcast.models.evaluation.charts import Axis, Chart
from kernelcast.models.evaluation.learning_curve import Band

REPLAYS, PAGE = Path("build/choosing"), Path("docs")
FIELDS = ("mean", "median", "within_10", "usage_mean")
JUDGED = ("mean", "median", "usage_mean")
FIRST_LEVEL = 1
"""The first round is the common first rows."""

WIDTH, HEIGHT = 340, 300
"""Of a panel, pixels."""

DRAWN = ("random", "space-filling", "ours")
_COLOURS = {"random": "#8a8f98", "space-filling": "#c77d1e", "ours": "#1f6feb"}

Key = tuple[str, str, str]
"""Family, device, regressor."""


def main() -> None:
    """Write the figures and the drawing, print the tables."""
    replays = _replays()
    curves = {
        key: {policy: _means(list(seeds.values())) for policy, seeds in replay.items()}
        for key, replay in replays.items()
    }
    shares = {key: _shares(replay) for key, replay in replays.items()}
    plain = {
        " / ".join(key): {
            policy: {"points": points, "share_of_random": shares[key].get(policy)} for policy, points in curve.items()
        }
        for key, curve in curves.items()
    }
    (PAGE / "choosing.json").write_text(json.dumps(plain, separators=(",", ":")) + "\n", encoding="utf-8")
    (PAGE / "choosing.svg").write_text(_drawing(curves), encoding="utf-8")
    print(_table(curves, shares))


def _replays() -> dict[Key, dict[str, dict[str, Any]]]:
    """The points of every seed, by policy; only of seeds that random was replayed with too."""
    result: dict[Key, dict[str, dict[str, Any]]] = {}
    for path in sorted(REPLAYS.glob("*.json")):
        family, device, policy, regressor, seed = path.name.removesuffix(".json").split(".")
        replay = json.loads(path.read_text(encoding="utf-8"))
        result.setdefault((family, device, regressor), {}).setdefault(policy, {})[seed] = replay
    for item in result.values():
        ends = {
            seed: item["all"] | {"seconds": item["pool_seconds"], "rows": item["pool_rows"]}
            for seed, item in item.get("random", {}).items()
        }
        for policy, seeds in list(item.items()):
            item[policy] = {seed: [*item["points"], ends[seed]] for seed, item in seeds.items() if seed in ends}
    return {
        key: {policy: seeds for policy, seeds in item.items() if seeds}
        for key, item in result.items()
        if item.get("random")
    }


def _means(seeds: Sequence[Any]) -> list[dict[str, Any]]:
    """Means over seeds and bands, round by round."""
    return [_point(item) for item in zip(*seeds, strict=True)]


def _point(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {"seeds": len(seeds)}
    for name in ("seconds", "rows", *FIELDS):
        values = [float(seed[name]) for seed in seeds if seed[name] == seed[name]]
        band = Band.of(values) if values else None
        mean = round(float(np.mean(values)), 3) if values else None
        result[name] = mean
        if band is not None and name in FIELDS:
            result[f"{name}_low"], result[f"{name}_high"] = band.low, band.high
    return result


def _shares(own: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """By policy and kind of error, for each level of random's error the share of random's seconds.

    Both are means over the seeds that the policy was replayed with.
    """
    result: dict[str, dict[str, list[float]]] = {}
    for policy, seeds in own.items():
        if policy != "random":
            random, ours = _means([own["random"][seed] for seed in seeds]), _means(list(seeds.values()))
            result[policy] = {field: _share(random, ours, field) for field in JUDGED}
    return result


def _share(random: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]], field: str) -> list[float]:
    if any(point[field] is None for point in (*random, *ours)):
        return []
    levels, errors = _falling(random, field), _falling(ours, field)
    at, when = (np.log([point["seconds"] for point in points]) for points in (ours, random))
    # Where random's error did not fall for a round, that level was reached before it.
    falls = [i for i in range(FIRST_LEVEL, len(random) - 1) if levels[i] < levels[i - 1]]
    return [round(float(np.exp(_reached(at, errors, levels[i]) - when[i])), 3) for i in falls]


def _reached(at: Floats, errors: Floats, level: float) -> float:
    """Logarithm of the seconds at which falling errors come down to the level; the last of all if they never do."""
    reached = np.flatnonzero(errors <= level + 1e-12)
    j = int(reached[0]) if len(reached) else len(at) - 1
    if not len(reached) or j == 0:
        return float(at[j])
    return float(at[j - 1] + (at[j] - at[j - 1]) * (errors[j - 1] - level) / (errors[j - 1] - errors[j]))


def _falling(points: Sequence[Mapping[str, Any]], field: str) -> Floats:
    """Logarithms of the errors, made to fall."""
    from sklearn.isotonic import IsotonicRegression

    logs = np.log([max(float(point[field]), 1e-3) for point in points])
    fitted: Floats = IsotonicRegression(increasing=False).fit_transform(np.arange(len(logs)), logs)
    return fitted


def middle(shares: Sequence[float]) -> float:
    """The geometric mean."""
    return float(np.exp(np.mean(np.log(shares))))


def _table(curves: Mapping[Key, Any], shares: Mapping[Key, Any]) -> str:
    """Shares by family and device, at every level and on the whole."""
    lines = []
    for regressor in sorted({key[2] for key in curves}, reverse=True):
        keys = [key for key in curves if key[2] == regressor]
        lines += [f"\n{regressor}\n", "| family | device | policy | seeds | seconds, mean error % | "
                  "share of random's seconds, by level | mean | median error | usage |", "|---" * 9 + "|"]  # fmt: skip
        for key in keys:
            for policy, points in sorted(curves[key].items()):
                first, last = points[0], points[-2]
                seen = (f"{first['seconds']:.0f} to {last['seconds']:.0f}, {first['mean']:.1f} to {last['mean']:.1f} "
                        f"(all rows {points[-1]['mean']:.1f})")  # fmt: skip
                entry = shares[key].get(policy)
                cells = ["", "", "", ""]
                if entry:
                    cells = [" ".join(f"{item:.2f}" for item in entry["mean"])]
                    cells += [f"{middle(entry[field]):.2f}" if entry[field] else "" for field in JUDGED]
                lines.append(f"| {key[0]} | {key[1]} | {policy} | {first['seeds']} | {seen} | {' | '.join(cells)} |")
        for where in ("", *sorted({key[1] for key in keys})):
            lines += _over(where, [key for key in keys if where in key[1]], shares)
    return "\n".join(lines)


def _over(where: str, keys: Sequence[Key], shares: Mapping[Key, Any]) -> list[str]:
    """One line for each policy and kind of error."""
    lines = []
    for policy in sorted({policy for key in keys for policy in shares[key]}):
        for field in JUDGED:
            items = [shares[key][policy][field] for key in keys if policy in shares[key] and shares[key][policy][field]]
            if items:
                every = [item for item in items for item in item]
                means = np.array([middle(item) for item in items])
                low, high = _band(means)
                good, bad = (sum(test) for test in zip(*((item <= 0.6, item > 1.0) for item in every), strict=True))
                lines.append(f"\n{where or 'over all'}, {policy}, {field}: {middle(every):.2f} ({low:.2f} to {high:.2f}) of "
                             f"random's seconds; at most 0.6 at {good}, above 1 at {bad} of {len(every)} levels")  # fmt: skip
    return lines


def _band(means: Floats) -> tuple[float, float]:
    """The 90 % band of the geometric mean by drawing families and devices again, with replacement (the bootstrap)."""
    drawn = np.random.default_rng(0).integers(0, len(means), (2000, len(means)))
    low, high = np.exp(np.quantile(np.log(means)[drawn].mean(axis=1), [0.05, 0.95]))
    return float(low), float(high)


def _drawing(curves: Mapping[Key, Mapping[str, Sequence[Mapping[str, Any]]]]) -> str:
    """One panel a family and device: mean error against seconds, with the band over seeds."""
    keys = [key for key in curves if key[2] == "quick"]
    across = 3
    rows = -(-len(keys) // across)
    panels = []
    for place, key in enumerate(keys):
        x, y = WIDTH * (place % across), HEIGHT * (place // across)
        panels.append(f'<g transform="translate({x} {y})">{_panel(key, curves[key])}</g>')
    style = (".grid{stroke:#d0d4da;stroke-width:.5;fill:none}text{font:10px sans-serif;fill:#57606a}.line{fill:none;"
             "stroke-width:1.6}.spread{stroke:none;opacity:.15}.dot{opacity:.9}") + "".join(
        f".line.{name}{{stroke:{colour}}}.spread.{name},.dot.{name},text.{name}{{fill:{colour}}}"
        for name, colour in _COLOURS.items())  # fmt: skip
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * across} {HEIGHT * rows}" role="img" '
            f'aria-label="mean error against seconds"><style>{style}</style>{"".join(panels)}</svg>\n')  # fmt: skip


def _panel(key: Key, own: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    drawn = [policy for policy in DRAWN if policy in own]
    points = [point for policy in drawn for point in own[policy]]
    x = Axis.logarithmic("seconds of measuring", [point["seconds"] for point in points], "seconds")
    y = Axis.logarithmic("mean error", [point[end] for point in points for end in ("mean_low", "mean_high")], "percent")
    chart = Chart(x, y, f"{key[0]}, {key[1]}", width=WIDTH, height=HEIGHT)
    chart.text(60, 10, f"{key[0]}, {key[1]}", "start")
    for place, policy in enumerate(drawn):
        low, mean, high = ([(point["seconds"], point[name]) for point in own[policy]]
                           for name in ("mean_low", "mean", "mean_high"))  # fmt: skip
        chart.band(low, high, f"spread {policy}")
        chart.line(mean, policy, (f"{policy}: {seconds:.0f} s, {error:.1f} %" for seconds, error in mean))
        chart.text(WIDTH - 16, 38 + 13 * place, policy, "end", policy)
    return chart.svg()


if __name__ == "__main__":
    main()
