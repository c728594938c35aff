"""`estimate_script`: a file is loaded without data, with what lies beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import kernelcast.torch
import pytest
import torch
from kernelcast.features.errors import SpecError
from kernelcast.models.predict.predictor import ArtifactPredictor


def test_a_model_too_large_for_this_machine_is_built_without_weights(
    tmp_path: Path, predictor: ArtifactPredictor
) -> None:
    (tmp_path / "layers_beside.py").write_text("WIDTH = 65536\n")
    path = tmp_path / "large.py"
    path.write_text(
        "import torch\nfrom layers_beside import WIDTH\n"
        "model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(32))).half()\n"
        "def forward():\n    with torch.no_grad():\n        return model(torch.zeros(1, WIDTH, dtype=torch.float16))\n"
    )
    run = kernelcast.torch.estimate_script(path, "forward", ["h200"], model=predictor)
    assert run.memory.weights_b == 32 * 65536**2 * 2
    assert run.flops == 32 * 65536**2 * 2
    assert run.totals["nvidia-h200-sxm-141gb"].fits is False
    assert str(tmp_path) not in sys.path
    # Nothing that was patched stays so.
    assert torch.nn.Linear(2, 2).double().weight.sum().item() != 0


def test_a_script_may_change_the_directory(
    tmp_path: Path, predictor: ArtifactPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "moves.py").write_text(
        "import os, torch\nos.chdir('/')\n\n\ndef step():\n    torch.ones(4, 4) @ torch.ones(4, 4)\n"
    )
    run = kernelcast.torch.estimate_script(Path("moves.py"), "step", ["h100-sxm"], model=predictor)
    assert run.totals["nvidia-h100-sxm-80gb"].latency_s.value > 0


def test_a_copied_layer_warns_of_nothing(
    predictor: ArtifactPredictor, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = tmp_path / "copied.py"
    path.write_text(
        "import copy\nimport torch\nlayer = copy.deepcopy(torch.nn.Linear(4, 4))\ndef step():\n    layer(torch.ones(2, 4))\n"
    )
    kernelcast.torch.estimate_script(path, "step", ["h100-sxm"], model=predictor)
    assert not [warning for warning in recwarn if "FakeTensor" in str(warning.message)]


def test_a_file_that_ends_itself_says_what_to_do(tmp_path: Path, predictor: ArtifactPredictor) -> None:
    path = tmp_path / "ends.py"
    for text, said in (
        ("import sys\nsys.exit('needs a GPU')\n", r"line 2: SystemExit: needs a GPU; .* no GPU is needed"),
        ("import torch\nrun = torch.ops.nobody.knows\n", "line 2: AttributeError: .* register_fake"),
        ("import torch\nassert torch.cuda.is_available()\n", "line 2: AssertionError: ; .* none is needed"),
    ):
        path.write_text(text)
        with pytest.raises(SpecError, match=said):
            kernelcast.torch.estimate_script(path, "step", ["h100-sxm"], model=predictor)
