"""Pictures of time: widths, order, places, what is too thin to draw, and files."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from kernelcast.features.errors import SpecError
from kernelcast.workloads.flame import Box, Picture, svg, tree, write

LEAVES = [
    (("forward", "Net", "mm"), 3.0, "gemm", "bound by dram"),
    (("forward", "Net", "relu"), 1.0, "elementwise", ""),
    (("forward", "Net", "mm"), 3.0, "gemm", "bound by dram"),
    (("backward", "Net"), 1.0, "gemm", ""),
    (("backward", "dust"), 1e-6, "copy", ""),
]


def rectangles(picture: str) -> dict[str, tuple[float, float, float]]:
    """Left end, row and width of every box by the first line of its tooltip."""
    result = {}
    for group in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}g"):
        title, rectangle = group[0].text, group[1]
        assert title is not None
        result[title.splitlines()[0]] = tuple(float(rectangle.get(name, "nan")) for name in ("x", "y", "width"))
    return result


def test_boxes_are_as_wide_as_time_and_stand_in_order() -> None:
    root = tree("8 s", LEAVES)
    assert root.size == pytest.approx(8.000001)
    assert [box.label for box in root.children] == ["forward", "backward"]
    boxes = rectangles(svg(root, "a step"))
    forward, mm = boxes["8 s › forward"], boxes["8 s › forward › Net › mm"]
    relu = boxes["8 s › forward › Net › relu"]
    assert forward[2] == pytest.approx(1120 * 7 / 8, abs=1.1)
    assert mm[2] == pytest.approx(1120 * 6 / 8, abs=1.1)
    assert mm[0] == forward[0] == 0
    assert relu[0] > mm[0]
    assert forward[1] < boxes["8 s › forward › Net"][1] < mm[1]
    assert "8 s › backward › dust" not in boxes


def test_a_tooltip_says_time_share_and_limit() -> None:
    picture = svg(tree("8 s", LEAVES), "a step")
    assert "6.00 s, 75.0 % of the time, bound by dram" in picture
    assert ".flame .gemm" in picture
    assert ".flame .softmax" not in picture


def test_names_cannot_become_elements_and_nothing_takes_no_time() -> None:
    picture = svg(tree("<b>\x00", [(("<i>",), 1.0, "gemm", "<u>")]), "<svg>")
    assert ET.fromstring(picture).get("aria-label") == "<svg>"
    assert svg(Box("nothing", 0.0), "nothing").count("<rect") == 1


def test_files_are_pages_or_bare_pictures(tmp_path: Path) -> None:
    pictures = [Picture(name, "8 s", tree("8 s", LEAVES), ("a note",)) for name in ("one", "two")]
    write(tmp_path / "both.html", "A <step>", {"runs": 1}, pictures)
    text = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert text.count("<svg") == text.count("a note") == 2
    assert "A &lt;step&gt;" in text
    write(tmp_path / "one.svg", "A step", {}, pictures[:1])
    assert (
        ET.fromstring((tmp_path / "one.svg").read_text(encoding="utf-8")).get("aria-label") == "time of A step on one"
    )
    for name, words in (("both.svg", "one --device"), ("one.png", "writes .html, .svg")):
        with pytest.raises(SpecError, match=words):
            write(tmp_path / name, "A step", {}, pictures)
