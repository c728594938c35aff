"""`kernelcast predict FILE.mlir`: text in, totals, where time goes and a picture of it out."""

from __future__ import annotations

import io
import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from kernelcast.commands.predict.flame_graph import flame, picture
from kernelcast.commands.predict.predict_mlir import is_mlir, ranges
from kernelcast.models.predict.prediction import Interval
from kernelcast.workloads.mlir.prediction import GroupCost, ModulePrediction

MLP = """\
func.func @main(%x: tensor<64x1024xf32>, %w: tensor<1024x512xf32>) -> tensor<64x512xf32> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<64x1024xf32>, tensor<1024x512xf32>) -> tensor<64x512xf32>
  %z = stablehlo.tanh %y : tensor<64x512xf32>
  return %z : tensor<64x512xf32>
}
"""
DYNAMIC = MLP.replace("64x", "?x")
TWO = MLP.replace("@main", "@first") + MLP.replace("@main", "@second")
CPU = "amd-epyc-9005-vm-2c"


@pytest.fixture
def written(tmp_path):
    def write(text: str | bytes = MLP, name: str = "model.mlir") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_a_person_reads_totals_where_time_goes_and_how_it_was_read(run, fake, written):
    done = run("predict", written(), "--device", "h100-sxm")
    assert done.code == 0
    assert done.err == ""
    for word in (
        "model.mlir: main on NVIDIA H100 SXM5 80 GB", "latency", "power        118 W", "energy",
        "90 % of cases", "read by", "FLOP/B",
        "arguments and results", "% of peak", "no run takes less than", "compiler xla", "composition", "waiting for the host",
        "dot_general, tanh", "≈gemm[", "≈ 1: the product alone", "█", "contraction",
    ):  # fmt: skip
        assert word in done.out, word


def test_a_program_reads_json(run, fake, written):
    done = run(
        "predict", written(), "--device", CPU, "--compiler", "iree", "--threads", "1", "--coverage", "0.8", "--json"
    )
    result = json.loads(done.out)
    (answer,) = result["answers"]
    assert result["functions"] == ["main"]
    assert answer["device"] == CPU
    assert (answer["compiler"], answer["threads"], answer["coverage"]) == ("iree", 1, 0.8)
    assert answer["groups"][0]["title"]


def test_several_devices_are_compared(run, fake, written):
    done = run("predict", written(), "--device", CPU, "--device", "h100-sxm")
    assert done.out.count("model.mlir: main on") == 2
    comparison = done.out[done.out.index("of the first") :]
    assert comparison.index("nvidia-h100-sxm-80gb") < comparison.index(CPU)
    assert "1.00 ×" in comparison or "1 ×" in comparison


def test_stdin_and_files_of_any_name(run, fake, written, monkeypatch):
    path = written(MLP, "text.of.ops")
    from_file = json.loads(run("predict", path, "--device", "h100", "--json").out)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MLP.encode())))
    assert json.loads(run("predict", "-", "--device", "h100", "--json").out) == from_file


