"""An ONNX file as a recorded program: its nodes as the operators of PyTorch that do the same, the rest by what they move.

Shapes are those that `onnx.shape_inference` finds; weights kept in other files are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...features.errors import SpecError, listed
from .captured import Program, capture
from .operation import INPUTS, WEIGHTS, Operation, Recording, TensorInfo

if TYPE_CHECKING:
    import onnx

_MOST_B = 2**31
"""Largest file read, which is protobuf's own limit."""

_ELEMENTWISE = frozenset({
    "Abs", "Add", "And", "BitShift", "Ceil", "Celu", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu",
    "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min",
    "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "QuickGelu", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid",
    "Sign", "Silu", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Trilu",
    "Where", "Xor",
})  # fmt: skip
_COPIES = (
    "Concat", "DepthToSpace", "Expand", "OneHot", "Pad", "ReverseSequence", "Slice", "SpaceToDepth", "Split", "Tile",
    "Transpose",
)  # fmt: skip
_VIEWS = frozenset({
    "Constant", "ConstantOfShape", "Dropout", "Flatten", "Identity", "Range", "Reshape", "Shape", "Size", "Squeeze",
    "Unsqueeze",
})  # fmt: skip
"""What moves nothing in a runtime that plans its memory; dropout does nothing in inference."""

_NAMES: Mapping[str, str] = {
    **{name: f"aten.{name.lower()}" for name in _ELEMENTWISE}, **dict.fromkeys(_COPIES, "aten.cat"),
    "Where": "aten.where", "Cast": "aten._to_copy", "CastLike": "aten._to_copy", "Softmax": "aten._softmax",
    "LogSoftmax": "aten._log_softmax", "LayerNormalization": "aten.native_layer_norm",
    "SimplifiedLayerNormalization": "aten._fused_rms_norm", "RMSNormalization": "aten._fused_rms_norm",
    "SkipLayerNormalization": "aten.native_layer_norm", "SkipSimplifiedLayerNormalization": "aten._fused_rms_norm",
    "BatchNormalization": "aten.native_batch_norm", "GroupNormalization": "aten.native_group_norm",
    "InstanceNormalization": "aten.native_group_norm", "Gather": "aten.index_select", "GatherElements": "aten.gather",
    "GatherND": "aten.index", "ScatterElements": "aten.scatter", "ScatterND": "aten.index_put",
    "MaxPool": "aten.max_pool2d_with_indices", "AveragePool": "aten.avg_pool2d", "GlobalAveragePool": "aten.mean",
    "GlobalMaxPool": "aten.amax", "Resize": "aten.upsample_nearest2d", "Upsample": "aten.upsample_nearest2d",
    "CumSum": "aten.cumsum", "TopK": "aten.topk", "ArgMax": "aten.argmax", "ArgMin": "aten.argmin",
    "ReduceMean": "aten.mean", "ReduceSum": "aten.sum", "ReduceMax": "aten.amax", "ReduceMin": "aten.amin",
    "ReduceProd": "aten.prod", "ReduceL2": "aten.norm", "ReduceL1": "aten.norm", "ReduceLogSumExp": "aten.logsumexp",
    "ReduceSumSquare": "aten.norm",
}  # fmt: skip
"""Operators of PyTorch by those of ONNX, beside products and convolutions, which `_PRODUCTS` has."""


class _Node(NamedTuple):
    """A node with its tensors and attributes."""

    node: onnx.NodeProto
    inputs: Sequence[TensorInfo | None]
    outputs: Sequence[TensorInfo]
    attributes: Mapping[str, Any]


def read_onnx(path: Path, sizes: Mapping[str, int] | None = None) -> Program:
    """The program of an ONNX file, of which one run is an inference.

    Args:
        path: the file.
        sizes: sizes of its dynamic dimensions, by name.

    Raises:
        SpecError: onnx is not installed, the file cannot be read, or a size is missing; the message names it.
    """
    try:
        import onnx
    except ImportError as error:
        raise SpecError(
            f"{path.name} is read by the package onnx, and there is none here ({error}); run: pip install 'kernelcast[onnx]'",
            field="onnx",
        ) from error
    model = _load(path, onnx)
    graph = model.graph
    _bind(graph, dict(sizes or {}), path)
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, ValueError) as error:
        raise SpecError(f"{path}: the shapes of its tensors do not fit together: {error}", field="onnx") from error
    return capture(_record(graph, path, onnx))


