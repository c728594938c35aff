"""`kernelcast compare sweep`: a plot that fits, a table under it, and words that say what is swept."""

from __future__ import annotations

import json

import pytest
from kernelcast.commands import console
from kernelcast.commands.compare.plot import PlottedCurve, draw

GEMM = ("gemm", "n=4k", "k=4k", "bf16", "--device", "h100-sxm")


def test_a_range_is_drawn_and_listed(run, fake):
    done = run("compare", "sweep", *GEMM, "m=1..8k", "--device", "l40s")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert "gemm[batch=1,m,n=4096,k=4096]:bf16" in lines[0]
    assert max(map(len, lines[1:])) <= 100
    assert "● nvidia-h100-sxm-80gb" in done.out
    assert "· outside what was measured" in done.out
    assert "8,192" in lines[-1]


def test_json_has_every_value(run, fake):
    sweep = json.loads(run("compare", "sweep", *GEMM, "M=1,8,64", "--json").out)
    assert (sweep["dim"], sweep["values"]) == ("m", [1, 8, 64])
    assert len(sweep["curves"][0]["latency_s"]["value"]) == 3
    linear = json.loads(run("compare", "sweep", *GEMM, "m=10..20", "--points", "3", "--linear", "--json").out)
    assert linear["values"] == [10, 15, 20]


def test_power_that_is_unknown_is_told(run, fake):
    done = run("compare", "sweep", "gemm", "m=1..8", "n=8", "k=8", "fp64", "--device", "h100-sxm", "--of", "power")
    assert (done.code, done.out) == (0, "")
    assert "nvidia-h100-sxm-80gb: power is unknown" in done.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (GEMM, "give one size or knob a range or values, such as m=1..8192 or m=1,8,64; there is none"),
        ((*GEMM, "m=1..8", "batch=1,2"), "m=1..8, batch=1,2 are 2"),
        ((*GEMM, "m=8..1"), "m=8..1: `to` must be at least `from`, which is 8, got 1"),
        ((*GEMM, "q=1..8"), "q=1..8: what is swept must be a size or knob of gemm, not 'q'"),
        ((*GEMM, "m=0..8"), "m=0..8: from must be a whole number between 1 and"),
        ((*GEMM, "m=1.."), "m=1..: a range has both ends, such as m=1..8192"),
        ((*GEMM, "m=1,,2"), "m must be a whole number, got ''"),
        ((*GEMM, "m=a..8"), "m from must be a whole number, got 'a'"),
        ((*GEMM, "m=1..8", "--of", "heat"), "--of is 'heat'; it is one of latency, power, energy"),
        ((*GEMM, "m=1..8", "--points", "0"), "must be a whole number between 1 and 512"),
        (("gemm", "m=1..8", "n=8", "k=8", "--device", "h100-sxm"), "dtype is missing"),
    ],
)
def test_what_is_wrong_is_one_sentence(run, fake, args, said):
    assert said in run("compare", "sweep", *args).error


def test_a_plot_has_each_point_in_its_row_and_column():
    curve = PlottedCurve("a", [1.0, 10.0, 100.0], [True, True, False])
    lines = draw([curve], [1, 10, 100], console.seconds, 40, log_x=True).plain.splitlines()
    rows = [line[11:] for line in lines[:16]]
    assert (len(rows[0]), rows[15][0], rows[0][-1]) == (29, "●", "·")
    assert sum(row.strip() != "" for row in rows) == 16
    assert all(sum(row[column] != " " for row in rows) == 1 for column in range(29))
    assert [lines[0].split()[:2], lines[15].split()[:2]] == [["100", "s"], ["1.00", "s"]]
    assert lines[17].split() == ["1", "10", "100"]


@pytest.mark.parametrize(("values", "places"), [([2.0], [5]), ([2.0, None, 2.0], [1, 2, 3]), ([3.0, 3.0], [7, 9])])
def test_flat_and_broken_curves_are_drawn(values, places):
    text = draw([PlottedCurve("a", values, [True] * len(values))], places, str, 40, log_x=False).plain
    assert "●" in text.splitlines()[8] or "●" in text.splitlines()[7]
