"""`kernelcast estimate FILE.py:FUNCTION`: the program recorded without data, or one sentence that says why not."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

TRAIN = """
import torch
from torch import nn

device = "cuda"
model = nn.Sequential(nn.Linear(256, 4096), nn.GELU(), nn.Linear(4096, 256)).to(device).bfloat16()
optimizer = torch.optim.AdamW(model.parameters())
print("a script may talk")


def step():
    x = torch.randn(512, 256, device=device, dtype=torch.bfloat16)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def by_value():
    return model(torch.zeros(4, 256, dtype=torch.bfloat16)).sum().item() > 0


def broken():
    raise ValueError("no data here")


def for_batch(batch, size=4):
    return batch


def nothing():
    pass


if __name__ == "__main__":
    raise SystemExit("not run")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def test_a_person_reads_totals_side_by_side_and_where_they_go(run, fake, script):
    done = run("estimate", f"{script}:step", "--device", "h100-sxm", "--device", "rtx-4090", "--batch", "512")
    assert done.code == 0
    for words in ("NVIDIA H100 SXM5 80 GB", "RTX 4090", "samples/s", "peak memory", "optimiser state", "optimizer",
                  "Sequential.*", "aten.mm", "fits into 24.0 GB"):  # fmt: skip
        assert words in done.out
    assert "a script may talk" not in done.out
    assert "a script may talk" in done.err


def test_a_program_reads_json_and_a_page_is_written(run, fake, script, tmp_path):
    page = tmp_path / "report.html"
    done = run("estimate", f"{script}:step", "--device", "h100-sxm", "--out", page, "--json")
    answer = json.loads(done.out)
    (total,) = answer["totals"].values()
    assert total["latency_s"]["lower"] < total["latency_s"]["value"] < total["latency_s"]["upper"]
    assert answer["flops"] == 2 * 512 * 256 * 4096 * 5
    assert answer["memory"]["weights_b"] == 2 * (2 * 256 * 4096 + 256 + 4096)
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("{script}:by_value", "line 20, needs the values of a tensor"),
        ("{script}:broken", "broken of {script} failed at line 24: ValueError: no data here"),
        ("{script}:for_batch", "for_batch of {script} needs arguments (batch)"),
        ("{script}:missing", "has no function missing; its functions: step, by_value, broken, for_batch, nothing"),
        ("{script}:nothing", "nothing of {script} ran no operator of PyTorch; let it run one step"),
        ("{folder}/none.py:step", "there is no file {folder}/none.py"),
        ("{folder}/bad.py:step", "bad.py cannot be loaded at line 2: ZeroDivisionError"),
        ("{script}", "give FILE.py:FUNCTION, such as train.py:step"),
        ("{script}:", "give FILE.py:FUNCTION, such as train.py:step"),
        ("{script}:Model.step", "give FILE.py:FUNCTION, such as train.py:step"),
    ],
)
def test_what_cannot_be_estimated_is_one_sentence(run, fake, script, program, words):
    (script.parent / "bad.py").write_text("import torch\n1 / 0\n")
    names = {"script": script, "folder": script.parent}
    done = run("estimate", program.format(**names), "--device", "h100-sxm")
    assert words.format(**names) in done.error


def test_shapes_that_do_not_match_are_one_line(script):
    """Of a process of its own: the trace that torch logs goes to the stream that it took when it was imported."""
    wrong = {
        "torch.nn.Linear(8, 4)(torch.randn(3, 5))": "RuntimeError: a and b must have same reduction dim, but got",
        "torch.randn(3, 4) + torch.randn(5)": "RuntimeError: Attempting to broadcast a dimension of length 5",
    }
    paths = [script.with_name(f"wrong{i}.py") for i in range(len(wrong))]
    for path, line in zip(paths, wrong, strict=True):
        path.write_text(f"import torch\n\ndef layer():\n    return {line}\n\ndef step():\n    return layer()\n")
    words = [["estimate", f"{path}:step", "--device", "h100-sxm"] for path in paths]
    code = f"from kernelcast.cli import main\nprint([main(each) for each in {words!r}])"
    done = subprocess.run([sys.executable, "-P", "-c", code], check=False, capture_output=True, text=True)
    assert done.stdout.split() == ["[2,", "2]"]
    errors = done.stderr.splitlines()
    for path, message, error in zip(paths, wrong.values(), errors, strict=True):
        assert error.startswith(f"error: step of {path} failed at line 4: {message}")


