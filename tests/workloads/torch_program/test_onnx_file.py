"""ONNX files as programs: the same kernels as PyTorch's own, memory, dynamic sizes, and what is refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kernelcast.features.errors import SpecError
from kernelcast.models.predict.predictor import ArtifactPredictor
from kernelcast.workloads.torch_program.answers import answer
from kernelcast.workloads.torch_program.kernels.table import kernels_of
from kernelcast.workloads.torch_program.onnx_file import read_onnx
from kernelcast.workloads.torch_program.run import Run
from torch import nn

onnx = pytest.importorskip("onnx", reason="ONNX files are read by the package onnx, which is missing")
H200 = "nvidia-h200-sxm-141gb"


def written(
    path: Path, nodes: list[Any], inputs: dict[str, list[Any]], outputs: dict[str, list[Any]], weights: dict[str, list[int]],
    kinds: str = "",
) -> Path:  # fmt: skip
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    types = {name: getattr(onnx.TensorProto, word) for name, word in (pair.split(":") for pair in kinds.split())}
    tensors = [helper.make_tensor(name, kind, dims, bytes(4 * prod(dims)), raw=True) for name, dims in weights.items()]
    ends = (
        [helper.make_tensor_value_info(name, types.get(name, kind), dims) for name, dims in some.items()]
        for some in (inputs, outputs)
    )
    shapes = [onnx.numpy_helper.from_array(np.array([2, 16, 4, 16]), "shape")]
    graph = helper.make_graph(nodes, "net", *ends, [*tensors, *shapes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def node(kind: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> Any:
    return onnx.helper.make_node(kind, inputs.split(), outputs.split(), name=name, **attributes)


@pytest.fixture
def image_net(tmp_path: Path) -> Path:
    nodes = [
        node("Conv", "x w1 b1", "c1", "/net/conv1/Conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Relu", "c1", "r1", "/net/relu/Relu"),
        node("GlobalAveragePool", "r1", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f w2 b2", "logits", "/net/fc/Gemm", transB=1),
        node("Softmax", "logits", "y", axis=-1),
    ]
    weights = {"w1": [64, 3, 3, 3], "b1": [64], "w2": [1000, 64], "b2": [1000]}
    return written(tmp_path / "net.onnx", nodes, {"x": ["batch", 3, 224, 224]}, {"y": ["batch", 1000]}, weights)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 64, 3, padding=1), nn.Linear(64, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.fc(torch.relu(self.conv(x)).mean((2, 3))), -1)


def test_a_file_costs_what_the_same_program_costs(
    image_net: Path, predictor: ArtifactPredictor, recorded: Callable[..., Run]
) -> None:
    program = read_onnx(image_net, {"batch": 8})
    net, x = Net(), torch.randn(8, 3, 224, 224)

    def step() -> None:
        with torch.no_grad():
            net(x)

    run = recorded(step)
    total = answer(predictor, program, [predictor.devices.get(H200)]).totals[H200]
    assert total.kernels_s == pytest.approx(run.totals[H200].kernels_s)
    assert program.flops == run.flops
    assert [call.operation.module for call in program.calls][:2] == ["net.conv1", "net.relu"]
    # Weights, and at the activation its input and result.
    assert program.memory.weights_b == pytest.approx(4 * (64 * 27 + 64 + 64000 + 1000), rel=1e-3)
    assert program.memory.activations_b == 2 * 4 * 8 * 64 * 224 * 224


def test_transformers_products_and_norms_are_kernels_of_families(tmp_path: Path) -> None:
    nodes = [
        node("LayerNormalization", "x g b", "n", axis=-1),
        node("MatMul", "n w", "q"),
        node("Reshape", "q shape", "heads"),
        node("Transpose", "heads", "t", perm=[0, 2, 1, 3]),
        node("Transpose", "t", "tt", perm=[0, 1, 3, 2]),
        node("MatMul", "t tt", "s"),
        node("Softmax", "s", "p"),
        node("MatMul", "p t", "y"),
    ]
    weights = {"g": [64], "b": [64], "w": [64, 64]}
    program = read_onnx(written(tmp_path / "attention.onnx", nodes, {"x": [2, 16, 64]}, {"y": [2, 4, 16, 16]}, weights))
    by_name = {call.operation.name: call for call in program.calls}
    assert set(by_name) == {"aten.native_layer_norm", "aten.mm", "aten.cat", "aten.bmm", "aten._softmax"}
    assert by_name["aten.native_layer_norm"].operation.arguments == {"normalized_shape": (64,)}
    assert [tensor.shape for tensor in by_name["aten.mm"].operation.inputs] == [(32, 64), (64, 64)]
    assert program.flops == 2 * 32 * 64 * 64 + 2 * 2 * 8 * 16 * 16 * 16
    assert program.views == 1


def test_nodes_without_a_family_are_priced_by_their_bytes(tmp_path: Path, predictor: ArtifactPredictor) -> None:
    path = written(tmp_path / "det.onnx", [node("Det", "x", "y")], {"x": [4096, 256, 256]}, {"y": [4096]}, {})
    total = answer(predictor, read_onnx(path), [predictor.devices.get(H200)]).totals[H200]
    assert total.latency_s is not None
    assert total.latency_s.upper > 5 * total.latency_s.value
    assert any("onnx.Det" in note for note in total.notes)


LAYER = {"x": [16, 4, 32], "w": [1, 256, 32], "r": [1, 256, 64]}
MATRICES, IMAGES = {"a": [128, 64], "b": [64, 96]}, {"a": [2, 16, 8, 8], "b": [32, 16, 3, 3]}
SCALES = {name: list[Any]() for name in ("as", "az", "bs", "bz", "ys", "yz")}
QUANTISED, BYTES = "a as az b bs bz ys yz", "a:UINT8 az:UINT8 b:INT8 bz:INT8 y:INT8 yz:INT8"


@pytest.mark.parametrize(
    ("item", "inputs", "result", "kinds", "kernels"),
    [
        (("LSTM", "x w r"), LAYER, [16, 1, 4, 64], "", "m64 n256 k32, m4 n256 k64"),
        (("GRU", "x w r"), LAYER | {"w": [1, 192, 32], "r": [1, 192, 64]}, [16, 1, 4, 64], "", "m64 n192 k32, m4 n192 k64"),
        (("RNN", "x w r"), LAYER | {"w": [2, 64, 32], "r": [2, 64, 64]}, [16, 2, 4, 64], "", "m64 n64 k32, m4 n64 k64"),
        (("Einsum", "a b", "bij,bjk->bik"), {"a": [8, 16, 32], "b": [8, 32, 4]}, [8, 16, 4], "", "b8 m16 n4 k32"),
        (("Einsum", "a b", "...qd,...kd->...qk"), {"a": [8, 2, 16, 4], "b": [8, 2, 9, 4]}, [8, 2, 16, 9], "", "b16 m16 n9 k4"),
        (("Einsum", "a b", "ij,kj"), {"a": [8, 16], "b": [4, 16]}, [8, 4], "", "m8 n4 k16"),
        (("MatMulInteger", "a b"), MATRICES, [128, 96], "a:UINT8 b:INT8 y:INT32", "int8 m128 n96 k64"),
        (("QLinearMatMul", QUANTISED), MATRICES | SCALES, [128, 96], BYTES, "int8 m128 n96 k64"),
        (("ConvInteger", "a b"), IMAGES, [2, 32, 6, 6], "a:UINT8 b:INT8 y:INT32", "int8 m72 n32 k144"),
        (("QLinearConv", QUANTISED), IMAGES | SCALES, [2, 32, 6, 6], BYTES, "int8 m72 n32 k144"),
    ],
)  # fmt: skip
def test_products_and_recurrences_are_the_kernels_of_pytorchs(
    tmp_path: Path, item: tuple[str, ...], inputs: dict[str, list[Any]], result: list[int], kinds: str, kernels: str
) -> None:
    kind, names, *equation = item
    two_ways = {"direction": "bidirectional"} if result[1:2] == [2] and kind == "RNN" else {}
    named = {"equation": equation[0]} if equation else two_ways
    path = written(tmp_path / "a.onnx", [node(kind, names, "y", **named)], inputs, {"y": result}, {}, kinds)
    (call,) = read_onnx(path).calls
    assert call.count == (2 if two_ways else 1)
    seen = []
    for use in kernels_of(call.operation, "gpu"):
        shape = dict(use.spec.dims)
        words = [use.spec.dtype, *(f"{name[0]}{shape[name]}" for name in ("batch", "m", "n", "k"))]
        seen.append(" ".join(word for word in words if word not in ("fp32", "b1")))
    assert ", ".join(seen) == kernels


@pytest.mark.parametrize(
    ("item", "a", "b"),
    [
        (("MatMul",), [4, 5], [6, 4]),
        (("MatMul",), [2, 4, 5], [3, 5, 4]),
        (("Gemm",), [4, 5], [6, 4]),
        (("Conv",), [1, 3, 8, 8], [4, 2, 3, 3]),
        (("Einsum", "ij,jk->ik"), [4, 5], [6, 4]),
    ],
)
def test_shapes_that_do_not_fit_are_refused(tmp_path: Path, item: tuple[str, ...], a: list[int], b: list[int]) -> None:
    named = {"equation": item[1]} if item[1:] else {}
    path = written(
        tmp_path / "a.onnx", [node(item[0], "a b", "y", "last", **named)], {"a": a, "b": b}, {"y": [4, 4]}, {}
    )
    with pytest.raises(SpecError, match=re.escape(f"{item[0]} (last): the shapes {a} and {b} do not fit")) as raised:
        read_onnx(path)
    assert raised.value.field == "onnx"


def test_what_cannot_be_read_says_what_to_do(image_net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for sizes, words in (
        ({}, "--bind batch=8"),
        ({"bat": 8}, "no dynamic size 'bat'; it has batch"),
        ({"batch": -8}, "at least 1"),
    ):
        with pytest.raises(SpecError, match=words) as raised:
            read_onnx(image_net, sizes)
        assert raised.value.field == "bind"
    with pytest.raises(SpecError, match="cannot read"):
        read_onnx(tmp_path / "none.onnx")
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(SpecError, match=r"\(0 bytes\) has no node"):
        read_onnx(tmp_path / "empty.onnx")
    (tmp_path / "text.onnx").write_text("no protobuf")
    with pytest.raises(SpecError, match="no ONNX file"):
        read_onnx(tmp_path / "text.onnx")
    unknown = onnx.helper.make_node("Mine", ["x"], ["z"], domain="my.ops")
    graph = onnx.helper.make_graph(
        [unknown, node("Relu", "z", "y")], "net", [onnx.helper.make_tensor_value_info("x", 1, [4])],
        [onnx.helper.make_tensor_value_info("y", 1, [4])],
    )  # fmt: skip
    onnx.save(onnx.helper.make_model(graph), tmp_path / "custom.onnx")
    with pytest.raises(SpecError, match="Mine"):
        read_onnx(tmp_path / "custom.onnx")
    branch = onnx.helper.make_graph(
        [node("Relu", "x", "b")], "branch", [], [onnx.helper.make_tensor_value_info("b", 1, [4])]
    )
    choice = onnx.helper.make_node("If", ["c"], ["y"], name="choice", then_branch=branch, else_branch=branch)
    inputs = [onnx.helper.make_tensor_value_info(*each) for each in (("c", onnx.TensorProto.BOOL, []), ("x", 1, [4]))]
    graph = onnx.helper.make_graph([choice], "net", inputs, [onnx.helper.make_tensor_value_info("y", 1, [4])])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "choice.onnx")
    with pytest.raises(SpecError, match=r"If \(choice\).*the branch that runs"):
        read_onnx(tmp_path / "choice.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(SpecError, match="pip install"):
        read_onnx(image_net)
