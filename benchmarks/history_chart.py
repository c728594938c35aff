"""The mean error of each policy by night as one picture, from what `benchmarks/history.py --json` wrote.

python -P benchmarks/history_chart.py LINES.json OUT.svg
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

# Paul Tol's bright scheme, which colour-blind readers can tell apart.
SHOWN = {
    "retrained on all rows": "#ee6677",
    "retrained on all rows, adapted": "#66ccee",
    "retrained on the current software": "#4477aa",
    "past model of the software": "#ccbb44",
    "past model of the software, adapted": "#228833",
    "first night's model, adapted": "#aa3377",
}
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 380, 56, 20, 16, 92


def means(lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Mean error in percent by policy and night."""
    result: dict[str, dict[int, list[float]]] = {}
    for line in lines:
        result.setdefault(line["policy"], {}).setdefault(line["night"], []).extend(line["errors"])
    return {
        policy: {night: float(np.mean(errors)) for night, errors in nights.items()} for policy, nights in result.items()
    }


def chart(lines: Sequence[Mapping[str, Any]]) -> str:
    """The picture as SVG; nights whose software differs from the night before are shaded."""
    by_policy = means(lines)
    software = {line["night"]: (line["software"], line["kind"]) for line in lines}
    nights = sorted(software)
    values = [value for policy in SHOWN for value in by_policy[policy].values()]
    low, high = math.log(min(values) * 0.9), math.log(max(values) * 1.1)

    def x(night: int) -> float:
        return LEFT + (night - nights[0] + 0.5) / len(nights) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (math.log(value) - low) / (high - low) * (HEIGHT - BOTTOM - TOP)

    step = (WIDTH - LEFT - RIGHT) / len(nights)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']  # fmt: skip
    for night in nights:
        if software[night][1] != "same":
            parts.append(f'<rect x="{x(night) - step / 2:.1f}" y="{TOP}" width="{step:.1f}" '
                         f'height="{HEIGHT - BOTTOM - TOP}" fill="#eee"/>')  # fmt: skip
        parts.append(f'<text x="{x(night):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle" fill="#333">'
                     f"{night} · {software[night][0].removeprefix('vllm-')}</text>")  # fmt: skip
    ticks = [tick for tick in (2, 5, 10, 20, 50, 100, 200, 500) if low <= math.log(tick) <= high]
    parts += [f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}" stroke="#ccc"/><text x="{LEFT - 6}" '
              f'y="{y(tick) + 4:.1f}" text-anchor="end" fill="#333">{tick} %</text>' for tick in ticks]  # fmt: skip
    for i, (policy, colour) in enumerate(SHOWN.items()):
        points = " L".join(f"{x(night):.1f} {y(value):.1f}" for night, value in sorted(by_policy[policy].items()))
        parts.append(f'<path d="M{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        at_x, at_y = LEFT + i % 2 * 340, HEIGHT - BOTTOM + 40 + i // 2 * 18
        parts.append(f'<path d="M{at_x} {at_y - 4}h22" stroke="{colour}" stroke-width="3"/>'
                     f'<text x="{at_x + 28}" y="{at_y}" fill="#333">{policy}</text>')  # fmt: skip
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(chart(json.loads(Path(sys.argv[1]).read_text())))