def test_what_a_run_costs_is_in_the_json(run, fake, script):
    options = ("--device", "h100-sxm", "--device", "rtx-4090", "--price", "h100-sxm=3.6", "--json")
    totals = json.loads(run("estimate", f"{script}:step", *options).out)["totals"]
    priced, other = totals["nvidia-h100-sxm-80gb"], totals["nvidia-rtx-4090"]
    assert priced["price_per_hour"] == 3.6
    assert priced["cost"]["value"] == pytest.approx(priced["latency_s"]["value"] * 3.6 / 3600)
    assert "cost" not in other


def test_a_device_is_needed(run, fake, script):
    assert "name a device" in run("estimate", f"{script}:step").error


def test_without_torch_it_says_what_to_install(run, fake, script, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install torch" in run("estimate", f"{script}:step", "--device", "h100-sxm").error


def test_what_goes_with_a_configuration_is_refused_with_a_program(run, fake, script):
    done = run("estimate", f"{script}:step", "--device", "h100-sxm", "--prefill", "128", "--weights", "fp8")
    assert done.code == 2
    assert "only a model from its configuration takes --prefill, --weights" in done.error
    done = run("estimate", "gpt2", "--prefill", "128", "--device", "h100-sxm", "--out", "answer.html")
    assert done.code == 2
    assert "--out goes with a program" in done.error


def test_a_captured_program_and_a_picture_of_its_time(run, fake, script, tmp_path):
    kept, page, bare = tmp_path / "program.json", tmp_path / "time.html", tmp_path / "time.svg"
    options = ("--device", "h100-sxm", "--batch", "512", "--price", "h100-sxm=3.6")
    first = run("estimate", f"{script}:step", *options, "--capture", kept, "--flame", page)
    assert first.code == 0
    assert "cost/million samples" in first.out
    again = run("estimate", kept, *options, "--flame", bare)
    assert again.out.splitlines()[1:] == first.out.splitlines()[1:]
    assert "› backward ›" in page.read_text()
    assert ET.fromstring(bare.read_text()).get("aria-label") == "time of program.json on NVIDIA H100 SXM5 80 GB"
    assert "--bind goes with an ONNX file" in run("estimate", kept, *options, "--bind", "n=3").err
    assert "says its own sizes" in run("estimate", kept, *options, "--prefill", "3").err
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"version": 7}))
    assert "version 7" in run("estimate", kept, *options).err


def test_without_torch_a_captured_program_is_priced(run, script, tmp_path):
    kept = tmp_path / "program.json"
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from kernelcast.cli import main\n"
        f"sys.argv = ['kernelcast', 'estimate', {str(kept)!r}, '--device', 'h100-sxm']\nmain()"
    )
    assert run("estimate", f"{script}:step", "--device", "h100-sxm", "--capture", kept).code == 0
    done = subprocess.run([sys.executable, "-P", "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "aten.mm" in done.stdout


def test_a_program_under_a_limit_and_its_footprint(run, script):
    def total(*options):
        done = run("estimate", f"{script}:step", "--device", "h100-sxm", *options, "--json")
        assert done.code == 0, done.err
        (item,) = json.loads(done.out)["totals"].values()
        return item

    usual, slow = total(), total("--clock-hz", "4e8", "--grid", "380", "--steps", "1000")
    assert slow["run"]["energy_j"]["value"] == pytest.approx(1000 * slow["energy_j"]["value"])
    assert slow["run"]["footprint"]["carbon_g"]["value"] == pytest.approx(1000 * slow["footprint"]["carbon_g"]["value"])
    assert slow["run"]["cost"] is None
    assert slow["kernels_s"] > 1.2 * usual["kernels_s"]
    carbon_g = slow["footprint"]["carbon_g"]["value"]
    assert carbon_g == pytest.approx(380 * slow["energy_j"]["value"] / 3.6e6)
    assert "footprint" not in usual
    done = run("estimate", f"{script}:step", "--device", "h100-sxm", "--electricity-price", "0.3")
    assert "a run on nvidia-h100-sxm-80gb: " in done.out
    assert "for electricity" in done.out
    assert (
        "above its own limit"
        in run("estimate", f"{script}:step", "--device", "h100-sxm", "--power-limit-w", "900").error
    )