def test_a_closed_stdin_is_one_sentence(run, fake, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert "cannot read stdin" in run("predict", "-", "--device", "h100").error


@pytest.mark.parametrize(
    ("word", "is_text"),
    [("-", True), ("model.mlir", True), ("X.MLIR", True), ("k.ttir", True), ("m.stablehlo", True), ("./m", True),
     ("m.mlirbc", True), ("gemm", False), ("gem", False)],
)  # fmt: skip
def test_what_is_a_text_and_what_a_family(word, is_text):
    assert is_mlir(word) is is_text


def test_a_file_called_like_a_family_is_not_in_its_way(run, fake, written, monkeypatch, tmp_path):
    written(MLP, "gemm")
    monkeypatch.chdir(tmp_path)
    assert run("predict", "gemm", "m=1", "n=1", "k=1", "dtype=fp32", "--device", "h100").code == 0


def test_sizes_are_bound(run, fake, written):
    path = written(DYNAMIC)
    error = run("predict", path, "--device", "h100").error
    assert "dim0" in error
    assert "--bind dim0=128" in error
    small, large = (json.loads(run("predict", path, "--device", "h100", "--bind", f"dim0={size}", "--json").out)
                    for size in (64, 4096))  # fmt: skip
    assert small["answers"][0]["flops"] < large["answers"][0]["flops"]


def test_functions_are_listed_where_there_are_several(run, fake, written):
    path = written(TWO)
    error = run("predict", path, "--device", "h100").error
    assert "first" in error
    assert "second" in error
    assert "on NVIDIA" in run("predict", path, "--device", "h100", "--function", "second").out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ("gemm", "m=1", "n=1", "k=1", "dtype=fp32", "--device", "h100", "--function", "f"),
            "--function goes with MLIR",
        ),
        (("gemm", "m=1", "--device", "h100", "--bind", "dim0=1", "--all"), "--bind, --all go with MLIR"),
        (("gemm", "m=1", "n=1", "k=1", "dtype=fp32", "--device", "h100", "--threads", "0"), "--threads goes with MLIR"),
        (("gemm", "m=1", "n=1", "k=1", "dtype=fp32", "--device", "h100", "--device", "l40s"), "on one device"),
        (("--table", "x.parquet", "--out", "y.parquet", "--flame", "x.html"), "--flame goes with MLIR"),
        (("/nowhere.mlir", "--device", "h100"), "cannot read /nowhere.mlir: No such file"),
        (("/tmp/", "--device", "h100"), "cannot read /tmp: Is a directory"),
        ((".", "--device", "h100"), "cannot read .: Is a directory"),
        (("no\x1b[31m.mlir", "--device", "h100"), "cannot read no�[31m.mlir: No such file"),
        (("/dev/zero", "--device", "h100"), "longer than 4,194,304 bytes; print weights short"),
        (("{file}",), "name a device"),
        (("{file}", "--device", "h900"), "no device 'h900'"),
        (("{file}", "m=4", "--device", "h100"), "'m=4' goes with a kernel family"),
        (("{file}", "--device", "h100", "--out", "x.csv"), "are options of --table, not of MLIR"),
        (("{file}", "--device", "h100", "--bind", "dim0"), "bind takes name=size"),
        (("{file}", "--device", "h100", "--bind", "dim0=many"), "must be a whole number, got 'many'"),
        (("{file}", "--device", "h100", "--compiler", "gcc"), "no compiler 'gcc'"),
        (("{file}", "--device", "h100", "--threads", "2"), "is no CPU"),
        (("{file}", "--device", "h100", "--coverage", "2"), "coverage must be between"),
        (("{file}", "--device", "h100", "--flame", "x.png"), "--flame writes .html, .svg"),
        (("{file}", "--device", "h100", "--device", "l40s", "--flame", "x.svg"), "one --device"),
        (("{file}", "--device", "h100", "--flame", "/dev/null/x.html"), "cannot write"),
    ],
)
def test_what_cannot_be_predicted_is_one_sentence(run, fake, written, args, said):
    path = written()
    assert said in run("predict", *(path if arg == "{file}" else arg for arg in args)).error


@pytest.mark.parametrize("content", [b"ML\xefR\x01", b"\xff\xfe", b"", b"// nothing", b"(" * 1000])
def test_files_that_are_no_text_are_one_sentence(run, fake, written, content):
    assert "MLIR" in run("predict", written(content), "--device", "h100").error


def test_a_text_that_brings_native_parsers_down_does_not_take_the_command_with_it(run, fake, written):
    # A chain of signs is no nesting of brackets, yet parsers use their stack for each.
    signs = "-" * 60_000
    hostile = MLP.replace("  return", f'  "a.b"() {{m = affine_map<(d0) -> ({signs}d0)>}} : () -> ()\n  return')
    done = run("predict", written(hostile), "--device", "h100")
    assert done.code in (0, 2)
    assert "Traceback" not in done.err


def test_what_a_terminal_would_obey_is_not_shown(run, fake, written):
    strange = MLP.replace("%z = stablehlo.tanh %y : tensor<64x512xf32>",
                          '%z = "mine.\x1b[31mswirl"(%y) : (tensor<64x512xf32>) -> tensor<64x512xf32>')  # fmt: skip
    done = run("predict", written(strange), "--device", "h100")
    assert "\x1b" not in done.out + done.err


def test_not_understood_operations_are_listed(run, fake, written):
    strange = MLP.replace("%z = stablehlo.tanh %y : tensor<64x512xf32>",
                          '%z = "mine.swirl"(%y) : (tensor<64x512xf32>) -> tensor<64x512xf32>')  # fmt: skip
    done = run("predict", written(strange), "--device", "h100")
    assert "unknown   mine.swirl" in done.out
    assert "not understood: a guess" in done.out


def group(kind: str, share: float, title: str = "kernel", lines: tuple[int, ...] = ()) -> GroupCost:
    return GroupCost(title, kind, ("a.b", "c.d"), lines, 1.0, share, None, share, 1.0, 1.0, "dram", "", "", True,
                     (0.75, 0.25), tuple(1 / len(lines) for _ in lines))  # fmt: skip


