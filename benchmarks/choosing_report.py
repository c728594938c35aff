"""What the replays of `benchmarks/choosing.py` say: `docs/choosing.json`, a drawing, and the tables of `docs/choosing.md`.

Errors are means over seeds, made to fall with seconds (isotonic regression of ln error, for every policy alike), and read off
between the rounds on logarithmic scales: what share of its seconds does a policy need for the error random ends a round with?
Prints the tables as Markdown.
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
FIRST_LEVEL = 2
"""Rounds before this one end with so few seconds beyond the common first rows that no policy can be much better."""

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
        points = json.loads(path.read_text(encoding="utf-8"))["points"]
        found.setdefault((family, device, regressor), {}).setdefault(policy, {})[seed] = points
    for own in found.values():
        for policy, seeds in list(own.items()):
            own[policy] = {seed: points for seed, points in seeds.items() if seed in own.get("random", {})}
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


def _shares(own: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, list[float | None]]]:
    """By policy and kind of error, for each level of random's error the share of random's seconds; None: never reached.

    Both are means over the seeds that the policy was replayed with.
    """
    found: dict[str, dict[str, list[float | None]]] = {}
    for policy, seeds in own.items():
        if policy != "random":
            random, ours = _means([own["random"][seed] for seed in seeds]), _means(list(seeds.values()))
            found[policy] = {field: _share(random, ours, field) for field in JUDGED}
    return found


def _share(random: Sequence[Mapping[str, Any]], ours: Sequence[Mapping[str, Any]], field: str) -> list[float | None]:
    if any(point[field] is None for point in (*random, *ours)):
        return []
    levels, errors = _falling(random, field), _falling(ours, field)
    at = np.log([point["seconds"] for point in ours])
    found: list[float | None] = []
    for place in range(FIRST_LEVEL, len(random)):
        reached = np.flatnonzero(errors <= levels[place] + 1e-12)
        if not len(reached):
            found.append(None)
            continue
        j = int(reached[0])
        where = at[j]
        if j > 0:
            where = at[j - 1] + (at[j] - at[j - 1]) * (errors[j - 1] - levels[place]) / (errors[j - 1] - errors[j])
        found.append(round(float(np.exp(where)) / random[place]["seconds"], 3))
    return found


def _falling(points: Sequence[Mapping[str, Any]], field: str) -> Floats:
    """Logarithms of the errors, made to fall."""
    from sklearn.isotonic import IsotonicRegression

    logs = np.log([max(float(point[field]), 1e-3) for point in points])
    fitted: Floats = IsotonicRegression(increasing=False).fit_transform(np.arange(len(logs)), logs)
    return fitted


def middle(shares: Sequence[float | None]) -> float:
    """The geometric mean; a level never reached counts as all of random's seconds, which flatters it."""
    return float(np.exp(np.mean([np.log(1.0 if one is None else one) for one in shares])))


def _table(curves: Mapping[Key, Any], shares: Mapping[Key, Any]) -> str:
    """Shares by family and device, at every level and on the whole."""
    lines = []
    for regressor in sorted({key[2] for key in curves}, reverse=True):
        keys = [key for key in curves if key[2] == regressor]
        lines += [f"\n{regressor}\n", "| family | device | random: seconds, mean error % | policy | seeds | error % | "
                  "share of random's seconds, by level | mean | median error | usage |", "|---" * 10 + "|"]  # fmt: skip
        for key in keys:
            first, last = curves[key]["random"][1], curves[key]["random"][-1]
            begins = f"{first['seconds']:.0f} to {last['seconds']:.0f}, {first['mean']:.1f} to {last['mean']:.1f}"
            for policy, found in sorted(shares[key].items()):
                points = curves[key][policy]
                by_level = " ".join("never" if one is None else f"{one:.2f}" for one in found["mean"])
                others = [
                    f"{middle(found[field]):.2f}" if found[field] else "" for field in ("mean", "median", "usage_mean")
                ]
                lines.append(f"| {key[0]} | {key[1]} | {begins} | {policy} | {points[0]['seeds']} | "
                             f"{points[1]['mean']:.1f} to {points[-1]['mean']:.1f} | {by_level} | "
                             f"{' | '.join(others)} |")  # fmt: skip
        for policy in sorted({policy for key in keys for policy in shares[key]}):
            for field in JUDGED:
                every = [one for key in keys if policy in shares[key] for one in shares[key][policy][field]]
                if every:
                    good = sum(one is not None and one <= 0.6 for one in every)
                    never = sum(one is None for one in every)
                    lines.append(f"\nover all, {policy}, {field}: {middle(every):.2f} of random's seconds; at most 0.6 at "
                                 f"{good} of {len(every)} levels, never reached {never}")  # fmt: skip
    return "\n".join(lines)


def _drawing(curves: Mapping[Key, Mapping[str, Sequence[Mapping[str, Any]]]]) -> str:
    """One panel a family and device: mean error against seconds, with the band over seeds."""
    keys = [key for key in curves if key[2] == "xgboost"]
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
