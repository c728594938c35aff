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
from kernelcast.features.cases import Floats
from kernelcast.models.learning_curve import Band
from kernelcast.models.svg import BASE, END, HEIGHT, LEFT, TOP, WIDTH, LogAxis, circle, grid, line, text, ticks_of

REPLAYS, PAGE = Path("build/choosing"), Path("docs")
FIELDS = ("mean", "median", "within_10", "usage_mean")
JUDGED = ("mean", "median", "usage_mean")
FIRST_LEVEL = 1
"""The first round is the common first rows."""

DRAWN = ("random", "space-filling", "ours")
_COLOURS = {"random": "#8a8f98", "space-filling": "#c77d1e", "ours": "#1f6feb"}

Key = tuple[str, str, str]
"""Family, device, regressor."""


def main() -> None:
    """Write the figures and the drawing, print the tables."""
    replays = _replays()
    curves = {
        key: {policy: _means(list(seeds.values())) for policy, seeds in own.items()} for key, own in replays.items()
    }
    shares = {key: _shares(own) for key, own in replays.items()}
    plain = {
        " / ".join(key): {
            policy: {"points": points, "share_of_random": shares[key].get(policy)} for policy, points in own.items()
        }
        for key, own in curves.items()
    }
    (PAGE / "choosing.json").write_text(json.dumps(plain, separators=(",", ":")) + "\n", encoding="utf-8")
    (PAGE / "choosing.svg").write_text(_drawing(curves), encoding="utf-8")
    print(_table(curves, shares))


def _replays() -> dict[Key, dict[str, dict[str, Any]]]:
    """The points of every seed, by policy; only of seeds that random was replayed with too."""
    found: dict[Key, dict[str, dict[str, Any]]] = {}
    for path in sorted(REPLAYS.glob("*.json")):
        family, device, policy, regressor, seed = path.name.removesuffix(".json").split(".")
        replay = json.loads(path.read_text(encoding="utf-8"))
        found.setdefault((family, device, regressor), {}).setdefault(policy, {})[seed] = replay
    for own in found.values():
        ends = {
            seed: one["all"] | {"seconds": one["pool_seconds"], "rows": one["pool_rows"]}
            for seed, one in own.get("random", {}).items()
        }
        for policy, seeds in list(own.items()):
            own[policy] = {seed: [*one["points"], ends[seed]] for seed, one in seeds.items() if seed in ends}
    return {
        key: {policy: seeds for policy, seeds in own.items() if seeds}
        for key, own in found.items()
        if own.get("random")
    }


def _means(seeds: Sequence[Any]) -> list[dict[str, Any]]:
    """Means over seeds and bands, round by round."""
    return [_point(one) for one in zip(*seeds, strict=True)]


def _point(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"seeds": len(seeds)}
    for name in ("seconds", "rows", *FIELDS):
        values = [float(one[name]) for one in seeds if one[name] == one[name]]
        band = Band.of(values) if values else None
        mean = round(float(np.mean(values)), 3) if values else None
        found[name] = mean
        if band is not None and name in FIELDS:
            found[f"{name}_low"], found[f"{name}_high"] = band.low, band.high
    return found


def _shares(own: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """By policy and kind of error, for each level of random's error the share of random's seconds.

    Both are means over the seeds that the policy was replayed with.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for policy, seeds in own.items():
        if policy != "random":
            random, ours = _means([own["random"][seed] for seed in seeds]), _means(list(seeds.values()))
            found[policy] = {field: _share(random, ours, field) for field in JUDGED}
    return found


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
                found = shares[key].get(policy)
                cells = ["", "", "", ""]
                if found:
                    cells = [" ".join(f"{one:.2f}" for one in found["mean"])]
                    cells += [f"{middle(found[field]):.2f}" if found[field] else "" for field in JUDGED]
                lines.append(f"| {key[0]} | {key[1]} | {policy} | {first['seeds']} | {seen} | {' | '.join(cells)} |")
        for where in ("", *sorted({key[1] for key in keys})):
            lines += _over(where, [key for key in keys if where in key[1]], shares)
    return "\n".join(lines)


def _over(where: str, keys: Sequence[Key], shares: Mapping[Key, Any]) -> list[str]:
    """One line for each policy and kind of error."""
    lines = []
    for policy in sorted({policy for key in keys for policy in shares[key]}):
        for field in JUDGED:
            own = [shares[key][policy][field] for key in keys if policy in shares[key] and shares[key][policy][field]]
            if own:
                every = [one for found in own for one in found]
                means = np.array([middle(found) for found in own])
                low, high = _band(means)
                good, bad = (sum(test) for test in zip(*((one <= 0.6, one > 1.0) for one in every), strict=True))
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
    x = LogAxis.of([point["seconds"] for point in points], LEFT, END)
    y = LogAxis.of([point[end] for point in points for end in ("mean_low", "mean_high")], BASE, TOP + 14)
    parts = [grid(x, y, ticks_of(x, "seconds"), ticks_of(y, "percent"), ("seconds of measuring", "mean error"))]
    parts.append(text(LEFT, TOP, f"{key[0]}, {key[1]}", "start"))
    for place, policy in enumerate(drawn):
        at = [(x(point["seconds"]), point) for point in own[policy]]
        low, high = ([(a, y(point[end])) for a, point in at] for end in ("mean_low", "mean_high"))
        parts.append(f'<path class="spread {policy}" d="{line([*low, *reversed(high)])}z"/>')
        parts.append(f'<path class="line {policy}" d="{line([(a, y(point["mean"])) for a, point in at])}"/>')
        parts += [circle((a, y(point["mean"])), policy, f"{policy}: {point['seconds']:.0f} s, {point['mean']:.1f} %")
                  for a, point in at]  # fmt: skip
        parts.append(text(END - 4, TOP + 26 + 13 * place, policy, "end", policy))
    return "".join(parts)


if __name__ == "__main__":
    main()