def _load(path: Path, onnx: Any) -> Any:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

    try:
        if path.stat().st_size > _MOST_B:
            raise SpecError(f"{path} is larger than 2 GiB; keep its weights in a file beside it", field="onnx")
        return onnx.load(path, load_external_data=False)
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}", field="onnx") from error
    except DecodeError as error:
        raise SpecError(f"{path} is no ONNX file: {error}", field="onnx") from error


def _bind(graph: Any, sizes: dict[str, int], path: Path) -> None:
    """Give dynamic dimensions of the inputs their sizes."""
    weights = {item.name for item in graph.initializer}
    inputs = [item for item in graph.input if item.name not in weights]
    dims = [(item.name, i, dim) for item in inputs for i, dim in enumerate(item.type.tensor_type.shape.dim)]
    missing: dict[str, None] = {}
    used = set()
    for tensor, i, dim in dims:
        if dim.HasField("dim_value") and dim.dim_value > 0:
            continue
        name = dim.dim_param or f"{tensor}.{i}"
        if name in sizes:
            dim.dim_value = sizes[name]
            used.add(name)
        else:
            missing[name] = None
    if missing:
        raise SpecError(
            f"{path} has dynamic sizes; give {listed(missing)}, such as --bind {next(iter(missing))}=8", field="bind"
        )
    if unknown := sorted(set(sizes) - used):
        names = listed({dim.dim_param or f"{tensor}.{i}" for tensor, i, dim in dims if dim.dim_param}) or "none"
        raise SpecError(f"{path} has no dynamic size {unknown[0]!r}; it has {names}", field="bind")


