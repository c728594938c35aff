"""Device files that are hostile, mistaken or contradict themselves: one line that names the file, the figure and what to do."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from kernelcast.features.device import load_device_file, parse_device
from kernelcast.features.devices.device_file import MAX_FILE_B
from kernelcast.features.errors import SpecError

MINE = """
name: my-gpu
kind: gpu
sources: {sheet: "my data sheet"}
facts:
  compute_units: {value: 10, source: sheet}
  boost_clock_hz: {value: 1.0e+9, source: sheet}
  memory_bandwidth_b_per_s: {value: 1.0e+11, source: sheet}
  memory_b: {value: 8.0e+9, source: sheet}
  tdp_w: {value: 100, source: sheet}
  l2_b: {value: 1000000, source: sheet}
peak_flops_per_s:
  vector: {fp32: {value: 1.28e+12, source: sheet}}
"""
_ANCHORS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)
)


def refusal(text: str) -> SpecError:
    with pytest.raises(SpecError) as refused:
        parse_device(text, origin="mine.yaml")
    message = str(refused.value)
    assert message.startswith("mine.yaml")
    assert "\n" not in message
    assert len(message) < 500
    return refused.value


def changed(old: str, new: str) -> str:
    assert old in MINE
    return MINE.replace(old, new, 1)


def fact(line: str) -> str:
    return changed("facts:\n", f"facts:\n  {line}\n")


def test_the_file_that_the_others_are_made_of_is_read() -> None:
    assert parse_device(MINE, origin="mine.yaml").required("compute_units") == 10


@pytest.mark.parametrize(
    "value",
    ["-1", "0", ".nan", ".inf", "-.inf", "1e400", "1e308", "true", "[1]", "{a: 1}", "many", "null", "!!binary aGk=",
     "2024-01-01", "9" * 40, "9" * 5000],
)  # fmt: skip
def test_no_number_is_refused(value: str) -> None:
    message = str(refusal(changed("value: 10,", f"value: {value},")))
    assert "compute_units must be a positive number" in message or "not valid YAML" in message


@pytest.mark.parametrize(
    ("old", "new", "figure"),
    [
        ("1.0e+11", "100", "memory_bandwidth_b_per_s"),
        ("1.0e+9", "1000", "boost_clock_hz"),
        ("1.0e+9", "1.0", "boost_clock_hz"),
        ("8.0e+9", "8", "memory_b"),
        ("1000000", "50", "l2_b"),
        ("1.28e+12", "1.28", "fp32"),
        ("value: 10,", "value: 1.0e-20,", "compute_units"),
        ("value: 100,", "value: 1.0e+8,", "tdp_w"),
    ],
)
def test_a_mistaken_unit_is_refused(old: str, new: str, figure: str) -> None:
    error = refusal(changed(old, new))
    assert error.field == figure
    assert "SI base units" in str(error)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (changed("1000000", "9.0e+9"), "facts.l2_b is 9e+09, which cannot be above facts.memory_b, 8e+09"),
        (fact("l3_b: {value: 9.0e+9, source: s}"), "facts.l3_b is 9e+09, which cannot be above facts.memory_b"),
        (fact("l2_bandwidth_b_per_s: {value: 1.0e+10, source: s}"), "cannot be above facts.l2_bandwidth_b_per_s"),
        (fact("l3_bandwidth_b_per_s: {value: 1.0e+10, source: s}"), "cannot be above facts.l3_bandwidth_b_per_s"),
        (fact("base_clock_hz: {value: 5.0e+9, source: s}"), "cannot be above facts.boost_clock_hz"),
        (fact("idle_power_w: {value: 500, source: s}"), "cannot be above facts.tdp_w, 100; correct the one that is wrong"),
        (changed("1.28e+12", "1.28e+15"), "FLOP per clock of each of the 10 compute units"),
        (changed("  vector:", "  matrix: {fp32: {value: 1.0e+11, source: s}}\n  vector:"), "peak_flops_per_s.matrix.fp32"),
        (changed("sheet}}", "sheet}, fp64: {value: 5.0e+12, source: s}}"), "peak_flops_per_s.vector.fp64 is 5e+12"),
        (changed("value: 10,", "value: 10.5,"), "it is a whole number"),
        (MINE + "measured: {vector_fp32_flops_per_s: {value: 3.9e+12, source: s}}", "peak_flops_per_s.vector.fp32, 1.28e+12"),
        (MINE + "measured: {vector_fp32_torch_flops_per_s: {value: 3.9e+12, source: s}}", "vector_fp32_torch_flops_per_s is"),
        (MINE + "measured: {bandwidth_dram_b_per_s: {value: 3.9e+11, source: s}}", "facts.memory_bandwidth_b_per_s, 1e+11"),
        (MINE + "measured: {power_compute_max_w: {value: 390, source: s}}", "cannot be above facts.tdp_w"),
    ],
)  # fmt: skip
def test_contradictions_are_refused(text: str, says: str) -> None:
    assert says in str(refusal(text))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be a mapping"),
        ("name: a\nkind: gpu\nfacts:\npeak_flops_per_s:\n", "lacks the fact compute_units"),
        (MINE + "name: other\n", "the key 'name' is there twice"),
        (
            changed("  l2_b:", "  compute_units: {value: 99, source: s}\n  l2_b:"),
            "the key 'compute_units' is there twice",
        ),
        (MINE + "twin: my-gpu\n", "unknown key 'twin' in the file; it has: name, title"),
        (MINE + "measurd: {}\n", "unknown key 'measurd'"),
        (
            changed("  vector:", "  tensor: {}\n  vector:"),
            "unknown key 'tensor' in peak_flops_per_s; it has: matrix, vector",
        ),
        (MINE + "aliases: h100\n", "aliases must be a list of names, got 'h100'"),
        (MINE + "aliases: 7\n", "aliases must be a list of names, got 7"),
        (MINE + "aliases: {a: b}\n", "aliases must be a list of names"),
        (MINE + 'aliases: [""]\n', "aliases must be a list of names"),
        (MINE + "aliases: [1]\n", "aliases must be text, got int"),
        (changed("my-gpu", "7"), "name must be text, got int"),
        (changed("my-gpu", "../../x"), "it is a name such as"),
        (changed("kind: gpu", "kind: [gpu]"), "it is one of gpu, cpu"),
        (changed('{sheet: "my data sheet"}', "[a]"), "sources must be a mapping"),
        (changed("{value: 10, source: sheet}", "{value: 10, source: [a]}"), "has no source"),
        (changed("  l2_b:", "  5: {value: 1, source: s}\n  l2_b:"), "5 in facts is no name of a figure"),
        (MINE + "compute_capability: [9, 0]\n", "compute_capability must be text, got list"),
        (MINE + 'compute_capability: "\\e[31m"\n', "can be printed"),
        (MINE + 'title: "\\e[31mred"\n', "can be printed"),
        (MINE + f"---\n{MINE}", "not valid YAML: but found another document"),
        ("!!python/object/apply:os.system [echo]\n", "not valid YAML: could not determine a constructor"),
        (MINE + 'title: "\x00"\n', "control characters are not allowed"),
        ("x: " + "z" * 1000 + "\n" + MINE, "unknown key 'x'"),
    ],
)
def test_what_is_no_device_file_says_what_is_wrong(text: str, says: str) -> None:
    assert says in str(refusal(text))


@pytest.mark.parametrize(
    "text",
    [
        _ANCHORS + MINE,
        _ANCHORS + changed("{value: 10, source: sheet}", "{value: 10, source: *a9}"),
        _ANCHORS + MINE + "title: *a9\n",
        "name: &a [*a]\nkind: gpu\nfacts: {}\npeak_flops_per_s: {}\n",
        changed("facts:\n", "facts: &f\n  self: *f\n"),
    ],
)
def test_bombs_are_refused_at_once(text: str) -> None:
    began = time.monotonic()
    assert "YAML anchors (&, *) inside others" in str(refusal(text))
    assert time.monotonic() - began < 1.0


def test_an_anchor_of_plain_values_is_read() -> None:
    text = changed("{value: 10, source: sheet}", "&ten {value: 10, source: sheet}") + "measured: {ratio: *ten}\n"
    assert parse_device(text, origin="mine.yaml").measured["ratio"].value == 10
    many = MINE + "measured:\n  a: &a {value: 1, source: s}\n" + "".join(f"  b{i}: *a\n" for i in range(101))
    assert "more than 100 uses" in str(refusal(many))


# 60,000 levels overflow the stack of YAML's C parser, which would end the process.
@pytest.mark.parametrize("text", ["a: " + "[" * 100_000, "- " * 100_000, "a: " + "{a: " * 60_000, "? " * 100_000])
def test_deep_nesting_is_refused(text: str) -> None:
    assert "nested more than 8 levels deep" in str(refusal(text))


@pytest.mark.parametrize("raw", [b"\xff\xfe\x00", MINE.encode("utf-16"), MINE.encode() + b"title: \xe9\n"])
def test_other_encodings_and_binary_files_are_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x.yaml").write_bytes(raw)
    with pytest.raises(SpecError, match="is not UTF-8; save it as UTF-8 text"):
        load_device_file(tmp_path / "x.yaml")


def test_files_that_are_none_are_refused_without_reading_them(tmp_path: Path) -> None:
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(3 << 30)
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    os.mkfifo(tmp_path / "pipe.yaml")
    for name, says in (
        ("large.yaml", f"is longer than {MAX_FILE_B} bytes"),
        ("loop.yaml", "Too many levels of symbolic links; check the path and its permissions"),
        ("pipe.yaml", "is no regular file"),
        (".", "is no regular file"),
        ("absent.yaml", "No such file or directory"),
    ):
        with pytest.raises(SpecError, match=says) as refused:
            load_device_file(tmp_path / name)
        assert refused.value.field == "device_file"


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    (tmp_path / "x.yaml").write_text(MINE)
    (tmp_path / "x.yaml").chmod(0)
    with pytest.raises(SpecError, match="Permission denied; check the path and its permissions"):
        load_device_file(tmp_path / "x.yaml")