def test_the_terminal_picture_is_as_wide_as_time(run):
    kernels, numbers, kinds, legend = (
        line.plain
        for line in flame([group("contraction", 0.5), group("softmax", 0.25), group("contraction", 0.25)], 90)
    )
    assert len(kernels) == len(kinds) == 90
    assert kinds.count("█") == 60
    assert kinds.count("▓") in (19, 20)
    assert kernels.startswith("kernels   █")
    assert [numbers.index(number) for number in "123"] == [10, 50, 70]
    # Without colour, two kernels of one kind beside each other are told apart by an edge.
    assert "▏" in kernels
    assert "contraction 75.0 %" in legend
    assert "softmax 25.0 %" in legend


def test_the_terminal_picture_of_very_many_or_no_kernels_is_no_wider():
    lines = flame([group("elementwise", 1 / 5000) for _ in range(5000)], 80)
    assert all(len(line.plain) <= 80 for line in lines[:3])
    assert flame([], 80) == []
    assert flame([group("view", 0.0)], 80) == []


def test_lines_are_drawn_together():
    assert ranges((4, 3, 5, 9)) == "3–5, 9"
    assert ranges(()) == ""
    assert ranges(range(0, 20, 2)) == "0, 2 …"


@pytest.mark.parametrize("name", ["flame.html", "flame.svg"])
def test_the_picture_needs_nothing_else(run, fake, written, tmp_path, name):
    path = tmp_path / name
    assert run("predict", written(), "--device", "h100-sxm", "--flame", path).code == 0
    text = path.read_text(encoding="utf-8")
    assert "<script" not in text
    assert not re.search(r"(?:src|href)=", text)
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    assert "prefers-color-scheme: dark" in text
    (svg,) = re.findall(r"<svg.*</svg>", text, re.DOTALL)
    root = ET.fromstring(svg)
    boxes = root.findall("{*}g/{*}rect")
    rows: dict[str, float] = {}
    for box in boxes:
        rows[box.get("y", "")] = rows.get(box.get("y", ""), 0.0) + float(box.get("width", "0"))
    assert len(rows) == 4
    assert all(0.98 * 1120 <= width <= 1120 for width in rows.values())
    titles = [title.text or "" for title in root.findall("{*}g/{*}title")]
    assert titles[0].startswith("main on NVIDIA H100 SXM5 80 GB")
    assert any("predicted as gemm" in title for title in titles)


def test_a_page_holds_every_device_and_words_of_the_text_are_no_markup(run, fake, written, tmp_path):
    strange = MLP.replace("%z = stablehlo.tanh %y : tensor<64x512xf32>",
                          '%z = "mine.<b>&"(%y) : (tensor<64x512xf32>) -> tensor<64x512xf32>')  # fmt: skip
    path = tmp_path / "flame.html"
    run("predict", written(strange), "--device", "h100-sxm", "--device", CPU, "--flame", path)
    text = path.read_text(encoding="utf-8")
    assert text.count("<svg") == 2
    assert "mine.<b>" not in text


@pytest.mark.parametrize("name", ["flame.html", "flame.svg"])
def test_a_file_whose_name_is_no_unicode_is_drawn(run, fake, written, tmp_path, name):
    path = tmp_path / name
    done = run("predict", written(MLP, "caf\udce9.mlir"), "--device", "h100", "--flame", path)
    assert done.code == 0
    assert "\udce9" not in done.out
    assert path.read_text(encoding="utf-8")


def test_a_picture_is_xml_whatever_the_function_is_called(tmp_path):
    strange = ModulePrediction(
        function="a\x1b<b", reader="tolerant", device="h100", compiler="", threads=None,
        latency_s=Interval(1.0, 0.5, 2.0), power_w=None, energy_j=None, coverage=0.9, method="composition", in_domain=True,
        notes=(), bound_s=0.1, breakdown={}, flops=1.0, bytes=1.0, footprint_b=1.0, intensity=1.0, utilization=None,
        groups=(group("softmax", 1.0),), not_understood=(),
    )  # fmt: skip
    assert ET.fromstring(picture(strange, "a device")).get("aria-label") == "time of a�<b on a device"


def test_a_narrow_page_scrolls_the_picture_rather_than_make_it_unreadable(run, fake, written, tmp_path):
    page, bare = tmp_path / "flame.html", tmp_path / "flame.svg"
    for path in (page, bare):
        run("predict", written(), "--device", "h100", "--flame", path)
    assert re.search(r'<div class="frame"><svg.*</svg>\s*</div>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert ".frame { overflow-x: auto; }" in page.read_text(encoding="utf-8")
    assert "min-width" not in bare.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["reduce.ptx", "reduce.cu"])
def test_sources_of_kernels_say_what_is_read(run, written, name):
    for word in (name, str(written(".version 8.0", name))):
        done = run("predict", word, "--device", "l40s")
        assert done.code == 2
        assert "Triton IR (.ttir)" in done.err