_BRANCHES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Nodes with graphs inside, of which values say which run and how often."""


def _record(graph: Any, path: Path, onnx: Any) -> Recording:
    # As PyTorch and ONNX Runtime do unless told otherwise.
    recording = Recording(tf32_convolutions=True)
    tensors = _tensors(graph, recording, onnx)
    unknown: dict[str, None] = {}
    if branches := [
        f"{node.op_type} ({node.name or node.output[0]})" for node in graph.node if node.op_type in _BRANCHES
    ]:
        raise SpecError(
            f"{path} decides while it runs what it computes: {listed(branches[:5])}; export the branch that runs, or fold "
            "constants (onnxsim), which removes those that depend on shapes alone",
            field="onnx",
        )
    for node in graph.node:
        lacking = [name for name in node.output if name and name not in tensors]
        if lacking and node.op_type not in _VIEWS:
            unknown[f"{node.op_type} ({node.name or lacking[0]})"] = None
            continue
        inputs = [tensors.get(name) if name else None for name in node.input]
        outputs = [tensors[name] for name in node.output if name in tensors]
        if node.op_type in _VIEWS:
            recording.views += 1
            _share(tensors, recording, node, inputs, outputs)
            continue
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        place = len(recording.operations)
        recording.operations.append(_operation(_Node(node, inputs, outputs, attributes)))
        for tensor in outputs:
            size_b, _, went = recording.lifetimes[tensor.storage]
            recording.lifetimes[tensor.storage] = (size_b, place, went)
        for tensor in (*outputs, *(each for each in inputs if each is not None)):
            if recording.roles.get(tensor.storage) != WEIGHTS:
                size_b, came, _ = recording.lifetimes[tensor.storage]
                recording.lifetimes[tensor.storage] = (size_b, came, place + 1)
    if unknown:
        raise SpecError(
            f"{path}: the sizes of what these compute are not known: {listed(list(unknown)[:5])}; custom operators need their "
            "shapes in the file (value_info)",
            field="onnx",
        )
    for item in graph.output:
        if item.name in tensors:
            size_b, came, _ = recording.lifetimes[tensors[item.name].storage]
            recording.lifetimes[tensors[item.name].storage] = (size_b, came, None)
    recording.notes.append("nodes of ONNX are priced as PyTorch's operators; a runtime fuses more of them")
    return recording


def _tensors(graph: Any, recording: Recording, onnx: Any) -> dict[str, TensorInfo]:
    """Every tensor of a known shape, weights first, then inputs."""
    tensors: dict[str, TensorInfo] = {}

    def add(name: str, shape: Sequence[int], kind: int, role: str | None) -> None:
        if name in tensors or kind not in _dtypes(onnx):
            return
        dtype, itemsize_b = _dtypes(onnx)[kind]
        storage = len(recording.lifetimes)
        strides = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
        tensors[name] = TensorInfo(tuple(shape), strides, dtype, itemsize_b, storage)
        recording.lifetimes[storage] = (tensors[name].nbytes, 0, None)
        if role is not None:
            recording.roles[storage] = role

    for item in graph.initializer:
        add(item.name, tuple(item.dims), item.data_type, WEIGHTS)
    for items, role in ((graph.input, INPUTS), (graph.output, None), (graph.value_info, None)):
        for item in items:
            kind = item.type.tensor_type
            dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim]
            if kind.HasField("shape") and min(dims, default=0) >= 0:
                add(item.name, dims, kind.elem_type, role)
    return tensors


def _dtypes(onnx: Any) -> Mapping[int, tuple[str, int]]:
    """PyTorch's names of ONNX's types, with bytes of an element."""
    kinds = onnx.TensorProto
    return {
        kinds.FLOAT: ("float32", 4), kinds.DOUBLE: ("float64", 8), kinds.FLOAT16: ("float16", 2),
        kinds.BFLOAT16: ("bfloat16", 2), kinds.INT8: ("int8", 1), kinds.UINT8: ("uint8", 1), kinds.INT16: ("int16", 2),
        kinds.INT32: ("int32", 4), kinds.INT64: ("int64", 8), kinds.BOOL: ("bool", 1), kinds.FLOAT8E4M3FN: ("float8_e4m3fn", 1),
        kinds.FLOAT8E5M2: ("float8_e5m2", 1),
    }  # fmt: skip


def _share(
    tensors: dict[str, TensorInfo], recording: Recording, node: Any, inputs: Sequence[TensorInfo | None],
    outputs: Sequence[TensorInfo],
) -> None:  # fmt: skip
    """A view lies where its source does."""
    source = inputs[0] if inputs else None
    for name, tensor in zip((each for each in node.output if each in tensors), outputs, strict=True):
        recording.lifetimes[tensor.storage] = (0, 0, 0)
        if source is not None and source.nbytes == tensor.nbytes:
            tensors[name] = TensorInfo(tensor.shape, tensor.strides, tensor.dtype, tensor.itemsize_b, source.storage)


def _operation(item: _Node) -> Operation:
    inputs = tuple(tensor for tensor in item.inputs if tensor is not None)
    outputs = tuple(item.outputs)
    kind = item.node.op_type
    name, flops = f"onnx.{kind}", 0.0
    arguments: dict[str, Any] = {}
    if kind in _PRODUCTS and len(inputs) >= 2:
        name, arguments, inputs, flops = _PRODUCTS[kind](item, inputs)
    elif kind in _NAMES:
        name = _NAMES[kind]
        arguments = _arguments(name, item, inputs)
    module = item.node.name.strip("/").replace("/", ".").rpartition(".")[0]
    return Operation(
        name, arguments, inputs, outputs, flops, module=module, pointwise=kind in _ELEMENTWISE
    )  # fmt: skip


def _arguments(name: str, item: _Node, inputs: Sequence[TensorInfo]) -> dict[str, Any]:
    """What costings read of the operators of PyTorch."""
    axis = item.attributes.get("axis", -1)
    if name in ("aten.native_layer_norm", "aten._fused_rms_norm"):
        rank = len(inputs[0].shape)
        # Fused forms of other makers normalise the last dimension.
        return {"normalized_shape": inputs[0].shape[(axis % rank if item.node.op_type[:4] != "Skip" else rank - 1) :]}
    if name in ("aten._softmax", "aten._log_softmax"):
        return {"dim": axis}
    if item.node.op_type.startswith("Global"):
        return {"dim": tuple(range(2, len(inputs[0].shape)))}
    if item.node.op_type.startswith(("Reduce", "Arg")):
        # Axes as an input are values; dimensions that stay as they were are not summed.
        after = item.outputs[0].shape
        dims = item.attributes.get("axes") or [
            i for i, size in enumerate(inputs[0].shape) if after[i : i + 1] != (size,)
        ]
        return {"dim": tuple(dims)}
    if name in ("aten.max_pool2d_with_indices", "aten.avg_pool2d"):
        return {"kernel_size": tuple(item.attributes.get("kernel_shape", ()))}
    return {}


def _flattened(tensor: TensorInfo, rows: int, cols: int, *, transposed: bool = False) -> TensorInfo:
    strides = (1, rows) if transposed else (cols, 1)
    return TensorInfo((rows, cols), strides, tensor.dtype, tensor.itemsize_b, tensor.storage)


Product = tuple[str, dict[str, Any], tuple[TensorInfo, ...], float]


def _matmul(item: _Node, inputs: tuple[TensorInfo, ...]) -> Product:
    a, b = inputs[:2]
    m, k = a.shape[-2] if len(a.shape) > 1 else 1, a.shape[-1]
    n = b.shape[-1] if len(b.shape) > 1 else 1
    if prod(b.shape[:-2]) == 1:
        rows = prod(a.shape[:-1])
        left, right = _flattened(a, rows, k), _flattened(b, k, n)
        return "aten.mm", {"self": left, "mat2": right}, (left, right), 2.0 * rows * n * k
    batch = prod(item.outputs[0].shape[:-2])
    left = TensorInfo((batch, m, k), (m * k, k, 1), a.dtype, a.itemsize_b, a.storage)
    right = TensorInfo((batch, k, n), (k * n, n, 1), b.dtype, b.itemsize_b, b.storage)
    return "aten.bmm", {}, (left, right), 2.0 * batch * m * n * k


def _gemm(item: _Node, inputs: tuple[TensorInfo, ...]) -> Product:
    a, b = inputs[:2]
    turned = [bool(item.attributes.get(name, 0)) for name in ("transA", "transB")]
    m, k = reversed(a.shape) if turned[0] else a.shape
    n = b.shape[0] if turned[1] else b.shape[1]
    left, right = _flattened(a, m, k, transposed=turned[0]), _flattened(b, k, n, transposed=turned[1])
    added = inputs[2] if len(inputs) > 2 else None
    if added is None:
        return "aten.mm", {"self": left, "mat2": right}, (left, right), 2.0 * m * n * k
    arguments = {"self": added, "mat1": left, "mat2": right}
    return "aten.addmm", arguments, (added, left, right), 2.0 * m * n * k


def _convolution(item: _Node, inputs: tuple[TensorInfo, ...]) -> Product:
    x, weight = inputs[:2]
    dims = len(weight.shape) - 2
    named, transposed = item.attributes, item.node.op_type == "ConvTranspose"
    padding = named.get("pads") or [0] * 2 * dims
    if named.get("auto_pad", b"NOTSET") in (b"SAME_UPPER", b"SAME_LOWER"):
        padding = [size // 2 for size in weight.shape[2:]] * 2
    arguments = {
        "input": x, "weight": weight, "stride": tuple(named.get("strides") or [1] * dims), "padding": tuple(padding[:dims]),
        "dilation": tuple(named.get("dilations") or [1] * dims), "groups": named.get("group", 1), "transposed": transposed,
    }  # fmt: skip
    positions = prod((x if transposed else item.outputs[0]).shape)
    return "aten.convolution", arguments, inputs, 2.0 * positions * prod(weight.shape[1:])


_PRODUCTS = {"MatMul": _matmul, "Gemm": _gemm, "Conv": _convolution, "ConvTranspose": _convolution}
